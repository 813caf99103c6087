"""Data sets fetched once and kept with revision and hash, so that a sweep runs with the hub out of reach.

A folder per data set: `rows.jsonl` and `manifest.json`. Whatever reads it checks the hash first.
"""

import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from jobs.benchmarks.local_files import read, remedy
from jobs.benchmarks.source import Row, Source
from tiercache.errors import BenchmarkError

ROWS, MANIFEST = "rows.jsonl", "manifest.json"


def home() -> Path:
    """$TIERCACHE_DATA, or a folder of this user's cache."""
    given = os.environ.get("TIERCACHE_DATA")
    if given:
        return Path(given).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tiercache" / "data"


def folder(source: Source, root: Path | None = None) -> Path:
    """Where a data set is kept."""
    name = "__".join((source.hub_id, source.config, source.split, source.revision or "latest"))
    return (root or home()) / re.sub(r"[^\w.-]+", "--", name)


def find(source: Source) -> Path | None:
    """The folder of a data set that has been prepared."""
    place = folder(source)
    return place if (place / MANIFEST).is_file() else None


def manifest(place: Path) -> dict[str, Any]:
    """What is known of a prepared data set.

    Raises:
        BenchmarkError: it can't be read.
    """
    try:
        known = json.loads((place / MANIFEST).read_text(encoding="utf-8"))
        if not {"sha256", "hub_id", "rows"} <= known.keys():
            raise ValueError("keys are missing")
    except (OSError, ValueError, AttributeError) as problem:
        raise BenchmarkError(f"{place / MANIFEST}: can't be read: {problem}. {_again(place)}") from None
    return dict(known)


def rows(place: Path) -> Iterator[tuple[str, Row]]:
    """The rows, after their hash was found to be the manifest's."""
    known, path = manifest(place), place / ROWS
    if not path.is_file() or _sha256(path) != known["sha256"]:
        raise BenchmarkError(f"{path}: isn't what was prepared (its SHA-256 differs). {_again(place)}")
    return read(path, known["hub_id"])


def fetch(source: Source, benchmark: str, root: Path | None = None) -> Path:
    """Reads a data set from the hub and keeps it.

    Raises:
        BenchmarkError: the hub, or the data set there, is out of reach; with the command for a connected machine.
    """
    # `datasets` takes seconds to import, so a wrong sweep file is refused before it is.
    from datasets import load_dataset

    try:
        found = load_dataset(source.hub_id, source.config, split=source.split, revision=source.revision)
        revision = _commit(source)
    except Exception as problem:  # the hub client's failures have no common root
        first = (str(problem).splitlines() or [""])[0]
        reason = f"{type(problem).__name__}: {first}"[:200]
        raise BenchmarkError(
            f"{benchmark}: {source} isn't prepared here and can't be loaded from the hub ({reason}). "
            f"{remedy(benchmark)}"
        ) from None
    return keep(source, found, revision, root)


def keep(source: Source, found: Iterable[Row], revision: str | None, root: Path | None = None) -> Path:
    """Writes rows and manifest beside the others, whole or not at all; several processes may do so at once."""
    place = folder(source, root)
    place.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=".draft-", dir=place.parent))
    try:
        count = 0
        with (draft / ROWS).open("w", encoding="utf-8") as file:
            for row in found:
                file.write(json.dumps(row, ensure_ascii=False, default=str) + "\n")
                count += 1
        known = {
            "hub_id": source.hub_id,
            "config": source.config,
            "split": source.split,
            "revision": revision or source.revision,
            "rows": count,
            "sha256": _sha256(draft / ROWS),
            "prepared_at": datetime.now(UTC).isoformat(timespec="seconds"),
            "datasets": version("datasets"),
        }
        (draft / MANIFEST).write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")
        if place.exists():
            shutil.rmtree(place)
        draft.rename(place)
    except OSError as problem:
        if not (place / MANIFEST).is_file():  # else another process was as quick
            raise BenchmarkError(f"{place}: can't be written: {problem.strerror}. Set TIERCACHE_DATA.") from None
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return place


def _commit(source: Source) -> str | None:
    """The commit that the revision stands for now; None where the hub is a local folder."""
    if Path(source.hub_id).exists():
        return None
    from huggingface_hub import HfApi

    return str(HfApi().dataset_info(source.hub_id, revision=source.revision).sha)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _again(place: Path) -> str:
    return f"Remove {place} and run `tiercache prepare` once more."
