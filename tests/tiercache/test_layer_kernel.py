"""Decoder layers in C against torch's float64; a row has the same bits alone, among others and on several threads."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from tiercache.kernels import layer as layers
from tiercache.kernels.layer import Kernels, LayerKernel, Packed, fits, kernels, worth_packing
from tiercache.lean import _after, _before

pytestmark = pytest.mark.skipif(
    not any(map(shutil.which, ("cc", "gcc", "clang"))), reason="no C compiler: torch's operations are used"
)
SEEDS = st.integers(0, 2**32)


def ours() -> Kernels:
    found = kernels()
    assert found is not None
    return found


def random(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@contextmanager
def threads(number: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@settings(deadline=None)
@given(seed=SEEDS, rows=st.integers(1, 40), inputs=st.integers(1, 70), outputs=st.integers(1, 70), bias=st.booleans())
def test_the_product(seed: int, rows: int, inputs: int, outputs: int, bias: bool) -> None:
    """Every number of rows that a block may have, and panels that aren't full; weights also as a view of others."""
    wide, x = random(seed, outputs, inputs + 3), random(seed + 1, rows, 1, inputs)
    more = random(seed + 2, outputs) if bias else None
    packed = Packed(ours(), wide[:, :inputs], more)
    expected = F.linear(x.double(), wide[:, :inputs].double(), more.double() if more is not None else None)
    assert_close(packed(x).double(), expected, rtol=1e-5, atol=1e-5)
    assert_close(packed(x.transpose(0, 1)), packed(x).transpose(0, 1), rtol=0, atol=0)
    for row in range(rows):
        assert torch.equal(packed(x[row : row + 1])[0], packed(x)[row])


class Shape:
    """A layer of some size with random weights; `exact` is torch's, in float64."""

    def __init__(self, seed: int, group: int, keys: int, dim: int, width: int, inner: int, biases: bool, norms: bool):
        self.queries, self.keys, self.dim, self.width, self.inner = group * keys, keys, dim, width, inner
        sizes = [
            ((self.queries + 2 * keys) * dim, width),
            (width, self.queries * dim),
            (2 * inner, width),
            (width, inner),
        ]
        self.linears = [
            (random(seed + i, *size) / size[1] ** 0.5, random(seed - i, size[0]) if biases else None)
            for i, size in enumerate(sizes)
        ]
        self.norms = [1 + random(seed + 9, width) / 4, 1 + random(seed + 8, width) / 4, None, None]
        if norms:
            self.norms[2:] = [1 + random(seed + 7, dim) / 4, 1 + random(seed + 6, dim) / 4]
        self.kernel = LayerKernel(ours(), self.linears, self.norms, (self.queries, keys, dim), 1e-6)

    def exact(self, hidden: Tensor, cos: Tensor, sin: Tensor, attended: Tensor) -> tuple[Tensor, ...]:
        (w, b), (ow, ob), (gw, gb), (dw, db) = (tuple(map(_double, pair)) for pair in self.linears)
        before, between, query_norm, key_norm = map(_double, self.norms)
        hidden, cos, sin, attended = (x.double() for x in (hidden, cos, sin, attended))
        sizes = (self.queries, self.keys, self.dim)
        parts = _before(hidden, cos, sin, before, w, b, query_norm, key_norm, sizes, 1e-6)  # type: ignore[arg-type]
        after = _after(hidden, attended, ow, ob, between, gw, gb, dw, db, 1e-6)  # type: ignore[arg-type]
        return (*parts, after)

    def inputs(self, seed: int, rows: int, n: int, alike: bool) -> tuple[Tensor, ...]:
        angles = (1 if alike else rows, 1, n, self.dim)
        return (
            3 * random(seed, rows, n, self.width),
            *(random(seed + i, *angles) for i in (1, 2)),
            random(seed + 3, rows, n, self.queries, self.dim),
        )

    def __call__(self, hidden: Tensor, cos: Tensor, sin: Tensor, attended: Tensor) -> tuple[Tensor, ...]:
        return (*self.kernel.before(hidden, cos, sin), self.kernel.after(hidden, attended))


def _double(x: Tensor | None) -> Tensor | None:
    return x.double() if x is not None else None


