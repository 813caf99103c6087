"""The C sources of this folder as one library, built once per machine by its own compiler, kept in the user's cache.

`TIERCACHE_NATIVE=0` turns them off.
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

log = logging.getLogger(__name__)

FOLDER = Path(__file__).parent
FLAGS = ("-O3", "-march=native", "-fPIC", "-Wno-psabi")


@functools.cache
def library() -> ctypes.CDLL | None:
    """All kernels; None where there can be none, which is logged once."""
    if os.environ.get("TIERCACHE_NATIVE") == "0":
        return None
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        log.warning("no C compiler (cc, gcc, clang): attention on this CPU runs on torch's slower kernels")
        return None
    try:
        loaded = ctypes.CDLL(str(_built(compiler)))
    except (OSError, subprocess.SubprocessError) as problem:
        log.warning("the C kernels can't be used, torch's slower ones are: %s", _reason(problem))
        return None
    if not loaded.tiercache_threads():
        log.warning("the C kernels were built without OpenMP (%s) and run on one thread", compiler)
    return loaded


def _built(compiler: str) -> Path:
    """The shared library, from the user's cache or built anew."""
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True, timeout=60).stdout
    text = b"\0".join(part.read_bytes() for part in sorted(FOLDER.glob("*.[ch]")))
    key = hashlib.sha256(b"\0".join([text, version.encode(), _processor().encode(), repr(FLAGS).encode()]))
    folder = _folder()
    path = folder / f"kernels-{key.hexdigest()[:16]}.so"
    if path.exists():
        return path
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        ready = Path(scratch) / path.name
        try:  # its threads are torch's own, which has loaded their library for everybody; not linked, so never twice
            _build(compiler, ready, "-fopenmp")
        except (OSError, subprocess.SubprocessError) as problem:
            log.info("not with OpenMP: %s", _reason(problem))
            _build(compiler, ready)
        os.replace(ready, path)  # several processes may build at once
    return path


def _build(compiler: str, ready: Path, *flags: str) -> None:
    """Compiles, links and loads it, or raises."""
    objects = []
    for source in sorted(FOLDER.glob("*.c")):
        objects.append(str(ready.with_name(f"{source.stem}.o")))
        _run([compiler, *FLAGS, *flags, "-c", str(source), "-o", objects[-1]])
    _run([compiler, "-shared", *objects, "-o", str(ready), "-lm"])
    ctypes.CDLL(str(ready))


def _run(command: list[str]) -> None:
    subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)


def _reason(problem: Exception) -> str:
    return str(getattr(problem, "stderr", None) or problem).strip()[-300:]


def _folder() -> Path:
    """A folder that nobody else may write to: what lies there is run."""
    try:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        folder = base / "tiercache" / "kernels"
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        state = folder.stat()
        if state.st_uid == os.getuid() and not state.st_mode & 0o022 and os.access(folder, os.W_OK):
            return folder
    except (OSError, RuntimeError, AttributeError):  # no folder, no home, no such thing on this system
        pass
    return Path(tempfile.mkdtemp(prefix="tiercache-kernels-"))


def _processor() -> str:
    """What code for this processor alone depends on: a home folder may be shared by machines of different kinds."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return "\n".join(sorted({line for line in lines if line.startswith(("flags", "Features", "model name"))}))
    except OSError:
        return platform.machine() + platform.processor()
