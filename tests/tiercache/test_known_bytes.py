"""Arithmetic of the literature that the capacity model has to reproduce: bytes, windows, pages, steady states."""

import pytest
import torch

from tiercache.footprint import footprint
from tiercache.pages import PageBounds
from tiercache.placement import protected_intervals, trajectory
from tiercache.policy_text import read_policy
from tiercache.shapes import KNOWN
from tiercache.sizes import sizes
from tiercache.store import Geometry

LLAMA_8B = KNOWN["meta-llama/Llama-3.1-8B-Instruct"]


@pytest.mark.parametrize(
    ("bits", "group", "per_element"), [(2, 32, 3.0), (2, 64, 2.5), (2, 128, 2.25), (4, 32, 5.0), (4, 64, 4.5)]
)
def test_bits_of_an_element_under_kivi(bits: int, group: int, per_element: float) -> None:
    """Codes, and a scale and a zero point of 16 bits for each group: b + 32 / G (2402.02750)."""
    policy = read_policy(f"kivi packed_bits={bits} group={group} window={group} recent={group} every={group}")
    size = LLAMA_8B.sizes(policy)
    assert 8 * size.packed / size.window == per_element * size.token / 2
    assert size.packed_bytes(2 * group) == 2 * size.packed


def test_a_window_of_qevict() -> None:
    """Eight tokens, eight KV heads of 128, one layer: 32,768 bytes in 16 bits, 4,096 of codes in two.

    A grid is 64 ranges for the paired channels of the keys and one for each token's values, four bytes each: 288 a
    head, 6,400 bytes in all, a factor of 5.12 rather than the nominal 8. A report on the prototype (2608.05326) has
    6,432: four bytes more a head.
    """
    storage, window = read_policy("qevict budget=0.2").storage, 8
    size = sizes(storage, window, layers=1, kv_heads=8, head_dim=128, itemsize=2)
    assert window * size.token == 32_768
    codes = window * 8 * 2 * 128 * 2 // 8
    assert codes == 4096
    assert size.packed == codes + 8 * (64 + window) * 4 == 6400
    assert window * size.token / size.packed == 5.12


@pytest.mark.parametrize(("ratio", "candidates"), [(0.03, 2133), (0.05, 1280), (0.1, 640), (0.2, 320)])
def test_where_a_compounding_ratio_settles(ratio: float, candidates: int) -> None:
    """64 tokens come between two events, so as many leave once a ratio of the candidates is 64: at 64 / r of them."""
    policy = read_policy(f"hierarchy hbm=0.5 evict={ratio}")
    *_, row = trajectory(policy, 64, 64 * 300)
    protected = sum(stop - start for start, stop in protected_intervals(policy.placement, row))
    after = row.live - protected
    assert after + 64 == pytest.approx(candidates, rel=0.01)


def test_pages_of_raas() -> None:
    """1,024 tokens in pages of 16: 64 pages, the prompt's among them."""
    found = footprint(read_policy("raas budget=1024"), 128, 4000)
    assert 1024 - 16 < found.full_end - found.evicted_end <= 1024
    assert found.hbm_peak <= 1024 + 1, "the newest token comes before another page leaves"


def test_what_the_bounds_of_quest_take() -> None:
    """Two vectors for each page of 16 keys: an eighth of the keys, a sixteenth of keys and values."""
    g = Geometry(layers=2, query_heads=8, kv_heads=2, head_dim=128, dtype=torch.float16)
    pages = PageBounds(g, 16, torch.device("cpu"))
    pages.reserve(1, 1024)
    assert pages.bytes() == 1024 * g.token_bytes // 16


def test_the_buffer_of_rkv() -> None:
    """A budget and the 128 tokens that come between two compressions (2505.24133)."""
    found = footprint(read_policy("rkv budget=512"), 100, 3000)
    assert found.hbm_peak == 512 + 128


def test_concurrency_of_epikv() -> None:
    """224 sequences of 2,048 tokens are 14 of 32,768, and 56 GiB on the Llama of 8B (2606.26472)."""
    assert 224 * 2048 == 14 * 32_768 == 458_752
    assert 458_752 * LLAMA_8B.kv_bytes_per_token() == 56 * 2**30
