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
from pathlib import Path

import torch
from torch import Tensor

from tiercache.attention import Partial

log = logging.getLogger(__name__)

SOURCE = Path(__file__).with_name("decode_attention.c")
FLAGS = ("-O3", "-march=native", "-fPIC", "-Wno-psabi")
LANES = 8  # floats of one vector: head_dim is a multiple


class _Shape(ctypes.Structure):
    """`shape` in the source."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in "rows heads group dim used threads".split()),  # noqa: SIM905
        *((f"{side}_{axis}", ctypes.c_int64) for side in ("query", "key", "value", "bias") for axis in range(3)),
        ("extents", ctypes.c_void_p),
        ("scaling", ctypes.c_float),
    )


class Kernel:
    """The loaded library."""

    def __init__(self, path: Path) -> None:
        self._call = ctypes.CDLL(str(path)).tiercache_decode_attention
        self._call.argtypes = (ctypes.POINTER(_Shape), *[ctypes.c_void_p] * 7)

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
        steps = (part.stride()[:3] if part is not None else (0, 0, 0) for part in (query, keys, values, bias))
        shape = _Shape(
            rows, heads, group, dim, used, torch.get_num_threads(), *sum(steps, ()), extents.data_ptr(), scaling
        )
        places = (query, keys, values, bias, out, logs, shares)
        if self._call(shape, *(part.data_ptr() if part is not None else None for part in places)):
            raise MemoryError("no memory left for attention's logits")
        return Partial(out, logs, shares)


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
