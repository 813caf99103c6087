"""Quantised tiers in the engine, against an oracle that quantises in place."""

import oracle
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from quantised_reference import fake
from tiny import assert_alone_as_together, generate, loaded, prompts, requests, tiny

from tiercache.cache import TieredCache
from tiercache.placement import Move, RowTiers, due_moves, trajectory
from tiercache.policy import parse_policy
from tiercache.sizes import sizes

# The engine ----------------------------------------------------------------------------------------------------------


class Quantising(oracle.Oracle):
    """Tokens that enter T2 are replaced, in the full cache, by what their codes give back."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.tiers = RowTiers(self.prompt)
        self.packed: dict[tuple[int, int], set[int]] = {place: set() for place in self.live}
        self.ever: dict[tuple[int, int], set[int]] = {place: set() for place in self.live}
        self.returned = 0

    def act(self) -> None:
        self.before = {place: set(live) for place, live in self.live.items()}
        self.tiers.append(self.seen - self.tiers.seen)
        head_dim = self.keys[0].shape[-1]
        size = sizes(self.policy.storage, self.policy.placement.window, self.layers, self.kv_heads, head_dim, 8)
        for move in due_moves(self.policy, self.tiers, size):
            for place in self.live:
                self.place(place, move)
            self.tiers.apply(move)

    def place(self, place: tuple[int, int], move: Move) -> None:
        width, scores = self.policy.placement.window, self.scores(place)
        windows: dict[int, list[int]] = {}
        for i in sorted(self.live[place]):
            if not self.protected(i):
                windows.setdefault(i // width, []).append(i)
        best = sorted(windows, key=lambda w: (sum(scores[i] for i in windows[w]), w), reverse=True)
        ranked = [i for w in best for i in windows[w]]
        assert len(ranked) == move.candidates
        stay = move.candidates - move.evict
        enter = set(ranked[stay - move.packed : stay])
        self.live[place] -= set(ranked[stay:])
        self.dead[place] |= set(ranked[stay:])
        known = self.ever[place] if self.policy.storage.ledger else self.packed[place]
        fresh = sorted(enter - known)
        self.returned += len((enter - self.packed[place]) & self.ever[place])
        self.packed[place] = enter
        self.ever[place] |= enter
        layer, head = place
        for first in range(0, len(fresh), width):
            group = fresh[first : first + width]
            for side, whole in (("k", self.keys[layer]), ("v", self.values[layer])):
                quantised = fake(whole[0, head, group].numpy(), self.policy.storage, width, side)
                whole[0, head, group] = torch.from_numpy(quantised).double()


SMALL = {"recent": 4, "every": 4}


BY_CHANNEL = {"name": "kivi", "window": 4, "group": 8, "recent": 8, "every": 4}


MIXED = {"name": "hierarchy", "hbm": 0.3, "packed": 0.5, "evict": 0.1, "recent": 5, "every": 4, "window": 4}


ENGINE = {
    "8": {"name": "quantised", "packed_bits": 8, **SMALL},
    "4": {"name": "quantised", "packed_bits": 4, "group": 8, "grids": "float32", **SMALL},
    "2": {"name": "quantised", "packed_bits": 2, **SMALL},
    "fp8": {"name": "quantised", "packed_bits": "fp8", **SMALL},
    "8-channel": {**BY_CHANNEL, "packed_bits": 8},
    "4-channel": {**BY_CHANNEL, "packed_bits": 4, "grids": "float32"},
    "2-channel": BY_CHANNEL,
    "fp8-channel": {**BY_CHANNEL, "packed_bits": "fp8"},
    "2-pairs": {**BY_CHANNEL, "rope_pairs": True},
    "kivi": {"name": "kivi", "recent": 4},
    "mixed": {**MIXED, "packed_bits": 4},
    "mixed-channel": {
        **MIXED,
        "hbm": 0.5,
        "packed_bits": 2,
        "key_axis": "channel",
        "ledger": True,
        "scope": "head",
        "pin_prompt": False,
    },
    "evicting": {"name": "h2o", "budget": 24, "hbm": 0.5, "packed": 0.5, "packed_bits": 4, "every": 4, "ledger": True},
    "qevict": {
        "name": "qevict",
        "budget": {"bytes": 0.6},
        "window": 2,
        "every": 2,
        "sinks": 1,
        "recent_share": 0.1,
        "packed_bytes": 0.06,
    },
    "qevict-ratio": {"name": "qevict", "budget": 0.6, "sinks": 1},
}


@pytest.mark.parametrize("name", ENGINE)
def test_same_tokens_as_a_reference_that_quantises_in_place(name: str) -> None:
    policy = parse_policy(ENGINE[name])
    returned = 0
    for request in requests(prompts(37, 6), new=36):
        expected, state = oracle.generate(tiny("llama"), policy, request.prompt, 36, request.seed, kind=Quantising)
        assert isinstance(state, Quantising)
        got = generate(loaded("llama"), [request], policy)[0]
        assert list(got.tokens) == expected
        assert {len(tokens) for tokens in state.packed.values()} == {got.ledger.packed_tokens}
        assert {len(tokens) for tokens in state.dead.values()} == {got.ledger.evicted_tokens}
        returned += state.returned
    if name in ("mixed-channel", "evicting", "qevict"):
        assert returned > 0, "no window ever came back: the ledger isn't tested"


def test_bits_are_felt() -> None:
    """The control: what the reference must reproduce is not the full cache's output."""
    batch = requests(prompts(37, 30), new=36)
    full = [c.tokens for c in generate(loaded("llama"), batch, "full")]
    outputs = [
        [c.tokens for c in generate(loaded("llama"), batch, ENGINE[name])] for name in ("2", "2-channel", "2-pairs")
    ]
    assert all(tokens != full for tokens in outputs)
    assert outputs[0] != outputs[1] != outputs[2]


