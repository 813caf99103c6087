"""Benchmarks whose problems are the rows of a data set: on the hub, prepared, or in a local file."""

from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from jobs.benchmarks import prepared
from jobs.benchmarks.base import Benchmark, ChatOptions, Problem, check_gold
from jobs.benchmarks.source import Row, Source, rows_of
from tiercache.errors import BenchmarkError
from tiercache.rendering import Rendering

Text = Annotated[str, Field(min_length=1, strict=True)]


class FileOptions(ChatOptions):
    """Options of benchmarks with a data set.

    data        local file (JSON lines, JSON, Parquet) or folder with one; then `--data`, what was prepared, the hub.
    revision    commit or tag on the hub; pin it for results that others can reproduce.
    unscorable  what happens if a row's reference fails its own grader: `refuse` to start, or `drop` such rows.
    """

    data: Text | None = None
    revision: Text | None = None
    unscorable: Literal["refuse", "drop"] = "refuse"


class FileBenchmark(Benchmark):
    """Subclasses turn a row into a problem, and say how a generation that gives the reference looks."""

    source: Source
    options: FileOptions

    def __init__(self, options: Any = None, data: Path | None = None) -> None:
        super().__init__(options, data)
        if self.options.revision is not None:
            pinned = {**vars(self.source), "revision": self.options.revision}
            self.source = Source(**pinned)

    @property
    def rendering(self) -> Rendering:
        options = self.options
        return Rendering(options.prompt_mode == "chat", options.system, options.think)

    @property
    def given(self) -> Path | None:
        """The local file or folder to read."""
        return Path(self.options.data) if self.options.data else self.data

    @property
    def local(self) -> bool:
        return self.given is not None or prepared.find(self.source) is not None

    def load_all(self) -> list[Problem]:
        problems = []
        for index, (where, row) in enumerate(rows_of(self.source, self.label, self.given)):
            problem = self.problem(row, index, where)
            try:
                check_gold(self, problem, self.gold(problem), where)
            except BenchmarkError:
                if self.options.unscorable == "refuse":
                    raise
            else:
                problems.append(problem)
        if not problems:
            raise BenchmarkError(f"{self.label}: {self.given or self.source} has no rows.")
        return problems

    @abstractmethod
    def problem(self, row: Row, index: int, where: str) -> Problem:
        """One row as a problem.

        Raises:
            BenchmarkError: a column is missing or holds something else than it should.
        """

    @abstractmethod
    def gold(self, problem: Problem) -> str:
        """A generation that gives the problem's reference."""


def text(row: Row, key: str, where: str, number: bool = False) -> str:
    """A column that has to hold text, or, where `number` says so, a whole number."""
    if key not in row:
        columns = ", ".join(map(str, row)) or "none"
        raise BenchmarkError(f"{where}: needs the column {key}; it has {columns}.")
    value = row[key]
    if number and isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str) or not value.strip():
        raise BenchmarkError(f"{where}: {key} has to be text, and not empty.")
    return value


def lower_keys(row: Mapping[str, Any]) -> dict[str, Any]:
    """Copies of one data set on the hub spell their columns differently."""
    return {str(key).lower(): value for key, value in row.items()}
