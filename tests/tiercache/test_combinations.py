"""Any scorer with any placement and storage: a row's tokens don't depend on its neighbours, and nothing falls over."""

import pytest
from tiny import generate, loaded, prompts, requests

from tiercache import events
from tiercache.cache import TieredCache
from tiercache.catalog import SIGNALS
from tiercache.errors import PolicyError
from tiercache.policy import parse_policy

PLACEMENTS: dict[str, dict[str, object]] = {
    "each step": {"budget": 0.5},
    "layers alike": {"budget": {"bytes": 0.4}, "every": 4, "scope": "layer"},
    "one order": {"budget": 0.5, "scope": "token", "every": 4},
    "pinned": {"budget": 0.5, "pin_prompt": True, "sinks": 2, "recent": 4, "every": 3},
    "host": {"budget": 0.6, "hbm": 0.4, "every": 4},
    "quantised": {"budget": {"bytes": 0.2}, "hbm": 0.3, "packed": 0.7, "every": 4},
    "windows": {"budget": 0.5, "window": 4, "every": 4},
    "ledger": {
        **{"budget": {"bytes": 0.3}, "packed_bytes": 0.1, "window": 4, "every": 4},
        **{"packed_bits": 2, "key_axis": "channel", "ledger": True},
    },
    "heads compete": {"budget": 0.5, "share": "layer", "floor": 0.2, "every": 3},
    "layers compete": {"budget": 0.5, "share": "all", "every": 3},
    "pyramid": {"budget": 0.5, "pyramid": 4.0, "every": 3},
    "chunks": {"budget": None, "chunk": 6},
    "share": {"budget": None, "evict": 0.2, "compound": False, "every": 3},
    "drifted": {"budget": 0.5, "positions": "drifted"},
    "rerotated": {"budget": 0.5, "positions": "rerotated", "every": 3},
    "renumbered": {"budget": 0.5, "positions": "cache"},
}


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("scorer", SIGNALS)
def test_any_scorer_with_any_placement(scorer: str, placement: str, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = {"name": "streaming", "sinks": 0, "scorer": scorer, "scope": "head", "positions": "true"}
    entry |= PLACEMENTS[placement]
    if SIGNALS[scorer].true_positions and entry["positions"] != "true":
        with pytest.raises(PolicyError, match="works with true positions only"):
            parse_policy(entry)
        return
    settle = TieredCache.settle

    def checked(cache: TieredCache) -> None:
        settle(cache)
        cache.check()

    retier, rows = events.retier, set()

    def counted(stores: object, chosen: list[int], *more: object) -> object:
        rows.add(len(chosen))
        return retier(stores, chosen, *more)

    monkeypatch.setattr(TieredCache, "settle", checked)
    monkeypatch.setattr(events, "AT_ONCE", 1)  # all rows that are due move between tiers together
    monkeypatch.setattr(events, "retier", counted)
    batch = requests(prompts(21, 5, 13), new=16)
    policy = parse_policy(entry)
    together = generate(loaded("llama"), batch, policy)
    for i in (0, 1):
        alone = generate(loaded("llama"), [batch[i]], policy)[0]
        assert alone.tokens == together[i].tokens
        assert alone.ledger == together[i].ledger
    assert together[0].ledger.evicted_tokens > 0
    if placement in ("host", "quantised", "ledger") and scorer != "gkv":  # what remembers moves alone
        assert max(rows) > 1, "rows moved together"
