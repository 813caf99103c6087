"""What lies between a layer's products, in C against torch in float64."""

import shutil

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from tiercache.kernels.layer import Operations, fits, operations
from tiercache.lean import ON_TORCH

pytestmark = pytest.mark.skipif(
    not any(map(shutil.which, ("cc", "gcc", "clang"))), reason="no C compiler: torch's operations are used"
)
EXACT = {"rtol": 2e-6, "atol": 1e-7}
SEEDS = st.integers(0, 2**32)


def ours() -> Operations:
    found = operations()
    assert found is not None
    return found


def random(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 3


@settings(deadline=None)
@given(seed=SEEDS, rows=st.integers(1, 5), n=st.integers(1, 4), width=st.integers(1, 20).map(lambda w: 8 * w))
def test_the_norm(seed: int, rows: int, n: int, width: int) -> None:
    x, weight = random(seed, rows, n, width), random(seed + 1, width)
    expected = F.rms_norm(x.double(), (width,), weight.double(), 1e-6)
    assert_close(ours().norm(x, weight, 1e-6).double(), expected, **EXACT)
    spread = random(seed, rows, n, width + 3)[..., :width]
    assert_close(ours().norm(spread, weight, 1e-6), ours().norm(spread.contiguous(), weight, 1e-6), rtol=0, atol=0)


@settings(deadline=None)
@given(seed=SEEDS, rows=st.integers(1, 3), n=st.integers(1, 4), heads=st.integers(1, 4), half=st.sampled_from([8, 24]))
def test_norms_and_rotations_of_heads_in_place(seed: int, rows: int, n: int, heads: int, half: int) -> None:
    """Of the first heads only; others' floats beside them stay as they are. Angles of each row, or of all alike."""
    dim = 2 * half
    for alike in (True, False):
        states, (weight, other) = random(seed, rows, n, heads + 2, dim), random(seed + 1, 2, dim)
        before = states.clone()
        cos, sin = (random(seed + i, 1 if alike else rows, 1, n, dim) for i in (2, 3))
        both = states[:, :, :heads]
        assert ours().norm_heads(both, 1, weight, other, 1e-6) is both
        assert ours().rotate(both, cos, sin) is both
        x = ON_TORCH.norm_heads(before[:, :, :heads].double(), 1, weight.double(), other.double(), 1e-6)
        turned = torch.cat([x[..., half:], x[..., :half]], dim=-1)
        wide = [each.double().transpose(1, 2) for each in (cos, sin)]
        assert_close(states[:, :, :heads].double(), x * wide[0] + turned * wide[1], rtol=1e-5, atol=1e-5)
        assert torch.equal(states[:, :, heads:], before[:, :, heads:])


@settings(deadline=None)
@given(seed=SEEDS, rows=st.integers(1, 5), width=st.integers(1, 20).map(lambda w: 8 * w))
def test_the_gate(seed: int, rows: int, width: int) -> None:
    both = random(seed, rows, 1, 2 * width) * 10
    both[0, 0, :4] = torch.tensor([-200.0, 200.0, 0.0, -85.5])
    expected = F.silu(both[..., :width].double()) * both[..., width:].double()
    assert_close(ours().gate(both).double(), expected, rtol=2e-6, atol=1e-30)
    both[-1, 0, 1] = float("nan")
    assert ours().gate(both)[-1, 0, 1].isnan()


def test_a_row_has_the_same_bits_alone_and_on_several_threads() -> None:
    x, weight = random(1, 300, 1, 256), random(2, 128)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        norm, gate = ours().norm(x[..., :128], weight, 1e-6), ours().gate(x)
    finally:
        torch.set_num_threads(before)
    for row in (0, 17, 299):
        assert torch.equal(ours().norm(x[row : row + 1, :, :128], weight, 1e-6)[0], norm[row])
        assert torch.equal(ours().gate(x[row : row + 1])[0], gate[row])


def test_what_they_take() -> None:
    hidden = torch.zeros(2, 1, 64)
    cos = torch.zeros(1, 1, 1, 16)
    assert fits(hidden, cos, 16, 96)
    assert not fits(hidden, cos, 24, 96), "half of a head is no whole vector"
    assert not fits(hidden[..., :60], cos, 16, 96)
    assert not fits(hidden, cos, 16, 90)
    assert not fits(hidden.double(), cos, 16, 96)
    assert not fits(hidden, cos.double(), 16, 96)
