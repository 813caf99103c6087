"""A host tier on the other side of a bus: what is brought up or computed there gives the same as one memory.

Here both sides are the CPU; `cpu:0` is not equal to `cpu`, so the engine takes them for two.
"""

import pytest
import torch
from tiny import loaded, prompts, requests

from tiercache.cache import TieredCache
from tiercache.engine import Engine
from tiercache.policy import parse_policy
from tiercache.store import Geometry, TierStore
from tiercache.streaming import Courier, Sent, TransferClock

ELSEWHERE = torch.device("cpu", 0)


@pytest.mark.parametrize("read", ["stream", "merge"])
@pytest.mark.parametrize("scorer", ["h2o", "epikv"])
def test_tokens_and_ledger_are_those_of_one_memory(read: str, scorer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = {"name": "hierarchy", "hbm": 0.4, "evict": 0.1, "packed": 0.2, "every": 4, "t1_read": read, "recent": 6}
    if scorer == "epikv":
        entry = {**entry, "scorer": "epikv"}
    policy, batch = parse_policy(entry), requests(prompts(60, 33, 64, 9), new=30)
    engine = Engine(loaded("llama"))
    expected = {c.key: (c.tokens, c.ledger) for c in engine.run(batch, policy)}
    assert all(ledger.ddr_tokens and ledger.packed_tokens for _, ledger in expected.values())
    original, asked = TieredCache.__init__, []

    def apart(self: TieredCache, *args: object, **named: object) -> None:
        original(self, *args, **named)  # type: ignore[arg-type]
        self.ddr.device = ELSEWHERE

    def counted(self: Courier, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        asked.append(layer)
        return take(self, layer)

    take = Courier.layer
    monkeypatch.setattr(TieredCache, "__init__", apart)
    monkeypatch.setattr(Courier, "layer", counted)
    found = {c.key: (c.tokens, c.ledger) for c in engine.run(batch, policy)}
    assert found == expected
    assert bool(asked) == (read == "stream")


def test_layers_come_up_one_ahead_and_do_not_overwrite_each_other() -> None:
    store = TierStore(Geometry(5, 4, 2, 8, torch.float32), {}, ELSEWHERE)
    store.join(3)
    store.reserve(3, 20)
    store.extents[:] = [20, 4, 11]
    for side in "kv":
        store.planes[side].copy_(torch.randn(store.planes[side].shape))
    courier = Courier(store, torch.device("cpu"), TransferClock())
    for layer in range(5):
        keys, values = courier.layer(layer)
        assert courier._sent == min(layer + 1, 4)
        assert torch.equal(keys, store.layer(layer)[0])
        assert torch.equal(values, store.layer(layer)[1])


def test_without_a_bus_nothing_is_waited_for() -> None:
    x = torch.ones(3)
    assert Sent(x).here() is x
    assert TransferClock().collect() == 0
