"""What holds for every scorer that asks the newest queries."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from windowed_reference import WINDOWED, head, places, scorer, total, views

from tiercache.errors import PolicyError
from tiercache.policy import parse_policy
from tiercache.scorers import View


@pytest.mark.parametrize("name", WINDOWED)
@settings(max_examples=40, deadline=None)
@given(drawn=views(), seed=st.integers(0, 2**32))
def test_neither_the_rings_order_nor_the_batch_matters(name: str, drawn: tuple[View, int], seed: int) -> None:
    view, window = drawn
    assert view.queries is not None
    assert view.query_pos is not None
    assert view.keys is not None
    expected = total(name, view, queries=window)
    order = torch.randperm(window, generator=torch.Generator().manual_seed(seed))
    turned = replace(view, queries=view.queries[:, :, :, order], query_pos=view.query_pos[:, order])
    torch.testing.assert_close(total(name, turned, queries=window), expected)
    for row in range(view.pos.shape[1]):
        one = slice(row, row + 1)
        alone = replace(
            view,
            pos=view.pos[:, one],
            fields={"memory": view.fields["memory"][:, one]},
            may_move=view.candidate[:, one],
            seeds=view.seeds[one],
            seen=view.seen[one],
            prompt=view.prompt[one],
            keys=view.keys[:, one],
            queries=view.queries[:, one],
            query_pos=view.query_pos[one],
        )
        torch.testing.assert_close(total(name, alone, queries=window), expected[:, one])


@pytest.mark.parametrize("name", WINDOWED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_narrow_types_are_computed_wide(name: str, dtype: torch.dtype, data: st.DataObject) -> None:
    view, window = data.draw(views(dtype))
    assert view.keys is not None
    assert view.queries is not None
    made = scorer(name, view, dtype, queries=window, **({} if name == "snapkv" else {"threshold": 0.4937}))
    view = replace(view, fields={"memory": view.fields["memory"].float()})
    if made.remembers:
        view = replace(view, fields=made.remember(view))
        assert view.fields["memory"].dtype == torch.float32
    got = made.score(view)
    assert got.dtype == torch.float32
    # The same numbers in float64: whatever is lost is lost to float32, not to the type of the keys.
    exact = replace(view, keys=view.keys.double(), queries=view.queries.double())
    wide = scorer(name, view, queries=window, **({} if name == "snapkv" else {"threshold": 0.4937}))
    torch.testing.assert_close(got.double(), wide.score(exact).double(), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", WINDOWED)
@settings(max_examples=40, deadline=None)
@given(drawn=views())
def test_the_windows_own_tokens_come_first(name: str, drawn: tuple[View, int]) -> None:
    view, window = drawn
    score = total(name, view, queries=window)
    for place in places(view):
        one, held = head(view, *place)
        own = [s for s, mine in zip(held, one.own(window), strict=True) if mine]
        past = [s for s in held if s not in own]
        assert not past or score[place][own].min() > score[place][past].max()


@settings(max_examples=40, deadline=None)
@given(views())
def test_heads_repeated_for_queries_score_as_grouped_ones(drawn: tuple[View, int]) -> None:
    """Multi-head attention with each KV head stored twice is grouped attention with groups of two."""
    view, window = drawn
    assert view.queries is not None
    assert view.keys is not None
    for name in WINDOWED:
        grouped = replace(view, queries=view.queries.repeat_interleave(2, dim=2))
        fields = {"memory": view.fields["memory"].repeat_interleave(2, dim=2)}
        keys, pos = view.keys.repeat_interleave(2, dim=2), view.pos.repeat_interleave(2, dim=2)
        repeated = replace(grouped, keys=keys, pos=pos, fields=fields)
        got = total(name, repeated, queries=window)
        if view.queries.shape[2] == view.pos.shape[2]:  # both query heads of a pair are the same
            torch.testing.assert_close(got, total(name, grouped, queries=window).repeat_interleave(2, dim=2))


def plain_view(keys: Tensor, queries: Tensor) -> View:
    """One layer, row and head: keys [n, d], queries [w, d] of the last w tokens."""
    n, w = len(keys), len(queries)
    pos = torch.arange(n, dtype=torch.int32).view(1, 1, 1, n)
    return View(
        pos=pos,
        fields={"memory": torch.zeros(1, 1, 1, n, dtype=keys.dtype)},
        may_move=pos >= 0,
        seeds=torch.zeros(1, dtype=torch.long),
        seen=torch.tensor([n]),
        prompt=torch.tensor([n]),
        keys=keys.view(1, 1, 1, n, -1),
        queries=queries.view(1, 1, 1, w, -1),
        query_pos=torch.arange(n - w, n).view(1, w),
        scaling=1.0,
    )


def test_the_newest_of_several_equal_keys_is_spared() -> None:
    keys = torch.eye(12, dtype=torch.float64)
    keys[5] = keys[8] = keys[2]  # far apart, and nothing else resembles anything
    view = plain_view(keys, torch.zeros(2, 12, dtype=torch.float64))
    score = total("rkv", view, queries=2, kernel=1)[0, 0, 0]
    assert score[2] < score[5] < score[8]
    assert score[8] == score[9]  # as good as one that resembles nothing
    equal = total("rkv", view, queries=2, kernel=1, spared=0)[0, 0, 0]
    assert equal[2] == equal[5] == equal[8] < equal[9]


def test_of_a_pair_of_equal_keys_neither_counts_against_the_other() -> None:
    """Each is the newest key that resembles the other."""
    keys = torch.eye(12, dtype=torch.float64)
    keys[8] = keys[2]
    view = plain_view(keys, torch.zeros(2, 12, dtype=torch.float64))
    score = total("rkv", view, queries=2, kernel=1)[0, 0, 0]
    assert score[2] == score[8] == score[9]


@settings(max_examples=40, deadline=None)
@given(views())
def test_rkv_without_redundancy_is_pooled_window_attention(drawn: tuple[View, int]) -> None:
    view, window = drawn
    first = replace(view, queries=view.queries[:, :, :: view.queries.shape[2] // view.pos.shape[2]])  # groups of one
    got = total("rkv", first, queries=window, kernel=1, mix=1.0)
    votes = total("snapkv", first, queries=window, kernel=1)
    existing = (view.query_pos >= 0).sum(-1).view(1, -1, 1, 1)
    past = (view.pos >= 0) & (view.pos < (view.seen - window).view(1, -1, 1, 1))
    torch.testing.assert_close(got[past], (votes / existing)[past])


def test_a_memory_fades_by_decay_and_never_below_what_is_seen_now() -> None:
    torch.manual_seed(0)
    view = plain_view(torch.randn(9, 4).double(), torch.randn(2, 4).double())
    made = scorer("gkv", view, queries=2)
    now = made.remember(view)["memory"]
    assert float(now.max()) == 1.0
    assert (now[..., -2:] == 0).all()
    high = made.remember(replace(view, fields={"memory": torch.ones_like(now)}))["memory"]
    torch.testing.assert_close(high, now.clamp_min(0.8))


@pytest.mark.parametrize("kernel", [0, 2, -3])
def test_a_kernel_is_odd(kernel: int) -> None:
    with pytest.raises(PolicyError, match="kernel"):
        parse_policy({"name": "snapkv", "budget": 64, "kernel": kernel})


def test_a_window_knob_is_not_the_placements() -> None:
    policy = parse_policy({"name": "snapkv", "budget": 64, "queries": 16})
    assert (policy.placement.window, policy.scorer.queries) == (1, 16)  # type: ignore[attr-defined]
