"""DefensiveKV against loops."""

import random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from recurring_reference import EXAMPLES, defensive_layer, facts, view

from tiercache.catalog.recurring import Defensive as DefensiveSignal
from tiercache.catalog.recurring import Lazy, Raas
from tiercache.scorers import Observed, Part, View
from tiercache.scorers.defensive import Defensive
from tiercache.scorers.lazy import Recurrence
from tiercache.scorers.raas import LastUse


def asked(scorer_view: View) -> list[list[int]]:
    assert scorer_view.query_pos is not None
    return [[n for n, at in enumerate(row) if at >= 0] for row in scorer_view.query_pos.tolist()]


@EXAMPLES
@given(
    seed=st.integers(0, 10**6),
    layers=st.integers(1, 2),
    rows=st.integers(1, 2),
    heads=st.integers(1, 3),
    group=st.integers(1, 3),
    slots=st.integers(1, 18),
    window=st.integers(1, 6),
    kernel=st.sampled_from([1, 3, 5]),
    guarantee=st.sampled_from([0.0, 0.3, 0.6, 0.9]),
    released=st.booleans(),
    projected=st.booleans(),
)
def test_defensive_scores_as_the_loops_do(
    seed: int,
    layers: int,
    rows: int,
    heads: int,
    group: int,
    slots: int,
    window: int,
    kernel: int,
    guarantee: float,
    released: bool,
    projected: bool,
) -> None:
    rng, dim, scaling = random.Random(seed), 4, 0.5
    torch.manual_seed(seed)
    wide = {"dtype": torch.float64}
    weights = torch.randn(layers, 7, heads * group * dim, **wide)
    output = {"output_weight": lambda layer: weights[layer]} if projected else {}
    signal = DefensiveSignal(scorer="defensive", queries=window, kernel=kernel, guarantee=guarantee, released=released)
    scorer = Defensive(signal, facts(layers, heads, group, dim, **output))
    assert scorer.query_window == window
    seen = [slots + rng.randint(0, 5) for _ in range(rows)]
    pos = torch.full((layers, rows, heads, slots), -1, dtype=torch.int32)
    for layer, r, h in np.ndindex(layers, rows, heads):
        newest = list(range(max(0, seen[r] - window), seen[r]))[-slots:]
        older = [i for i in range(newest[0]) if rng.random() < 0.8][: slots - len(newest)]
        held = torch.tensor(older + newest, dtype=torch.int32)
        pos[layer, r, h, : len(held)] = held
    keys, values = (torch.randn(layers, rows, heads, slots, dim, **wide) * 2 for _ in range(2))
    queries = torch.randn(layers, rows, heads * group, window, dim, **wide) * 2
    places = [[at if (at := seen[r] - 1 - n) >= 0 else -1 for n in range(window)] for r in range(rows)]
    for row in places:
        rng.shuffle(row)
    full = view(
        pos, {}, seen, keys=keys, values=values, queries=queries, query_pos=torch.tensor(places), scaling=scaling
    )
    got = scorer.score(full)
    assert got.isfinite().all()
    for layer, r in np.ndindex(layers, rows):
        counts = [int((pos[layer, r, h] >= 0).sum()) for h in range(heads)]
        real = asked(full)[r]
        expected = defensive_layer(
            signal,
            [keys[layer, r, h, : counts[h]].numpy() for h in range(heads)],
            [values[layer, r, h, : counts[h]].numpy() for h in range(heads)],
            queries[layer, r][:, real].numpy(),
            [places[r][n] for n in real],
            [pos[layer, r, h, : counts[h]].tolist() for h in range(heads)],
            weights[layer].numpy() if projected else None,
            seen[r],
            scaling,
        )
        for h in range(heads):
            assert got[layer, r, h, : counts[h]].tolist() == pytest.approx(expected[h], abs=1e-9)


def one_query(attention: list[float], dtype: torch.dtype = torch.float64, **knobs: object) -> torch.Tensor:
    """Scores of a single head whose one query gives its tokens exactly this attention; the last token is the window."""
    n = len(attention)
    query = torch.tensor(attention, dtype=torch.float64).log().to(dtype).view(1, 1, 1, 1, n)
    scorer = Defensive(DefensiveSignal(scorer="defensive", queries=1, kernel=1, **knobs), facts(1, 1, 1, n, dtype))
    pos = torch.arange(n, dtype=torch.int32).view(1, 1, 1, n)
    keys = torch.eye(n, dtype=dtype).view(1, 1, 1, n, n)
    return scorer.score(
        view(pos, {}, [n], keys=keys, values=keys, queries=query, query_pos=torch.tensor([[n - 1]]), scaling=1.0)
    ).flatten()