SHAPES = st.builds(
    Shape,
    seed=st.integers(20, 2**32),
    group=st.integers(1, 3),
    keys=st.integers(1, 3),
    dim=st.sampled_from([16, 48]),
    width=st.integers(1, 9).map(lambda w: 8 * w),
    inner=st.integers(1, 9).map(lambda w: 8 * w),
    biases=st.booleans(),
    norms=st.booleans(),
)


@settings(deadline=None)
@given(shape=SHAPES, seed=SEEDS, rows=st.integers(1, 9), n=st.integers(1, 5), alike=st.booleans())
def test_a_layer(shape: Shape, seed: int, rows: int, n: int, alike: bool) -> None:
    """Angles of each row, or of all alike."""
    given = shape.inputs(seed, rows, n, alike)
    before = [x.clone() for x in given]
    for mine, exact in zip(shape(*given), shape.exact(*given), strict=True):
        assert mine.shape == exact.shape
        assert_close(mine.double(), exact, rtol=1e-4, atol=1e-4)
    assert all(map(torch.equal, given, before)), "what came in stays as it is"
    hidden, cos, sin, attended = given
    spread = torch.cat([hidden, hidden], dim=-1)[..., : shape.width]  # not in one piece
    laid = (spread, cos.transpose(2, 3).contiguous().transpose(2, 3), sin, attended.transpose(1, 2).contiguous())
    others = shape(*laid[:3], laid[3].transpose(1, 2))
    assert all(map(torch.equal, others, shape(*given)))


@pytest.mark.parametrize("n", [1, 130])
def test_a_row_has_the_same_bits_alone_and_on_several_threads(n: int) -> None:
    """Also where rows are worked on in several goes."""
    shape = Shape(33, 3, 2, 32, 192, 320, True, True)
    rows = 300 // n
    given = shape.inputs(5, rows, n, False)
    found = shape(*given)
    with threads(3):
        assert all(map(torch.equal, shape(*given), found))
    for row in (0, rows // 2, rows - 1):
        alone = shape(*(x[row : row + 1] for x in given))
        assert all(torch.equal(one[0], all_[row]) for one, all_ in zip(alone, found, strict=True))


def test_extreme_gates() -> None:
    shape = Shape(3, 1, 1, 16, 8, 8, True, False)
    hidden, cos, sin, attended = shape.inputs(1, 2, 1, True)
    for scale in (0.0, 1e4):
        shape.linears[2] = (shape.linears[2][0] * scale, shape.linears[2][1])
        kernel = LayerKernel(ours(), shape.linears, shape.norms, (1, 1, 16), 1e-6)
        exact = shape.exact(hidden, cos, sin, attended)[3]
        assert_close(kernel.after(hidden, attended).double(), exact, rtol=1e-4, atol=1e-3)
    hidden[1, 0, 0] = float("nan")
    out = shape.kernel.after(hidden, attended)
    assert out.isnan().all(-1).flatten().tolist() == [False, True]
    assert not out[0].isnan().any()


def test_what_they_take(monkeypatch: pytest.MonkeyPatch) -> None:
    assert fits(64, 96, 16)
    assert not fits(64, 96, 24), "half of a head is no whole vector"
    assert not fits(60, 96, 16)
    assert not fits(64, 90, 16)
    weights = [torch.zeros(64, 64)]
    assert worth_packing(weights)
    assert not worth_packing([*weights, torch.zeros(1).double()])
    assert not worth_packing([torch.zeros(4, device="meta")])
    monkeypatch.setattr(layers, "MOST_BYTES", 64 * 64 * 4 - 1)
    assert not worth_packing(weights), "weights that would be large twice"


def test_weights_that_lie_in_any_way_and_torchs_own_defaults() -> None:
    wide, x = random(1, 1100, 2000)[:, ::2], random(2, 3, 1000)
    bias = random(3, 2200)[::2]
    alone = Packed(ours(), wide, bias)(x)
    assert_close(alone, F.linear(x, wide, bias), rtol=1e-4, atol=1e-4)
    torch.set_default_dtype(torch.bfloat16)
    try:
        with threads(3):  # so many weights are packed by all
            again = Packed(ours(), wide, bias)(x)
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(again, alone)
