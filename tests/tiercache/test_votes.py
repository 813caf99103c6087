"""Votes of the newest queries, in C against torch in float64."""

import shutil

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from tiercache.kernels.votes import fits, votes

pytestmark = pytest.mark.skipif(
    not any(map(shutil.which, ("cc", "gcc", "clang"))), reason="no C compiler: torch's operations are used"
)


def plainly(query, query_pos, keys, pos, scaling, largest):  # type: ignore[no-untyped-def]
    rows, heads, _, dim = keys.shape
    grouped = query.double().reshape(rows, heads, -1, query.shape[2], dim)
    logits = torch.einsum("rhgwd,rhsd->rhgws", grouped, keys.double()) * scaling
    sees = (pos[:, :, None] >= 0) & (pos[:, :, None] <= query_pos[:, None, :, None])
    shares = torch.softmax(logits.masked_fill(~sees.unsqueeze(2), float("-inf")), -1).nan_to_num(0.0)
    return (shares.amax(2) if largest else shares.sum(2)).sum(2)


@settings(deadline=None)
@given(
    seed=st.integers(0, 2**32),
    rows=st.integers(1, 3),
    heads=st.integers(1, 2),
    group=st.integers(1, 3),
    window=st.integers(1, 9),
    used=st.integers(1, 150),
    dim=st.sampled_from([8, 24, 32]),
    threads=st.sampled_from([1, 2]),
)
def test_they_are_the_sums_of_the_attention(seed, rows, heads, group, window, used, dim, threads) -> None:
    """Free slots, a ring that isn't full, queries that see nothing, tensors wider than what is looked at."""
    g = torch.Generator().manual_seed(seed)
    query = torch.randn(rows, heads * group, window + 2, dim, generator=g)[:, :, :window] * 2
    keys = torch.randn(rows, heads, used + 5, dim, generator=g)[:, :, :used]
    pos = torch.randint(-3, used, (rows, heads, used + 5), generator=g).clamp_min(-1).int()[..., :used]
    query_pos = torch.randint(-1, used, (rows, window), generator=g)
    kernel, before = votes(), torch.get_num_threads()
    assert kernel is not None
    assert fits(query, keys, pos)
    try:
        torch.set_num_threads(threads)
        for largest in (False, True):
            found = kernel(query, query_pos, keys, pos, 0.3, largest)
            assert_close(found.double(), plainly(query, query_pos, keys, pos, 0.3, largest), rtol=1e-5, atol=1e-5)
    finally:
        torch.set_num_threads(before)


def test_what_they_take() -> None:
    query, keys, pos = torch.zeros(1, 2, 3, 8), torch.zeros(1, 1, 5, 8), torch.zeros(1, 1, 5, dtype=torch.int32)
    assert fits(query, keys, pos)
    assert not fits(query.double(), keys.double(), pos)
    assert not fits(query[..., :4], keys[..., :4], pos)
