"""ThinKV: the retention ladder by hand, k-means in loops, and the whole policy against the slow reference."""

import math

import numpy as np
import oracle
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from quantised_reference import fake
from tiny import generate, loaded, prompts, requests, tiny

from tiercache.cache import TieredCache
from tiercache.engine import Engine
from tiercache.errors import PolicyError
from tiercache.placement import RowTiers, due_moves, trajectory
from tiercache.policy import parse_policy
from tiercache.scorers.thinkv import representatives
from tiercache.scorers.thinkv_calibration import _Listener, calibrate, minima
from tiercache.sizes import sizes
from tiercache.thoughts import EXECUTION, REASONING, TRANSITION

SMALL = {"name": "thinkv", "budget": 20, "segment": 8, "ladder": [6, 4, 2]}
# Thresholds under which the tiny model's thoughts are of all three kinds.
MIXED = {**SMALL, "budget": 26, "faint": 0.1, "execution_below": 0.8, "transition_above": 0.9, "thought_layers": 2}


def run(kinds: list[int], budget: int, prompt: int = 1) -> RowTiers:
    """A sequence whose thoughts, of 128 tokens each, are of these kinds."""
    policy, row = parse_policy({"name": "thinkv", "budget": budget, "pin_prompt": True}), RowTiers(prompt)
    for step in range(128 * len(kinds) + 1):
        row.append(1 if step else prompt)
        row.thought = kinds[max(0, step - 1) // 128]
        for move in due_moves(policy, row):
            row.apply(move)
    return row


def test_the_ladder_by_hand() -> None:
    """Each transition takes the thoughts before it one step down: 128, 64, 32, 16, 8, 4 and no further."""
    for transitions, size in enumerate([128, 64, 32, 16, 8, 4, 4]):
        row = run([REASONING] + [TRANSITION] * transitions, budget=10_000)
        assert row.thoughts.segments[0].size == size


def test_the_least_important_and_oldest_thought_shrinks_first() -> None:
    row = run([REASONING, EXECUTION, EXECUTION, REASONING], budget=1 + 3 * 128)
    sizes = [segment.size for segment in row.thoughts.segments]
    assert sizes[0] == sizes[3] == 128, "reasoning stays as long as execution can shrink"
    assert sizes[1] < sizes[2], "the older of equals shrinks first"


def test_a_budget_holds_many_thoughts_at_the_bottom() -> None:
    """(1024 - 128) / 4 = 224 thoughts of 4 tokens beside the open one."""
    policy = parse_policy({"name": "thinkv", "budget": 1024})
    rows = list(trajectory(policy, 128, 128 * 223 + 127))
    assert max(row.live for row in rows[128:]) <= 1024
    assert rows[-1].live <= 224 * 4 + 127


@given(st.integers(0, 10**6), st.integers(1, 12), st.integers(0, 14), st.integers(1, 5))
@settings(max_examples=100, deadline=None)
def test_representatives_are_those_of_k_means_in_loops(seed: int, n: int, clusters: int, dim: int) -> None:
    points = torch.randn(1, n, dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    assert representatives(points, clusters)[0].tolist() == slow_representatives(points[0].tolist(), clusters)


def slow_representatives(points: list[list[float]], clusters: int) -> list[bool]:
    if clusters == 0:
        return [False] * len(points)
    k = min(clusters, len(points))
    centres = [points[i * len(points) // k] for i in range(k)]

    def nearest(p: list[float]) -> int:
        return min(range(k), key=lambda c: (math.dist(p, centres[c]), c))

    for _ in range(10):
        groups: list[list[list[float]]] = [[] for _ in range(k)]
        for p in points:
            groups[nearest(p)].append(p)
        centres = [
            [sum(p[d] for p in group) / len(group) for d in range(len(points[0]))] if group else centre
            for group, centre in zip(groups, centres, strict=True)
        ]
    marked = [False] * len(points)
    for c in range(k):
        own = [i for i, p in enumerate(points) if nearest(p) == c]
        if own:
            nearest_distance = min(math.dist(points[i], centres[c]) for i in own)
            marked[max(i for i in own if math.dist(points[i], centres[c]) <= nearest_distance * (1 + 1e-6))] = True
    return marked


class Thinker(oracle.Oracle):
    """Segments as (positions, kind) with the tokens of each counted anew, sparsity from whole rows."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.closed: list[tuple[range, int]] = []
        self.coarse: set[int] = set()
        self.kinds: set[int] = set()

    def step(self) -> None:
        signal = self.policy.scorer
        shares = []
        for layer in sorted(
            {round((self.layers - 1) * i / max(1, signal.thought_layers - 1)) for i in range(signal.thought_layers)}
        ):
            for head in range(self.kv_heads):
                live = sorted(self.live[layer, head])
                query = self.queries[layer][0, head * self.group : (head + 1) * self.group, -1]
                logits = (query @ self.keys[layer][0, head, live].T * query.shape[-1] ** -0.5).amax(0)
                row = torch.softmax(logits, 0)
                shares.append(sum(float(p) < signal.faint * float(row.max()) for p in row) / len(live))
        self.sparsity = sum(shares) / len(shares)

    def act(self) -> None:
        rules, generated = self.policy.placement, self.seen - self.prompt
        if not self.closed:
            starts = range(0, self.prompt, rules.segment)
            self.closed = [(range(a, min(a + rules.segment, self.prompt)), REASONING) for a in starts]
            self.quantise(range(self.prompt), REASONING)
        elif generated % rules.segment == 0:
            kind = REASONING
            if self.sparsity < self.policy.scorer.execution_below:
                kind = EXECUTION
            elif self.sparsity > self.policy.scorer.transition_above:
                kind = TRANSITION
            self.kinds.add(kind)
            self.closed.append((range(self.seen - rules.segment, self.seen), kind))
            self.quantise(self.closed[-1][0], kind)
            if kind == TRANSITION:
                for segment, _ in self.closed[:-1]:
                    self.shrink(segment)
        while self.too_much():
            able = sorted((kind, segment.start, segment) for segment, kind in self.closed if self.below(segment))
            if not able:
                break
            self.shrink(able[0][2])

    def quantise(self, tokens: range, kind: int) -> None:
        """What is read of them from now on."""
        rules, storage = self.policy.placement, self.policy.storage
        if not rules.pack_thoughts:
            return
        if kind == TRANSITION:
            self.coarse |= set(tokens)
            storage = storage.coarse or storage
        for layer, head in self.live:
            for plane, side in ((self.keys, "k"), (self.values, "v")):
                rough = fake(plane[layer][0, head, tokens].numpy(), storage, 1, side)
                plane[layer][0, head, tokens] = torch.from_numpy(rough).to(plane[layer].dtype)

    def too_much(self) -> bool:
        rules, live = self.policy.placement, self.live[0, 0]
        if not (rules.pack_thoughts and rules.budget.bytes):
            return len(live) > self.limit()
        closed = {i for segment, _ in self.closed for i in segment} & live
        bits = sum(self.bits(2 if i in self.coarse else 4) for i in closed)
        return bits + self.bits(64) * len(live - closed) > rules.budget.bytes * self.bits(64) * self.seen

    def bits(self, each: int) -> int:
        """Of one token's key or value, with scale and zero of each group of 16 where it is quantised."""
        dim = self.keys[0].shape[-1]
        return dim * each + (0 if each == 64 else math.ceil(dim / 16) * 32)

    def below(self, segment: range) -> int:
        size = len(self.live[0, 0] & set(segment))
        return max((step for step in self.policy.placement.ladder if step < size), default=0)

    def shrink(self, segment: range) -> None:
        keep = self.below(segment)
        if not keep:
            return
        for layer, head in self.live:
            own = sorted(self.live[layer, head] & set(segment))
            marked = slow_representatives(self.keys[layer][0, head, own].tolist(), keep)
            best = sorted(own, key=lambda i: (not marked[own.index(i)], -i))
            self.live[layer, head] -= set(best[keep:])
            self.dead[layer, head] |= set(best[keep:])


@pytest.mark.parametrize(
    "entry",
    [
        {**SMALL, "pack_thoughts": False},
        {**MIXED, "pack_thoughts": False},
        {**MIXED, "budget": 0.5, "pack_thoughts": False},
        MIXED,
        {**MIXED, "budget": 0.5, "packed_bits": 8},
        {**MIXED, "budget": {"bytes": 0.2}},
    ],
    ids=["small", "mixed", "ratio", "bits", "bits-ratio", "bits-bytes"],
)
def test_same_tokens_as_the_slow_reference(entry: dict[str, object]) -> None:
    policy, kinds = parse_policy(entry), set()
    for request in requests(prompts(21, 5), new=60):
        expected, state = oracle.generate(tiny("llama"), policy, request.prompt, 60, request.seed, Thinker)
        got = generate(loaded("llama"), [request], policy)[0]
        assert list(got.tokens) == expected
        assert {len(tokens) for tokens in state.live.values()} == {got.ledger.hbm_tokens + got.ledger.packed_tokens}
        kinds |= state.kinds
    assert entry["budget"] == 20 or len(kinds) > 1, "the test must meet several kinds"


def test_rows_do_not_depend_on_their_neighbours() -> None:
    batch = requests(prompts(21, 5, 34, 13), new=40)
    together = generate(loaded("llama"), batch, parse_policy(MIXED))
    assert [c.tokens for c in together] == [
        generate(loaded("llama"), [r], parse_policy(MIXED))[0].tokens for r in batch
    ]


def test_thoughts_need_a_scorer_that_knows_them() -> None:
    with pytest.raises(PolicyError, match="'recency' can't tell thoughts apart; allowed scorers: thinkv, or your own"):
        parse_policy({**SMALL, "scorer": "recency"})


def test_its_signal_reads_all_tiers_where_it_ranks_for_another_placement() -> None:
    entry = {
        "name": "hierarchy",
        "hbm": 0.4,
        "evict": 0.1,
        "every": 4,
        "recent": 4,
        "scorer": "thinkv",
        "scope": "head",
    }
    batch = requests(prompts(21, 5, 13), new=24)
    together = generate(loaded("llama"), batch, parse_policy(entry))
    assert [c.tokens for c in together] == [
        generate(loaded("llama"), [r], parse_policy(entry))[0].tokens for r in batch
    ]


def test_counted_bytes_are_stored_bytes_in_both_formats(monkeypatch: pytest.MonkeyPatch) -> None:
    settle, most = TieredCache.settle, [0, 0]

    def checked(cache: TieredCache) -> None:
        settle(cache)
        cache.check()
        hbm, ddr, packed, coarse = (store.keys_values_bytes() for store in cache.stores)
        assert (hbm, ddr) == (sum(t.hbm for t in cache.tiers) * cache.sizes.token, 0)
        assert packed + coarse == sum(cache.sizes.packed_bytes(t.packed, t.coarse) for t in cache.tiers)
        most[:] = max(most[0], packed), max(most[1], coarse)

    monkeypatch.setattr(TieredCache, "settle", checked)
    done = generate(loaded("llama"), requests(prompts(21, 5), new=60), MIXED)
    assert min(most) > 0
    size = sizes(parse_policy(MIXED).storage, 1, 2, 2, 16, 8)
    # Two layers and two heads, a key and a value each: 16 codes, then scale and zero in float16.
    assert (size.packed, size.coarse) == (8 * (8 + 4), 8 * (4 + 4))
    assert all(size.coarse < c.ledger.packed_bytes_mean < c.ledger.full_bytes_mean / 3 for c in done)


@pytest.mark.parametrize("share", [0.1, 0.2, 0.5])
def test_a_budget_in_bytes_is_kept_while_something_can_shrink(share: float) -> None:
    policy = parse_policy({"name": "thinkv", "budget": {"bytes": share}})
    size = sizes(policy.storage, 1, 28, 4, 128, 2)
    for row in trajectory(policy, 2_000, 2_000, size):
        held = row.hbm * size.token + size.packed_bytes(row.packed, row.coarse)
        bottom = all(segment.size <= 4 for segment in row.thoughts.segments)
        assert bottom or held <= share * row.seen * size.token
    assert row.packed > 0


def test_transitions_are_never_stored_in_more_bits() -> None:
    with pytest.raises(PolicyError, match="transition_bits 4 is above packed_bits 2; allowed: as many or fewer"):
        parse_policy({**SMALL, "packed_bits": 2, "transition_bits": 4})
    with pytest.raises(PolicyError, match="pack_thoughts quantises thoughts as they end; give segment"):
        parse_policy({"name": "h2o", "budget": 8, "pack_thoughts": True})


@given(st.floats(0.05, 0.2), st.floats(0.25, 0.35), st.floats(0.25, 0.35), st.integers(0, 1000))
@settings(max_examples=40, deadline=None)
def test_thresholds_lie_between_the_modes(first: float, gap: float, next_gap: float, seed: int) -> None:
    centres = [first, first + gap, first + gap + next_gap]
    draws = np.random.default_rng(seed).normal(centres, 0.01, size=(400, 3)).ravel()
    low, high = minima(draws)
    assert centres[0] < low < centres[1] < high < centres[2]


def test_steps_that_are_all_alike_have_no_threshold() -> None:
    assert minima([0.5] * 100) == []
    assert minima(np.random.default_rng(0).normal(0.5, 0.02, 2_000)) == []


def test_calibration_sees_what_the_scorer_sees() -> None:
    """Every decode step of every row, as the reference has it."""
    batch, found = requests(prompts(21, 5), new=40), []
    engine = Engine(loaded("llama"))
    listener = _Listener()
    policy = {**SMALL, "budget": 1.0, "pack_thoughts": False, "faint": 0.1, "transition_above": 1.0}
    list(engine.run(batch, parse_policy(policy), listener))
    for request in batch:
        state = Listening.of(policy, request.prompt, request.seed)
        found += state.found
    assert sorted(listener.found) == pytest.approx(sorted(found))
    assert calibrate(engine, batch, faint=0.1) == pytest.approx(minima(found))
    with pytest.raises(PolicyError, match="needs 32 or more"):
        calibrate(engine, requests(prompts(5), new=4))


class Listening(Thinker):
    """Notes the sparsity of each decode step."""

    @classmethod
    def of(cls, policy: dict[str, object], prompt: tuple[int, ...], seed: int) -> "Listening":
        return oracle.generate(tiny("llama"), parse_policy(policy), prompt, 40, seed, cls)[1]

    def step(self) -> None:
        super().step()
        self.found = [*getattr(self, "found", []), *([self.sparsity] if self.seen > self.prompt else [])]
