"""The C kernel for decode attention: equal to the plain formula, and each row's bits its own."""

import math
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from attention_reference import close, plain
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from tiercache.kernels import Visible, build, decode_attention, native
from tiercache.kernels.table import RowTable, reads
from tiercache.packed_store import PackedStore
from tiercache.quantize import Format
from tiercache.rowstate import QueryWindow
from tiercache.store import Geometry, TierStore

pytestmark = pytest.mark.skipif(
    not any(map(shutil.which, ("cc", "gcc", "clang"))), reason="no C compiler: torch's kernels are used"
)


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    again()
    yield
    again()


def again() -> None:
    """As if nobody had asked for the library yet."""
    build.library.cache_clear()
    native.kernel.cache_clear()


@given(
    seed=st.integers(0, 2**32),
    extents=st.lists(st.integers(0, 300), min_size=1, max_size=4),
    heads=st.integers(1, 3),
    group=st.integers(1, 7),
    dim=st.sampled_from([8, 16, 24, 32, 64, 80, 128]),
    size=st.sampled_from([0.1, 1.0, 30.0]),
    hidden=st.sampled_from(["none", "row", "head", "query"]),
)
@settings(max_examples=60, deadline=None)
def test_equals_the_plain_formula(seed, extents, heads, group, dim, size, hidden) -> None:
    """Also for empty rows, rows whose every slot is hidden, long logits, and planes wider than what is used."""
    g = torch.Generator().manual_seed(seed)
    rows, used = len(extents), max(extents)
    query = torch.randn(rows, heads, 1, group, dim, generator=g).transpose(2, 3).squeeze(3) * size
    planes = torch.randn(2, rows, heads, used + 5, dim + 8, generator=g)
    keys, values = planes[..., :used, :dim]
    bias = None
    if hidden != "none":
        shape = {"row": (rows, 1, 1), "head": (rows, heads, 1), "query": (rows, heads, group)}[hidden]
        bias = torch.where(torch.rand(*shape, used, generator=g) < 0.3, -math.inf, 0.0)
        bias[0] = -math.inf
    visible = Visible(torch.tensor(extents), used, keys.dtype, keys.device, bias)
    assert native.fits(query, keys, values)
    found = decode_attention(query, keys, values, visible, 0.2, lse=True, weights=True)
    close(found, plain(query, keys, values, extents, bias, 0.2), max(1.0, size))


@pytest.mark.skipif(shutil.which("gcc") is None or sys.platform != "linux", reason="gcc on Linux has OpenMP")
def test_it_has_threads() -> None:
    library = build.library()
    assert library is not None
    assert library.tiercache_threads()


CPU = torch.device("cpu")


