"""How many tokens go where: known answers and properties that hold for every policy and length."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import POLICIES

from tiercache.footprint import footprint
from tiercache.placement import RowTiers, next_move, protected_intervals, trajectory
from tiercache.policy import parse_policy
from tiercache.ranking import inside, unprotected

# Share of generated tokens evicted when a ratio is re-applied to the survivors every 64 steps, with 4 sinks and 128
# recent tokens: computed independently from the loop of the hierarchy paper's prototype (2605.09490).
COMPOUNDED = {
    1024: (171, 265, 445, 645),
    1422: (327, 491, 766, 1021),
    2048: (669, 954, 1360, 1660),
    2781: (1134, 1544, 2048, 2364),
    4096: (2195, 2790, 3388, 3708),
}


@pytest.mark.parametrize("generated", COMPOUNDED)
def test_compounding_known_answers(generated: int) -> None:
    got = [
        footprint(parse_policy({"name": "hierarchy", "hbm": 0.5, "evict": ratio}), 50, generated).evicted_end
        for ratio in (0.03, 0.05, 0.10, 0.20)
    ]
    assert tuple(got) == COMPOUNDED[generated]


def test_cumulative_ratio_means_what_it_says() -> None:
    policy = parse_policy({"name": "hierarchy", "hbm": 0.5, "evict": 0.1, "compound": False})
    end = list(trajectory(policy, 50, 2048))[-1]
    eligible = 2048 - 4 - 128
    assert end.evicted == eligible // 10


@pytest.mark.parametrize(
    ("entry", "kept"),
    [
        ({"name": "streaming", "budget": 64}, 64),
        ({"name": "streaming", "budget": 0.25}, 75),
        ({"name": "h2o", "budget": 0.5}, 150),
        ({"name": "h2o", "budget": 0.5, "pin_prompt": True}, 200),
        ({"name": "random", "budget": 120}, 120),
        ("full", 300),
    ],
)
def test_budget_is_kept_exactly(entry: object, kept: int) -> None:
    """100 prompt tokens and 200 generated."""
    assert list(trajectory(parse_policy(entry), 100, 200))[-1].live == kept  # type: ignore[arg-type]


@settings(max_examples=60, deadline=None)
@given(name=st.sampled_from(sorted(POLICIES)), prompt=st.integers(1, 90), generated=st.integers(0, 150))
def test_tiers_partition_the_seen_tokens_and_eviction_is_final(name: str, prompt: int, generated: int) -> None:
    policy = parse_policy(POLICIES[name])
    evicted = peak = 0
    for step, row in enumerate(trajectory(policy, prompt, generated)):
        assert row.seen == prompt + step
        assert row.hbm + row.ddr + row.packed + row.evicted == row.seen
        assert min(row.hbm, row.ddr, row.packed) >= 0
        assert row.evicted >= evicted
        evicted, peak = row.evicted, max(peak, row.hbm)  # what is left after each event
        spans = protected_intervals(policy.placement, row)
        if policy.placement.chunk is None:  # else what a chunk has lost lies inside a span
            assert sum(stop - start for start, stop in spans) <= row.hbm
        assert all(a < b for a, b in spans)
        assert all(first[1] < second[0] for first, second in pairwise(spans))
        assert spans[-1][1] == row.seen, "the newest token is always protected"
        budget, every = policy.placement.budget, policy.schedule.every
        if budget is not None and budget.tokens and not policy.placement.pin_prompt and every:
            assert row.live < budget.tokens + every, "at most the documented buffer above the budget"
    found = footprint(policy, prompt, generated)
    assert found.hbm_peak >= peak
    assert found.evicted_end == evicted
    assert found.prompt == prompt


@settings(max_examples=120, deadline=None)
@given(name=st.sampled_from(sorted(POLICIES)), prompt=st.integers(1, 90), generated=st.integers(0, 400))
def test_a_footprint_is_what_the_trajectory_holds(name: str, prompt: int, generated: int) -> None:
    """It doesn't look at the steps between events, one by one."""
    policy = parse_policy(POLICIES[name])
    first, *steps = trajectory(policy, prompt, generated)
    found = footprint(policy, prompt, generated)
    before = [row.hbm + 1 for row in [first, *steps][:-1]]
    assert found.hbm_peak == max([first.hbm, *before, *(row.hbm for row in steps)])
    assert found.ddr_peak == max(row.ddr for row in [first, *steps])
    assert found.packed_peak[0] == max(row.packed for row in [first, *steps])
    for mean, tier in ((found.hbm_mean, "hbm"), (found.ddr_mean, "ddr"), (found.packed_mean, "packed")):
        held = [getattr(row, tier) for row in steps or [first]]
        assert mean == pytest.approx(sum(held) / len(held), abs=1e-9)


@settings(max_examples=120, deadline=None)
@given(name=st.sampled_from(sorted(POLICIES)), prompt=st.integers(1, 40), generated=st.integers(0, 60), data=st.data())
def test_candidates_are_what_lies_outside_of_all_spans(
    name: str, prompt: int, generated: int, data: st.DataObject
) -> None:
    """However many spans there are, and whether or not two comparisons are enough."""
    policy = parse_policy(POLICIES[name])
    rows = list(trajectory(policy, prompt, generated))
    chosen = data.draw(st.lists(st.sampled_from(rows), min_size=1, max_size=3))
    spans = [protected_intervals(policy.placement, row) for row in chosen]
    pos = torch.arange(-1, prompt + generated, dtype=torch.int32).expand(1, len(chosen), 1, -1).clone()
    for row, tiers in enumerate(chosen):  # a sequence holds nothing that it hasn't seen
        pos[:, row][pos[:, row] >= tiers.seen] = -1
    assert torch.equal(unprotected(pos, spans), (pos >= 0) & ~inside(pos, spans))


def test_nothing_moves_between_events() -> None:
    policy = parse_policy({"name": "hierarchy", "hbm": 0.5, "evict": 0.1, "every": 16, "recent": 4})
    row = RowTiers(prompt=10)
    row.append(10)
    moves = []
    for _ in range(64):
        row.append()
        move = next_move(policy, row)
        if move is not None:
            moves.append(row.generated)
            row.apply(move)
    assert moves == [16, 32, 48, 64]