def test_nobody_is_below_the_average() -> None:
    """Before the window: 0.01, 0.6, 0.09, 0.1; their mean is 0.2."""
    got = one_query([0.01, 0.6, 0.09, 0.1, 0.2], guarantee=0.0)
    assert got.tolist() == pytest.approx([0.2, 0.6, 0.2, 0.2, 2.6])


def test_guaranteed_are_those_before_the_token_that_reaches_the_share() -> None:
    """The window holds 0.2, so 0.7 are left to reach; shares of the rest are 0.0125, 0.5, 0.1875 and 0.3."""
    got = one_query([0.01, 0.4, 0.15, 0.24, 0.2], guarantee=0.9)
    assert got.tolist() == pytest.approx([0.2, 0.4 + 0.5, 0.2, 0.24, 2.4])  # 0.5 + 0.3 reaches it
    two = one_query([0.01125, 0.45, 0.16875, 0.27, 0.1], guarantee=1.0)  # the same shares, 0.9 left to reach
    assert two.tolist() == pytest.approx([0.225, 0.45 + 0.5, 0.225, 0.45 + 0.3, 2.45])
    low = one_query([0.01, 0.4, 0.15, 0.24, 0.2], guarantee=0.1)
    assert low.tolist() == pytest.approx([0.2, 0.4, 0.2, 0.24, 2.4]), "nothing is left to guarantee"


def test_a_head_that_looks_at_nothing_before_the_window_guarantees_nothing() -> None:
    """Its shares are 0 and never reach anything; `released` measures the window's own attention elsewhere, as 0."""
    signal = DefensiveSignal(scorer="defensive", queries=1, kernel=1, released=True)
    scorer = Defensive(signal, facts(1, 2, 1, 4))
    pos = torch.arange(4, dtype=torch.int32).expand(1, 1, 2, 4).contiguous()
    keys = torch.eye(4, dtype=torch.float64).expand(1, 1, 2, 4, 4).contiguous()
    query = torch.tensor([[-5000.0, -5000, -5000, 0], [0, 0, -5000, 0]], dtype=torch.float64).view(1, 1, 2, 1, 4)
    places = torch.tensor([[3]])
    got = scorer.score(view(pos, {}, [4], keys=keys, values=keys, queries=query, query_pos=places, scaling=1.0))
    assert got[0, 0, 0, :3].tolist() == [0, 0, 0]
    assert got[0, 0, 1, 0] > 0.3


def test_guaranteed_come_before_any_other_and_the_window_before_them() -> None:
    got = one_query([0.3, 0.05, 0.25, 0.1, 0.2, 0.1], guarantee=0.7)
    ranked = got.argsort(descending=True).tolist()
    assert ranked[0] == 5
    assert ranked[1:3] == [0, 2]
    assert (got[[0, 2]] > got[[1, 3, 4]].max()).all()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("attention", [[1.0], [0.5, 0.5], [0.999999, 1e-6], [1e-30, 1.0]])
@pytest.mark.parametrize("released", [False, True])
def test_defensive_with_at_most_one_candidate_has_no_nan(
    dtype: torch.dtype, attention: list[float], released: bool
) -> None:
    got = one_query(attention, dtype, released=released)
    assert got.isfinite().all()
    assert got.argmax() == len(attention) - 1, "the window comes first"


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_raas_and_lazy_with_one_slot_have_no_nan(dtype: torch.dtype) -> None:
    pos = torch.tensor([[[7]]], dtype=torch.int32)
    raas = LastUse(Raas(scorer="raas"), facts(1, 1, 2, 4, dtype))
    lazy = Recurrence(Lazy(scorer="lazy"), facts(1, 1, 2, 4, dtype))
    for scorer in (raas, lazy):
        fields = {name: torch.zeros(1, 1, 1, dtype=kind) for name, kind in scorer.fields().items()}
        part = Part(fields, pos, torch.ones(1, 1, 1, 4, dtype=dtype), torch.ones(1, 1, 2, 1))
        query = torch.ones(1, 1, 2, 4, dtype=dtype)
        scorer.observe(Observed(0, query, [part], torch.tensor([7]), {}, 0.5))
        planes = {name: plane[None] for name, plane in fields.items()}
        assert scorer.score(view(pos[None], planes, [8])).isfinite().all()
        assert fields["used"].item() == 8, "the only page and the only token are used"
