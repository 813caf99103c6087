"""What holds for every preset: a budget for everything is the full cache, and a smaller one is kept whenever a token is
decoded."""

import pytest
from tiny import generate, loaded, prompts, requests

from tiercache.catalog import PRESETS
from tiercache.policy import parse_policy
from tiercache.step import DecodeStep

PROMPT, NEW, BUDGET = 12, 60, 40
EVERY = 4
# Made for chains of thousands of tokens; here a chain has 72.
SMALL = {
    "queries": 4,
    "recent": 4,
    "window": 4,
    "page": 4,
    "segment": 8,
    "ladder": (4, 2),
    "every": EVERY,
    "recent_share": 0.1,
    "recent_cap": None,
}
WHOLE = {"hierarchy": {"hbm": 1.0, "evict": 0}, "quest": {"read_budget": 1.0}, "lagkv": {"chunk_keep": 1.0, "chunk": 8}}
BUDGETED = [name for name, preset in PRESETS.items() if "budget" in preset.required]


def small(name: str, **knobs: object) -> dict[str, object]:
    """The preset with its own knobs of SMALL, where they are larger."""
    own = PRESETS[name].defaults
    taken = {knob: value for knob, value in SMALL.items() if knob in own and own[knob] not in (0, 1, 0.0)}
    return {"name": name, **taken, **knobs}


@pytest.mark.parametrize("name", [name for name in PRESETS if name not in ("full", "quantised", "kivi")])
def test_a_budget_for_everything_is_the_full_cache(name: str) -> None:
    """Quantised caches aside, which change what they keep."""
    batch = requests(prompts(PROMPT, 30), new=NEW)
    entry = small(name, budget=1000) if name in BUDGETED else small(name, **WHOLE[name])
    if name == "thinkv":
        entry["pack_thoughts"] = False
        entry["transition_above"] = 1.0  # a transition shrinks what was thought before, whatever the budget
    got, full = (generate(loaded("llama"), batch, policy) for policy in (entry, "full"))
    assert [c.tokens for c in got] == [c.tokens for c in full]
    assert all(c.ledger.evicted_tokens == 0 for c in got)


@pytest.mark.parametrize("name", BUDGETED)
def test_a_budget_is_kept_whenever_a_token_is_decoded(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens that a step attends to, the new one included: at most the budget and what collects between two events."""
    policy = parse_policy(small(name, budget=BUDGET))
    every = policy.schedule.every or NEW  # cut once, after the prefill: what is generated comes on top
    begin, held = DecodeStep.__init__, []

    def counted(step: DecodeStep, cache) -> None:  # type: ignore[no-untyped-def]
        begin(step, cache)
        pairs = cache.geometry.layers * cache.geometry.kv_heads
        for row in range(cache.rows):
            slots = sum(int((pos >= 0).sum()) for pos in cache.row_positions(row)) / pairs
            assert slots == cache.tiers[row].live
            tiers = cache.tiers[row]
            # Where a budget is shared with quantised tokens it is of bytes, in those of tokens in full precision.
            quantised = cache.sizes.packed_bytes(tiers.packed) / cache.sizes.token
            held.append(tiers.hbm + quantised if policy.placement.packed_bytes else tiers.live)

    monkeypatch.setattr(DecodeStep, "__init__", counted)
    generate(loaded("llama"), requests(prompts(PROMPT, 30), new=NEW), policy)
    size = policy.placement.window
    if name == "thinkv":
        every = 8  # the thought that goes on
    assert max(held) > BUDGET - every, "the budget is felt"
    assert max(held) <= BUDGET + max(every, size) + 1
