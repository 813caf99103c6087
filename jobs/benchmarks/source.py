"""Where a benchmark's rows come from: a local file, what `tiercache prepare` has kept, or the hub."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Source:
    """A data set on the hub, and the names by which its file is looked for in a local folder.

    revision  commit or tag; None takes what the hub has now, and says in the manifest what that was.
    """

    hub_id: str
    config: str
    split: str
    files: tuple[str, ...]
    revision: str | None = None

    def __str__(self) -> str:
        return f"{self.hub_id} ({self.config}, {self.split})"


def rows_of(source: Source, benchmark: str, given: Path | None) -> Iterator[tuple[str, Row]]:
    """Every row with a word on where it stands, for messages.

    Args:
        benchmark: its label, by which `tiercache prepare` knows it.
        given: a local file, or a folder that has one under one of the source's names.

    Raises:
        BenchmarkError: there is no such file, it can't be read, or the hub is out of reach.
    """
    from jobs.benchmarks import prepared
    from jobs.benchmarks.local_files import find, read

    if given is not None:
        yield from read(find(given.expanduser(), source, benchmark), benchmark)
        return
    place = prepared.find(source) or prepared.fetch(source, benchmark)
    yield from prepared.rows(place)