@pytest.mark.parametrize("name", ["2", "fp8", "2-pairs", "kivi", "mixed-channel", "evicting", "qevict"])
def test_batch_of_four_equals_batch_of_one(name: str) -> None:
    batch = requests(prompts(5, 40, 33, 17), new=32)
    assert_alone_as_together(loaded("llama"), batch, ENGINE[name], max_batch=4)


@pytest.mark.parametrize("name", ["4", "fp8-channel", "2-pairs", "mixed-channel", "qevict"])
def test_counted_bytes_are_stored_bytes_at_every_step(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    settle, most = TieredCache.settle, [0]

    def checked(cache: TieredCache) -> None:
        settle(cache)
        cache.check()
        stored = [store.keys_values_bytes() for store in cache.stores]
        full = [sum(t.hbm for t in cache.tiers), sum(t.ddr for t in cache.tiers)]
        assert stored[:2] == [count * cache.sizes.token for count in full]
        assert stored[2] == sum(cache.sizes.packed_bytes(t.packed) for t in cache.tiers)
        most[0] = max(most[0], stored[2])

    monkeypatch.setattr(TieredCache, "settle", checked)
    generate(loaded("qwen3"), requests(prompts(40, 5, 17), new=32), ENGINE[name], max_batch=2)
    assert most[0] > 0


def test_kept_codes_count_as_metadata() -> None:
    """Beside each token in T0 there is room for its codes and grids, and a flag."""
    request = requests(prompts(40), new=16)
    entry = ENGINE["qevict"]
    ledgers = [generate(loaded("llama"), request, {**entry, "ledger": on})[0].ledger for on in (False, True)]
    policy = parse_policy(entry)
    size = sizes(policy.storage, 2, 2, 2, 16, 8)
    per_token = [(4 + 8) * 4, (4 + 8 + 1) * 4 + size.packed // 2]  # position and mass, over 2 layers and 2 heads
    live = ledgers[0].metadata_bytes_peak // per_token[0]
    assert [ledger.metadata_bytes_peak for ledger in ledgers] == [live * each for each in per_token]


# A budget in bytes ---------------------------------------------------------------------------------------------------


@given(
    st.integers(1, 400),
    st.sampled_from([0.1, 0.2, 0.35, 0.5]),
    st.sampled_from([0.0, 0.1, 0.3]),
    st.sampled_from([2, 4, 8]),
)
@settings(max_examples=60, deadline=None)
def test_a_budget_in_bytes_is_kept_at_every_event(prompt: int, share: float, quantised: float, bits: int) -> None:
    entry = {"name": "qevict", "budget": {"bytes": share}, "packed_bytes": quantised, "packed_bits": bits}
    policy = parse_policy(entry)
    size = sizes(policy.storage, 8, 28, 4, 128, 2)
    events = 0
    for row in trajectory(policy, prompt, 200, size):
        held = row.hbm * size.token + size.packed_bytes(row.packed)
        # Sinks and the local band are whole windows; where they alone exceed the budget nothing else is left.
        band = 8 + max(1, int(0.5 * share * row.seen))
        protected = min(row.seen, 8 + -(-band // 8) * 8 + 8) * size.token
        limit = max(share * row.seen * size.token, protected)
        buffer = row.generated % 8 * size.token  # tokens since the last event
        assert held <= limit + buffer + 1e-6
        events += row.generated % 8 == 0
    assert events == 26


@pytest.mark.parametrize("share", [0.1, 0.2, 0.5])
def test_a_budget_in_bytes_is_used(share: float) -> None:
    """Within 2%, of a sequence of which a window is a small part."""
    policy = parse_policy({"name": "qevict", "budget": {"bytes": share}})
    size = sizes(policy.storage, 8, 28, 4, 128, 2)
    for row in trajectory(policy, 8_000, 2_000, size):
        if row.generated % 8 == 0:
            held = row.hbm * size.token + size.packed_bytes(row.packed)
            assert 0.98 * share * row.seen * size.token <= held <= share * row.seen * size.token
            assert row.packed > 0
            assert row.evicted > 0


@pytest.mark.parametrize(("share", "prompt"), [(1.0, 1_000), (0.9, 1_000)])
def test_nothing_is_quantised_or_left_unused_while_there_is_room(share: float, prompt: int) -> None:
    policy = parse_policy({"name": "qevict", "budget": {"bytes": share}})
    size = sizes(policy.storage, 8, 28, 4, 128, 2)
    for row in trajectory(policy, prompt, 64, size):
        if row.generated % 8 == 0:
            held = row.hbm * size.token + size.packed_bytes(row.packed)
            assert held >= 0.98 * share * row.seen * size.token
            assert share < 1 or row.packed == 0
