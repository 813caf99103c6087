"""The C kernel for CPUs: built once per machine by its own compiler, kept in the user's cache, called through ctypes.

`TIERCACHE_NATIVE=0` turns it off.
"""

import ctypes
import functools
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor

from tiercache.attention import Partial

log = logging.getLogger(__name__)

SOURCE = Path(__file__).with_name("decode_attention.c")
FLAGS = ("-O3", "-march=native", "-fPIC", "-Wno-psabi")
LANES = 8  # floats of one vector: head_dim is a multiple
NO_MEMORY = "no memory left for attention's logits"


def _integers(names: str) -> tuple[tuple[str, type[ctypes.c_int64]], ...]:
    return tuple((name, ctypes.c_int64) for name in names.split())


class _Shape(ctypes.Structure):
    """`shape` in the source; the others have their names there too."""

    _fields_ = (*_integers("group dim query_group key_slot value_slot bias_group"), ("scaling", ctypes.c_float))


class _Rectangle(ctypes.Structure):
    _fields_ = (
        ("shape", _Shape),
        *_integers("rows heads threads used"),
        *_integers("query_row query_head key_row key_head value_row value_head bias_row bias_head"),
        ("extents", ctypes.c_void_p),
    )


class _Table(ctypes.Structure):
    _fields_ = (
        ("shape", _Shape),
        *_integers("rows heads threads used layer"),
        *_integers("query_row query_head key_row key_head value_row value_head"),
        ("places", ctypes.c_void_p),
        ("slots", ctypes.c_void_p),
    )


class Kernel:
    """The loaded library."""

    def __init__(self, path: Path) -> None:
        library = ctypes.CDLL(str(path))
        self.attend = library.tiercache_attend
        self.attend.argtypes = (ctypes.POINTER(_Rectangle), *[ctypes.c_void_p] * 7)
        self.append_and_attend = library.tiercache_append_and_attend
        self.append_and_attend.argtypes = (ctypes.POINTER(_Table), *[ctypes.c_void_p] * 5)

    def __call__(
        self,
        query: Tensor,
        keys: Tensor,
        values: Tensor,
        extents: Tensor,
        bias: Tensor | None,
        scaling: float,
        *,
        lse: bool = False,
        weights: bool = False,
    ) -> Partial:
        """Shapes as in `decode_attention`; float32, last dimension contiguous. extents: int64 [rows], contiguous."""
        rows, heads, group, dim = query.shape
        used = keys.shape[2]
        out = torch.empty((rows, heads, group, dim))
        logs = torch.empty((rows, heads, group)) if lse else None
        shares = torch.empty((rows, heads, group, used)) if weights else None
        if bias is not None:
            bias = bias.expand(rows, heads, group, used)
            bias = bias if bias.stride(3) == 1 else bias.contiguous()
        q, k, v, b = (part.stride() if part is not None else (0, 0, 0) for part in (query, keys, values, bias))
        shape = _Shape(group, dim, q[2], k[2], v[2], b[2], scaling)
        sides = (*q[:2], *k[:2], *v[:2], *b[:2])
        n = _Rectangle(shape, rows, heads, torch.get_num_threads(), used, *sides, extents.data_ptr())
        places = (query, keys, values, bias, out, logs, shares)
        if self.attend(n, *(part.data_ptr() if part is not None else None for part in places)):
            raise MemoryError(NO_MEMORY)
        return Partial(out, logs, shares)


@dataclass(frozen=True)
class Plane:
    """Keys and values of a lane's running rows: planes [layers, rows or more, kv_heads, slots, dim]."""

    keys: Tensor
    values: Tensor
    extents: Sequence[int]

    @property
    def used(self) -> int:
        return max(self.extents)


