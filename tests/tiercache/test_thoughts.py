"""ThinKV: the retention ladder by hand, k-means in loops, and the whole policy against the slow reference."""

import math

import oracle
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import generate, loaded, prompts, requests, tiny

from tiercache.errors import PolicyError
from tiercache.placement import RowTiers, due_moves, trajectory
from tiercache.policy import parse_policy
from tiercache.scorers.thinkv import representatives
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
        elif generated % rules.segment == 0:
            kind = REASONING
            if self.sparsity < self.policy.scorer.execution_below:
                kind = EXECUTION
            elif self.sparsity > self.policy.scorer.transition_above:
                kind = TRANSITION
            self.kinds.add(kind)
            self.closed.append((range(self.seen - rules.segment, self.seen), kind))
            if kind == TRANSITION:
                for segment, _ in self.closed[:-1]:
                    self.shrink(segment)
        while len(self.live[0, 0]) > self.limit():
            able = sorted((kind, segment.start, segment) for segment, kind in self.closed if self.below(segment))
            if not able:
                break
            self.shrink(able[0][2])

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


@pytest.mark.parametrize("entry", [SMALL, MIXED, {**MIXED, "budget": 0.5}], ids=["small", "mixed", "ratio"])
def test_same_tokens_as_the_slow_reference(entry: dict[str, object]) -> None:
    policy, kinds = parse_policy(entry), set()
    for request in requests(prompts(21, 5), new=60):
        expected, state = oracle.generate(tiny("llama"), policy, request.prompt, 60, request.seed, Thinker)
        got = generate(loaded("llama"), [request], policy)[0]
        assert list(got.tokens) == expected
        assert {len(tokens) for tokens in state.live.values()} == {got.ledger.hbm_tokens}
        kinds |= state.kinds
    assert entry is SMALL or len(kinds) > 1, "the test must meet several kinds"


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