def hold(store: TierStore, extents: list[int], fill: dict[str, torch.Tensor]) -> TierStore:
    """A store of so many rows, wider than what it uses, with these numbers in its first slots."""
    store.join(len(extents))
    store.reserve(0, max(extents) + 16)
    store.extents[:] = extents
    for name, values in fill.items():
        store.planes[name][:, :, :, : values.shape[3]] = values
    return store


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("grids", [torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize(
    ("group", "window", "pairs"), [(16, 1, False), (64, 1, False), (64, 8, False), (64, 16, True), (20, 1, False)]
)
def test_codes_are_read_as_unpacking_them_would(
    bits: int, grids: torch.dtype, group: int, window: int, pairs: bool
) -> None:
    """Beside plain floats: rows of whole windows, an empty row, and tiles that end within a row."""
    dim = 64 if group != 20 else 40
    forms = {"k": Format(dim, bits, grids, group, window, pairs), "v": Format(dim, bits, grids, group)}
    geometry = Geometry(2, 6, 2, dim, torch.float32)
    g = torch.Generator().manual_seed(window)
    near = {side: torch.randn(2, 3, 2, 33, dim, generator=g) for side in "kv"}
    far = {side: torch.randn(2, 3, 2, 160, dim, generator=g) * 3 + 1 for side in "kv"}
    packs = {f"{side}_{part}": x for side in "kv" for part, x in forms[side].pack(far[side]).items()}
    stores = [
        hold(TierStore(geometry, {}, CPU), [33, 7, 1], near),
        hold(PackedStore(geometry, {}, CPU, forms), [160, 0, 80], packs),
    ]
    check_table(stores, 3, g)


def check_table(
    stores: list[TierStore], group: int, g: torch.Generator, sums: str | None = None, retains: float = 1.0
) -> None:
    """A step over all tiers of some rows against the plain formula over their tokens side by side, layer by layer."""
    near, geometry, kernel = stores[0], stores[0].geometry, native.kernel()
    assert kernel is not None
    assert all(map(reads, stores))
    rows, heads, dim = near.rows, geometry.kv_heads, geometry.head_dim
    slots = torch.tensor(near.extents).sub(1).view(1, rows, 1).expand(geometry.layers, rows, heads)
    summed = sums is not None
    window, now, asked = QueryWindow(geometry, 4, CPU), torch.arange(rows) * 5 + 2, []
    window.state.join(0, rows + 1)
    table = RowTable(kernel, [stores], slots, group, 0.1, summed, sums, retains, [window.ring(now)])
    for layer in range(geometry.layers):
        query = torch.randn(rows, heads * group, 1, dim, generator=g)
        asked.append(query[:, :, 0])
        new = torch.randn(2, rows, heads, 1, dim, generator=g)
        before = [store.planes[sums][layer].clone() for store in stores] if sums else []
        out, weights = table(layer, query, new[0], new[1], weights=not summed)
        for row in range(rows):
            held = [store.extents[row] for store in stores]
            parts = [
                [x[row : row + 1, :, :n] for x in store.layer(layer)] for store, n in zip(stores, held, strict=True)
            ]
            assert torch.equal(parts[0][0][0, :, -1], new[0, row, :, 0])
            keys, values = (torch.cat(side, dim=2) for side in zip(*parts, strict=True))
            right, _, all_shares = plain(query[row].view(1, heads, group, dim), keys, values, [sum(held)], None, 0.1)
            assert_close(out[row].view(heads, group, dim).double(), right[0], rtol=2e-5, atol=8e-6)
            shares = torch.split(all_shares[0].float(), held, dim=-1)
            for i, (share, n) in enumerate(zip(shares, held, strict=True)):
                if weights is not None:
                    assert_close(weights[0][i][row, ..., :n], share, rtol=2e-5, atol=2e-6)
                    assert not weights[0][i][row, ..., n:].any()
                else:
                    factor = torch.where(torch.arange(before[i].shape[-1]) < n, retains, 1)
                    added = stores[i].planes[str(sums)][layer, row] - factor * before[i][row]
                    assert_close(added[:, :n], share.sum(1), rtol=2e-5, atol=1e-6)
                    assert not added[:, n:].any()
    queries, places = window.read(slice(0, rows + 1))
    expected, at = torch.zeros_like(queries), torch.full((rows + 1, 4), -1)
    for row, newest in enumerate(now.tolist()):
        expected[:, row, :, newest % 4] = torch.stack([query[row] for query in asked])
        at[row, newest % 4] = newest
    assert torch.equal(queries, expected)
    assert torch.equal(places, at)


@given(
    seed=st.integers(0, 2**32),
    held=st.lists(st.lists(st.integers(0, 90), min_size=3, max_size=3), min_size=1, max_size=3),
    group=st.integers(1, 5),
    sums=st.sampled_from([None, 0.0, 0.9, 1.0]),
)
@settings(max_examples=60, deadline=None)
def test_tokens_in_several_tiers_count_as_if_they_had_never_moved(seed, held, group, sums) -> None:
    """Tiers of any lengths, empty ones too; weights given out, or added to what lies beside the tokens."""
    g = torch.Generator().manual_seed(seed)
    geometry = Geometry(2, 2 * group, 2, 16, torch.float32)
    extents = [[1 + row[0] for row in held], [row[1] for row in held], [row[2] for row in held]]
    stores = []
    for each in extents:
        fill = {side: torch.randn(2, len(held), 2, max(each), 16, generator=g) for side in "kv"}
        fill["mass"] = torch.rand(2, len(held), 2, max(each), generator=g)
        stores.append(hold(TierStore(geometry, {"mass": torch.float32}, CPU), each, fill))
    check_table(stores, group, g, "mass" if sums is not None else None, sums or 0.0)


def test_what_lies_beyond_a_rows_own_tokens_is_never_read() -> None:
    query, planes = torch.randn(2, 2, 2, 16), torch.randn(2, 2, 2, 40, 16)
    planes[:, 0, :, 7:] = math.nan
    visible = Visible(torch.tensor([7, 40]), 40, torch.float32, planes.device)
    found = decode_attention(query, planes[0], planes[1], visible, 0.25, weights=True)
    assert found.out.isfinite().all()
    assert found.weights is not None
    assert not found.weights[0, ..., 7:].any()


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_broken_number_is_not_hidden(bad: float) -> None:
    """As with torch: a model that overflows must not look like one that attends to nothing."""
    query, planes = torch.ones(1, 1, 2, 8), torch.ones(2, 1, 1, 20, 8)
    planes[0, 0, 0, 11] = bad
    visible = Visible(torch.tensor([20]), 20, torch.float32, planes.device)
    assert decode_attention(query, planes[0], planes[1], visible, 0.25).out.isnan().all()


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_row_has_the_same_bits_alone_and_beside_others(threads: int) -> None:
    before = torch.get_num_threads()
    g = torch.Generator().manual_seed(5)
    query, keys, values = (torch.randn(6, 2, n, 32, generator=g) for n in (2, 333, 333))
    extents = torch.tensor([333, 1, 17, 200, 64, 129])
    try:
        torch.set_num_threads(threads)
        visible = Visible(extents, 333, keys.dtype, keys.device)
        together = decode_attention(query, keys, values, visible, 0.2, lse=True, weights=True)
    finally:
        torch.set_num_threads(before)
    for row, n in enumerate(extents.tolist()):
        visible = Visible(extents[row : row + 1], n, keys.dtype, keys.device)
        one = [part[row : row + 1] for part in (query, keys[:, :, :n], values[:, :, :n])]
        alone = decode_attention(*one, visible, 0.2, lse=True, weights=True)
        assert torch.equal(alone.out[0], together.out[row])
        assert torch.equal(alone.lse[0], together.lse[row])  # type: ignore[index]
        assert torch.equal(alone.weights[0], together.weights[row, ..., :n])  # type: ignore[index]


@pytest.mark.parametrize("asked", [{}, {"weights": True}, {"lse": True}, {"lse": True, "weights": True}])
def test_torch_gives_the_same_where_the_kernel_does_not_fit(asked: dict[str, bool]) -> None:
    g = torch.Generator().manual_seed(1)
    query, keys, values = (torch.randn(3, 2, n, 16, generator=g) for n in (3, 50, 50))
    bias = torch.where(torch.rand(3, 2, 1, 50, generator=g) < 0.5, -math.inf, 0.0)
    found = []
    for dtype in (torch.float32, torch.float64):
        wide = [part.to(dtype) for part in (query, keys, values)]
        visible = Visible(torch.tensor([50, 20, 33]), 50, dtype, keys.device, bias.to(dtype))
        assert native.fits(*wide) == (dtype is torch.float32)
        found.append(decode_attention(*wide, visible, 0.3, **asked))
    assert_close(found[0].out.double(), found[1].out, rtol=1e-5, atol=1e-6)
    for name in asked:
        one, other = (getattr(part, name) for part in found)
        assert_close(one.double(), other, rtol=1e-5, atol=1e-6)


def test_the_triton_kernel_in_its_interpreter() -> None:
    """What a GPU would do, on the CPU. A process of its own: Triton reads the switch when it is imported."""
    pytest.importorskip("triton")
    script = Path(__file__).with_name("triton_in_interpreter.py")
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    ran = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines() == ["equal"] * 12


def test_no_compiler_a_broken_one_and_the_switch_fall_back(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("TIERCACHE_NATIVE", "0")
    assert native.kernel() is None
    assert not caplog.messages
    monkeypatch.delenv("TIERCACHE_NATIVE")
    monkeypatch.setenv("PATH", str(tmp_path))
    again()
    assert native.kernel() is None
    assert "no C compiler" in caplog.messages[-1]
    (tmp_path / "cc").write_text("#!/bin/sh\necho 'error: bad day' >&2\n[ \"$1\" = --version ]\n")
    (tmp_path / "cc").chmod(0o755)
    again()
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    assert native.kernel() is None
    assert "bad day" in caplog.messages[-1]


def test_a_folder_that_others_may_write_to_is_not_trusted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = tmp_path / "tiercache" / "kernels"
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    assert native.kernel() is not None
    assert not os.listdir(folder)
    folder.chmod(0o700)
    again()
    assert native.kernel() is not None
    assert [name.split("-")[0] for name in os.listdir(folder)] == ["kernels"]
