"""The single measures, each against loops over its definition."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tiercache.diagnostics.churn import selection_churn
from tiercache.diagnostics.compare import output_error
from tiercache.diagnostics.fmm import future_missed_mass
from tiercache.diagnostics.lir import reactivation, wanted_windows
from tiercache.policy import parse_policy
from tiercache.quantize import formats


@given(st.integers(0, 10**6), st.integers(1, 6), st.integers(1, 9), st.integers(0, 3))
@settings(max_examples=100, deadline=None)
def test_missed_mass_in_loops(seed: int, horizon: int, n: int, sinks: int) -> None:
    random = torch.Generator().manual_seed(seed)
    mass = torch.rand(2, horizon, n, generator=random, dtype=torch.float64)
    held = torch.rand(2, n, generator=random) < 0.5
    ratio, by_step = future_missed_mass(mass, held, sinks)
    for head in range(2):
        kept = list(range(sinks, n))
        total = [sum(float(mass[head, t, i]) for i in kept) for t in range(horizon)]
        missed = [sum(float(mass[head, t, i]) for i in kept if not held[head, i]) for t in range(horizon)]
        if not kept:
            assert math.isnan(ratio[head])
            continue
        assert float(ratio[head]) == pytest.approx(sum(missed) / sum(total))
        assert float(by_step[head]) == pytest.approx(sum(m / t for m, t in zip(missed, total, strict=True)) / horizon)


@given(st.sets(st.integers(0, 11)), st.sets(st.integers(0, 11)))
@settings(max_examples=100, deadline=None)
def test_churn_is_the_jaccard_distance(a: set[int], b: set[int]) -> None:
    masks = [torch.tensor([i in each for i in range(12)]) for each in (a, b)]
    expected = 1 - len(a & b) / len(a | b) if a | b else 0.0
    assert float(selection_churn(*masks)) == pytest.approx(expected)
    assert float(selection_churn(masks[0], masks[0])) == 0
    assert float(selection_churn(masks[0], ~masks[0])) == 1


def test_reactivation_by_hand() -> None:
    """The first run of zeros is eligible and rescued after 2; the second starts too late to be followed."""
    row = [1, 0, 0, 0, 0, 0, 1, *[0] * 10]
    found = reactivation([row], patience=4, follow=8)
    assert (found.rescued, found.eligible, found.waits, found.rate) == (1, 1, (2,), 1.0)
    assert reactivation([row], 4, None).eligible == 2
    assert reactivation([[-1] * 17, [1] * 17], 4, 8).rate is None
    never = [0] * 17
    assert (reactivation([never], 4, 8).rescued, reactivation([never], 4, 8).eligible) == (0, 1)
    late = [1, *[0] * 12, 1, 1, 1, 1]  # back after 12 misses: more than 4 - 1 + 8
    assert (reactivation([late], 4, 8).rescued, reactivation([late], 4, 8).eligible) == (0, 1)
    hidden = [1, 0, 0, 0, 0, -1, 1, *[1] * 10]
    assert (reactivation([hidden], 4, 8).rescued, reactivation([hidden], 4, 8).eligible) == (0, 1)


@given(st.lists(st.sampled_from([-1, 0, 0, 0, 1]), max_size=40), st.integers(1, 5), st.integers(0, 9))
@settings(max_examples=200, deadline=None)
def test_reactivation_event_by_event(row: list[int], patience: int, follow: int) -> None:
    """As it would be counted while the events go by."""
    eligible = rescued = 0
    for dead in range(len(row)):  # the event at which patience runs out
        run = row[max(0, dead - patience + 1) : dead + 1]
        begins = dead - patience < 0 or row[dead - patience] != 0
        if run != [0] * patience or not begins or dead + follow >= len(row):
            continue
        eligible += 1
        for value in row[dead + 1 : dead + 1 + follow]:
            if value != 0:
                rescued += value == 1
                break
    found = reactivation([row], patience, follow)
    assert (found.eligible, found.rescued) == (eligible, rescued)


@given(st.lists(st.integers(-1, 3), min_size=1, max_size=12), st.integers(0, 12))
@settings(max_examples=100, deadline=None)
def test_wanted_windows_are_the_heaviest_and_of_equals_the_newest(masses: list[int], count: int) -> None:
    """-1 stands for a window that can't be observed."""
    observable = [w for w, mass in enumerate(masses) if mass >= 0]
    best = sorted(observable, key=lambda w: (-masses[w], -w))[:count]
    expected = [int(w in best) if w in observable else -1 for w in range(len(masses))]
    mass = torch.tensor(masses, dtype=torch.float64)
    budget = torch.tensor(min(count, len(observable)))
    assert wanted_windows(mass, mass >= 0, budget).tolist() == expected


@pytest.mark.parametrize("bits", [8, 4])
def test_output_error_with_quantised_tokens_in_numpy(bits: int) -> None:
    random = torch.Generator().manual_seed(bits)
    query, keys, values = (torch.randn(n, 8, generator=random, dtype=torch.float64) for n in (3, 9, 9))
    held, packed = (torch.rand(3, 9, generator=random) < share for share in (0.8, 0.4))
    packed &= held
    kind = formats(
        parse_policy({"name": "hierarchy", "hbm": 0.3, "evict": 0, "packed": 0.5, "packed_bits": bits}).storage, 1, 8
    )["k"]
    rough = [kind.unpack(*kind.pack(side).values(), torch.float64) for side in (keys, values)]
    found = output_error(query @ keys.T, values, held, [(packed, query @ rough[0].T, rough[1])])
    for i in range(3):
        weights = np.exp((query[i] @ keys.T).numpy())
        exact = weights @ values.numpy() / weights.sum()
        total, out = 0.0, np.zeros(8)
        for j in range(9):
            key, value = (rough[0][j], rough[1][j]) if packed[i, j] else (keys[j], values[j])
            weight = math.exp(float(query[i] @ key)) * bool(held[i, j])
            total, out = total + weight, out + weight * value.numpy()
        expected = np.linalg.norm(out / total - exact) / np.linalg.norm(exact)
        assert float(found[i]) == pytest.approx(expected)
