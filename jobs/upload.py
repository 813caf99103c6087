"""What submitting a job would upload: the files of its working directory that Ray itself packs, and their bytes.

Ray walks the folder here, with its own rules (`.gitignore`, `.rayignore`, default excludes), so that nothing about them
is guessed.
"""

import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tiercache.errors import SpecError

MAX_FILES = 100_000
LARGEST = 5
_END, _ENTRY = 22, 30 + 46  # bytes of a zip archive beside its entries' content and, twice, their names
_REMEDY = (
    "List what the job doesn't need in a .rayignore file, which is written like a .gitignore, or keep it elsewhere."
)


@dataclass(frozen=True)
class Upload:
    """What Ray would pack.

    folder  the working directory, absolute.
    files   path within it, with `/`, to bytes.
    total   bytes of the archive, which isn't compressed.
    """

    folder: Path
    files: Mapping[str, int]
    total: int


def survey(folder: Path) -> Upload:
    """Walks the folder as Ray would; reads no file's content.

    Raises:
        SpecError: Ray could not pack it: unreadable, without end, or so many files that no one can have meant it.
    """
    from ray._private.ray_constants import RAY_RUNTIME_ENV_IGNORE_GITIGNORE, get_runtime_env_default_excludes
    from ray._private.runtime_env import packaging

    folder = Path(os.path.abspath(folder))
    files: dict[str, int] = {}
    total = _END

    def visit(path: Path) -> None:
        nonlocal total
        _check(path, folder)
        name = path.relative_to(folder).as_posix()
        if path.is_file():
            files[name] = path.stat().st_size
            total += _ENTRY + 2 * len(name.encode()) + files[name]
        elif path.is_dir() and next(path.iterdir(), None) is None:
            total += _ENTRY + 2 * len(f"{name}/".encode())
        if len(files) > MAX_FILES:
            raise SpecError(f"--working-dir {folder}: more than {MAX_FILES:,} files would be uploaded. {_REMEDY}")

    excludes: list[Callable[[Path], Any]] = [packaging._get_excludes(folder, get_runtime_env_default_excludes())]
    gitignore = os.environ.get(RAY_RUNTIME_ENV_IGNORE_GITIGNORE, "0") != "1"
    try:
        packaging._dir_travel(folder, excludes, visit, gitignore, logging.Logger("ray", logging.CRITICAL + 1))
    except (OSError, UnicodeError, RecursionError) as problem:
        raise SpecError(f"--working-dir {folder}: can't be packed: {problem}. {_REMEDY}") from None
    return Upload(folder, files, total)


def _check(path: Path, folder: Path) -> None:
    """Refuses what would make Ray wait or walk for ever, or fail in the middle."""
    if path.is_symlink() and path.is_dir():
        real = path.resolve()
        above = (parent for parent in path.parents if parent.is_relative_to(folder))
        if any(parent.resolve().is_relative_to(real) for parent in above):
            raise SpecError(f"--working-dir {folder}: {path} leads back to a folder that holds it. {_REMEDY}")
    if path.is_fifo() or path.is_char_device():
        raise SpecError(f"--working-dir {folder}: {path} is a pipe or a device. {_REMEDY}")
    if path.is_file() and not os.access(path, os.R_OK):
        raise SpecError(f"--working-dir {folder}: {path} may not be read by this user. {_REMEDY}")


def check_size(upload: Upload, limit: int) -> None:
    """Refuses an upload of more than `limit` bytes.

    Raises:
        SpecError: the total, the limit, and the largest files.
    """
    if upload.total <= limit:
        return
    from jobs.report import bytes_text

    largest = sorted(upload.files.items(), key=lambda entry: (-entry[1], entry[0]))[:LARGEST]
    listed = "".join(f"\n  {bytes_text(size):>9}  {name}" for name, size in largest)
    raise SpecError(
        f"--working-dir {upload.folder}: {bytes_text(upload.total)} in {len(upload.files):,} files would be uploaded; "
        f"allowed: {bytes_text(limit)} (--max-upload). {_REMEDY} The largest:{listed}"
    )


def inside(folder: Path, path: Path) -> str | None:
    """Where a path that was given on the command line lies in the folder, with `/`; None: outside of it."""
    for whole, part in ((os.path.abspath(folder), os.path.abspath(path)), (folder.resolve(), path.resolve())):
        if Path(part).is_relative_to(whole):
            return Path(part).relative_to(whole).as_posix()
    return None


def check_named(upload: Upload, name: str, field: str) -> bool:
    """Whether a file or folder that a job names is uploaded; if not, it is an absolute path, of the nodes.

    Args:
        name: as the job will see it: absolute, or relative to the working directory.

    Raises:
        SpecError: it is relative, and the job would not find it: missing, outside, or excluded.
    """
    if os.path.isabs(os.path.expanduser(name)):
        return False
    where, found = os.path.normpath(name), upload.folder / name
    outcome = None
    if where == ".." or where.startswith("../"):
        outcome = "lies outside of the working directory. Move it there, or give the path that it has on the nodes"
    elif found.is_dir():
        beneath = [path.relative_to(upload.folder).as_posix() for path in _content(Path(os.path.normpath(found)))]
        missing = [each for each in beneath if each not in upload.files]
        prefix = "" if where == "." else f"{where}/"
        if missing or not any(file.startswith(prefix) for file in upload.files):
            outcome = f"{missing[0] if missing else 'what is'} in it would not be uploaded: {_EXCLUDED}"
    elif not found.exists():
        outcome = f"no such file or folder in the working directory {upload.folder}"
    elif where not in upload.files:
        outcome = f"would not be uploaded: {_EXCLUDED}"
    if outcome:
        raise SpecError(f"{field}: '{name}': {outcome}.")
    return True


_EXCLUDED = (
    "a .gitignore, a .rayignore or a default of Ray's (.git, .venv, venv, __pycache__) excludes it. Mend that file, or "
    "give the absolute path that it has on the nodes"
)


def _content(folder: Path) -> list[Path]:
    """Files of a folder, without the hidden ones that tools leave there."""
    return sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
