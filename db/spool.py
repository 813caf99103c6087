"""Where results wait while the database is away: one JSON line an entry, on disk before `append` returns."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import IO, Any

from sqlalchemy import URL

from db.errors import StorageError
from db.store import Entry

if sys.platform != "win32":
    import fcntl

log = logging.getLogger(__name__)

ENTRIES_PER_TRANSACTION = 500
MOMENTS = ("at", "started_at", "finished_at")
BYTES = ("blob",)


class Spool:
    """The spool file of one database. Several processes may share it: each use holds a lock on the file.

    `folders` are tried in order for writing (the first may have become read-only, as the database's folder can),
    and all of them are read.
    """

    def __init__(self, folders: Sequence[Path], stem: str) -> None:
        self.paths = [folder / f"{stem}.spool.jsonl" for folder in folders]

    @classmethod
    def beside(cls, url: URL, folder: Path | None) -> Spool:
        """Return the spool for a database: in `folder`, else beside an SQLite file or in the working directory."""
        is_file = url.get_backend_name() == "sqlite"
        file = Path(str(url.database))
        # Databases of the same name in different places may meet in one folder.
        mark = hashlib.sha256(url.render_as_string(hide_password=True).encode()).hexdigest()[:8]
        state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "tiercache"
        return cls([folder or (file.parent if is_file else Path.cwd()), state], f"{file.name}-{mark}")

    def waiting(self) -> bool:
        """Return whether there is anything to replay."""
        return any(path.exists() and path.stat().st_size > 0 for path in self.paths)

    def append(self, entries: Sequence[Entry]) -> Path:
        """Write `entries` to disk and return the file that holds them.

        Raises:
            StorageError: no folder could be written; the entries are then in the caller's hands only.
        """
        text = "".join(self.line(entry) + "\n" for entry in entries)
        problems = []
        for path in self.paths:
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                with _locked(path) as file:
                    if file.tell() and not _ends_line(path):
                        text = "\n" + text  # a crash tore the last line; don't tear ours as well
                    file.write(text)
                    file.flush()
                    os.fsync(file.fileno())
                return path
            except OSError as error:
                problems.append(f"{path}: {error.strerror or error}")
        raise StorageError(
            f"database is away and {len(entries)} results can't be spooled either ({'; '.join(problems)}); "
            "free disk space or pass a spool folder that can be written"
        )

    def drain(self, store: Callable[[list[Entry]], None]) -> int:
        """Hand every waiting entry to `store`, then empty the files. Returns the number of entries replayed.

        If `store` raises, the file stays whole: what was stored before is stored once more next time, to no effect.
        """
        replayed = 0
        for path in self.paths:
            if not path.exists() or path.stat().st_size == 0:
                continue
            with _locked(path) as file:
                entries, torn = _read(path)
                for start in range(0, len(entries), ENTRIES_PER_TRANSACTION):
                    store(entries[start : start + ENTRIES_PER_TRANSACTION])
                if torn:
                    self.set_aside(path, torn)
                file.truncate(0)
                with contextlib.suppress(OSError):
                    path.unlink()  # under the lock: whoever waits for it notices and opens a new file
                replayed += len(entries)
        return replayed

    @staticmethod
    def line(entry: Entry) -> str:
        """Return an entry as a line of the file, without its end."""
        return json.dumps({"kind": entry.kind, "values": entry.values}, default=_encode)

    @staticmethod
    def set_aside(path: Path, lines: Sequence[str]) -> None:
        """Keep lines that can't be replayed where a person can look at them."""
        aside = path.with_suffix(".rejected")
        with aside.open("a", encoding="utf-8") as file:
            file.writelines(line + "\n" for line in lines)
        log.error("%d spooled lines could not be replayed; they are kept in %s", len(lines), aside)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[IO[str]]:
    """Open for appending, alone. If another process removed the file before we got its lock, open the new one."""
    while True:
        file = path.open("a", encoding="utf-8")
        if sys.platform != "win32":
            fcntl.flock(file, fcntl.LOCK_EX)
        try:
            if path.exists() and os.path.samestat(os.fstat(file.fileno()), path.stat()):
                yield file
                return
        finally:
            file.close()


def _ends_line(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"


def _read(path: Path) -> tuple[list[Entry], list[str]]:
    entries, torn = [], []
    for line in path.read_text(encoding="utf-8", errors="replace").split("\n"):
        if not line:
            continue
        try:
            found = json.loads(line)
            values = found["values"]
            for name in MOMENTS:
                if name in values:
                    values[name] = datetime.fromisoformat(values[name])
            for name in BYTES:
                if name in values:
                    values[name] = base64.b64decode(values[name], validate=True)
            entries.append(Entry(found["kind"], values))
        except (ValueError, KeyError, TypeError):
            torn.append(line)
    return entries, torn


def _encode(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    raise TypeError(f"{type(value).__name__} can't be spooled")
