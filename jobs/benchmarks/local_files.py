"""Rows from a local file: JSON lines, a JSON list, or Parquet."""

import json
from collections.abc import Iterator
from pathlib import Path

from jobs.benchmarks.source import Row, Source
from tiercache.errors import BenchmarkError


def remedy(benchmark: str) -> str:
    """What to do where the data are missing."""
    return (
        f"On a machine with network: tiercache prepare {benchmark} --out DIR; then copy DIR here and set "
        "TIERCACHE_DATA to it. Or give a file: tiercache run SPEC --data FILE."
    )


def find(path: Path, source: Source, benchmark: str) -> Path:
    """The file itself, or the one in a folder that bears one of the source's names."""
    if path.is_dir():
        for name in source.files:
            if (path / name).is_file():
                return path / name
        raise BenchmarkError(f"{benchmark}: {path} has none of {', '.join(source.files)}. {remedy(benchmark)}")
    if not path.is_file():
        raise BenchmarkError(f"{benchmark}: {path}: no such file. {remedy(benchmark)}")
    return path


def read(path: Path, benchmark: str) -> Iterator[tuple[str, Row]]:
    """Each row of the file, with the place to name when something is wrong with it."""
    if path.suffix == ".parquet":
        yield from _parquet(path, benchmark)
        return
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as problem:
        raise BenchmarkError(f"{benchmark}: {path}: can't be read as UTF-8 text: {problem}.") from None
    if path.suffix == ".json" and text.lstrip().startswith("["):
        rows = _parsed(text, f"{path}", "a JSON list")
        assert isinstance(rows, list), "it begins with a bracket"
        yield from ((f"{path}: item {i}", _object(row, f"{path}: item {i}")) for i, row in enumerate(rows))
        return
    # Split by "\n" alone: a text may hold U+2028, which `splitlines` would take for an end of line.
    for count, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            where = f"{path}: line {count}"
            yield where, _object(_parsed(line, where, "a JSON object"), where)


def _parsed(text: str, where: str, kind: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise BenchmarkError(f"{where}: isn't {kind}.") from None


def _object(row: object, where: str) -> Row:
    if not isinstance(row, dict):
        raise BenchmarkError(f"{where}: isn't a JSON object.")
    return row


def _parquet(path: Path, benchmark: str) -> Iterator[tuple[str, Row]]:
    import pyarrow
    import pyarrow.parquet

    try:
        table = pyarrow.parquet.read_table(path)
    except (OSError, pyarrow.ArrowInvalid) as problem:
        raise BenchmarkError(f"{benchmark}: {path}: can't be read as Parquet: {problem}.") from None
    yield from ((f"{path}: row {index}", row) for index, row in enumerate(table.to_pylist()))
