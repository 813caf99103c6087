"""SnapKV, TOVA, R-KV and G-KV against their definitions in loops."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from windowed_reference import Head, gkv, gkv_memory, head, places, rkv, scorer, snapkv, views

from tiercache.scorers import Observed, ObservedPrefill, Part, View


def agree(view: View, got: Tensor, reference: Callable[[Head, list[int], tuple[int, int, int]], list[float]]) -> None:
    assert got.shape == view.pos.shape
    assert torch.isfinite(got).all()
    for place in places(view):
        one, held = head(view, *place)
        np.testing.assert_allclose(got[place][held].numpy(), reference(one, held, place), rtol=1e-9, atol=1e-12)


KERNELS = st.sampled_from([1, 3, 5, 7])


@settings(max_examples=120, deadline=None)
@given(views(), KERNELS, st.sampled_from(["avg", "max"]))
def test_snapkv_is_its_definition(drawn: tuple[View, int], kernel: int, kind: str) -> None:
    view, window = drawn
    made = scorer("snapkv", view, queries=window, kernel=kernel, pool=kind)
    agree(view, made.score(view), lambda one, *_: snapkv(one, made.signal))


@settings(max_examples=120, deadline=None)
@given(
    views(),
    KERNELS,
    st.sampled_from(["paper", "repository"]),
    st.sampled_from([0.0, 0.07, 0.1, 0.5, 1.0]),
    st.sampled_from([-0.51, 0.49, 0.87]),  # no cosine of the tied keys lies on a threshold
    st.integers(0, 3),
    st.sampled_from([0.0, 0.1, 0.5]),
)
def test_rkv_is_its_definition(
    drawn: tuple[View, int], kernel: int, recipe: str, mix: float, threshold: float, spared: int, share: float
) -> None:
    view, window = drawn
    options = {"mix": mix, "threshold": threshold, "spared": spared, "spared_share": share, "recipe": recipe}
    made = scorer("rkv", view, queries=window, kernel=kernel, **options)
    agree(view, made.score(view), lambda one, *_: rkv(one, made.signal))


@settings(max_examples=120, deadline=None)
@given(views(), KERNELS, st.sampled_from([0.0, 0.5, 0.8, 1.0]), st.sampled_from([0.0, 0.5, 1.0]), st.integers(0, 2))
def test_gkv_is_its_definition(drawn: tuple[View, int], kernel: int, decay: float, mix: float, spared: int) -> None:
    view, window = drawn
    made = scorer("gkv", view, queries=window, kernel=kernel, decay=decay, mix=mix, spared=spared, threshold=0.49)
    old, new = view.fields["memory"], made.remember(view)["memory"]
    assert set(made.fields()) == {"memory"}
    agree(view, new, lambda one, held, place: gkv_memory(one, made.signal, old[place][held].tolist()))
    view = replace(view, fields={"memory": new})
    agree(view, made.score(view), lambda one, held, place: gkv(one, made.signal, new[place][held].tolist()))


@settings(max_examples=120, deadline=None)
@given(views(), st.integers(1, 5), st.integers(0, 2**32))
def test_tova_is_the_newest_row_and_nothing_else(drawn: tuple[View, int], chunk: int, seed: int) -> None:
    view, _ = drawn
    made = scorer("tova", view)
    rng = torch.Generator().manual_seed(seed)
    layers, rows, heads, slots = view.pos.shape
    group = made.facts.geometry.query_heads // heads

    def mean(field: torch.Tensor) -> torch.Tensor:
        """What the score makes of a field [rows, KV heads, slots]."""
        return made.score(replace(view, fields={"last": field.expand(layers, -1, -1, -1)}))[0]

    last = torch.full((heads, slots), 7.0, dtype=torch.float64)  # what an earlier step left
    weights = torch.rand(heads, group, chunk, slots, dtype=torch.float64, generator=rng)
    real = 1 + seed % chunk
    made.observe_prefill(ObservedPrefill(0, {"last": last}, weights, torch.arange(chunk) < real, 0))
    for h in range(heads):
        for s in range(slots):
            expected = sum(float(w[real - 1, s]) for w in weights[h]) / group
            assert float(mean(last.expand(rows, -1, -1))[0, h, s]) == pytest.approx(expected)
    row = torch.rand(rows, heads, group, slots, dtype=torch.float64, generator=rng)
    fields = [torch.full((rows, heads, part.shape[-1]), 7.0, dtype=torch.float64) for part in row.split(9, dim=-1)]
    parts = [
        Part({"last": field}, view.pos[0], view.pos[0], part)
        for field, part in zip(fields, row.split(9, -1), strict=True)
    ]
    made.observe(Observed(0, row, parts, view.seen, {}, 1.0))
    torch.testing.assert_close(mean(torch.cat(fields, dim=-1)), row.mean(2))