class RowTable:
    """One decode step over rows of several planes: new keys and values are written, then attended to, in one call."""

    def __init__(self, kernel: Kernel, planes: Sequence[Plane], slots: Tensor, group: int, scaling: float) -> None:
        """slots: where each row's new token goes, int64 [layers, rows, kv_heads], contiguous."""
        _, rows, heads = slots.shape
        entries: list[tuple[int, ...]] = []
        self.starts = [0]
        for plane in planes:
            (layer, row, head, slot, _), size = plane.keys.stride(), plane.keys.element_size()
            keys, values, used = plane.keys.data_ptr(), plane.values.data_ptr(), plane.used
            for i, extent in enumerate(plane.extents):
                step, weights = i * row * size, self.starts[-1] + i * heads * group * used
                entries.append((keys + step, values + step, layer, head, extent, used, weights))
            self.starts.append(self.starts[-1] + len(plane.extents) * heads * group * used)
        self._kernel, self._planes, self._slots = kernel, planes, slots
        self._places = torch.tensor(entries, dtype=torch.int64)
        dim = planes[0].keys.shape[-1]
        self._n = _Table(_Shape(group, dim, 0, slot, slot, 0, scaling), rows, heads, torch.get_num_threads())
        self._n.used = max(plane.used for plane in planes)
        self._n.places, self._n.slots = self._places.data_ptr(), slots.data_ptr()

    def __call__(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, weights: bool
    ) -> tuple[Tensor, list[Tensor] | None]:
        """query [rows, heads, 1, dim]; key, value [rows, kv_heads, 1, dim], as `fits` has them.

        Returns:
            output [rows, heads, dim], and each plane's weights [its rows, kv_heads, group, used].
        """
        n, rows = self._n, query.shape[0]
        group, heads = n.shape.group, n.heads
        n.layer, (n.query_row, n.shape.query_group) = layer, query.stride()[:2]
        n.query_head = group * n.shape.query_group
        (n.key_row, n.key_head), (n.value_row, n.value_head) = key.stride()[:2], value.stride()[:2]
        out = torch.empty((rows, heads * group, query.shape[-1]))
        shares = torch.empty(self.starts[-1]) if weights else None
        places = (query, key, value, out, shares)
        if self._kernel.append_and_attend(n, *(part.data_ptr() if part is not None else None for part in places)):
            raise MemoryError(NO_MEMORY)
        if shares is None:
            return out, None
        edges = zip(pairwise(self.starts), self._planes, strict=True)
        return out, [shares[a:b].view(len(p.extents), heads, group, p.used) for (a, b), p in edges]


def fits(query: Tensor, keys: Tensor, values: Tensor) -> bool:
    """Whether the kernel knows this kind of tensors."""
    return (
        query.dtype is torch.float32
        and keys.dtype is torch.float32
        and values.dtype is torch.float32
        and query.device.type == "cpu"
        and keys.device.type == "cpu"
        and query.shape[-1] % LANES == 0
        and query.stride(-1) == keys.stride(-1) == values.stride(-1) == 1
    )


@functools.cache
def kernel() -> Kernel | None:
    """The kernel, built if it must be; None where that can't be done, which is logged once."""
    if os.environ.get("TIERCACHE_NATIVE") == "0":
        return None
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        log.warning("no C compiler (cc, gcc, clang): attention on this CPU runs on torch's slower kernels")
        return None
    try:
        return Kernel(_built(compiler))
    except (OSError, subprocess.SubprocessError) as problem:
        detail = getattr(problem, "stderr", None) or problem
        log.warning("the C kernel can't be used, torch's slower ones are: %s", str(detail).strip()[-300:])
        return None


def _built(compiler: str) -> Path:
    """The shared library, from the user's cache or built anew."""
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True, timeout=60).stdout
    source = SOURCE.read_bytes()
    key = hashlib.sha256(b"\0".join([source, version.encode(), _processor().encode(), repr(FLAGS).encode()]))
    folder = _folder()
    path = folder / f"decode_attention-{key.hexdigest()[:16]}.so"
    if path.exists():
        return path
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        ready = Path(scratch) / path.name
        try:  # its threads are torch's own, which has loaded their library for everybody; not linked, so never twice
            _build(compiler, ready, "-fopenmp")
        except (OSError, subprocess.SubprocessError):
            _build(compiler, ready)
        os.replace(ready, path)  # several processes may build at once
    return path


def _build(compiler: str, ready: Path, *flags: str) -> None:
    """Compiles, links and loads it, or raises."""
    compiled = ready.with_suffix(".o")
    for command in (
        [compiler, *FLAGS, *flags, "-c", str(SOURCE), "-o", str(compiled)],
        [compiler, "-shared", str(compiled), "-o", str(ready), "-lm"],
    ):
        subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    Kernel(ready)


def _folder() -> Path:
    """A folder that nobody else may write to: what lies there is run."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = base / "tiercache" / "kernels"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        state = folder.stat()
        if state.st_uid == os.getuid() and not state.st_mode & 0o022 and os.access(folder, os.W_OK):
            return folder
    except (OSError, AttributeError):
        pass
    return Path(tempfile.mkdtemp(prefix="tiercache-kernels-"))


def _processor() -> str:
    """What code for this processor alone depends on: a home folder may be shared by machines of different kinds."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return "\n".join(sorted({line for line in lines if line.startswith(("flags", "Features", "model name"))}))
    except OSError:
        return platform.machine() + platform.processor()
