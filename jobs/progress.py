"""What a person sees while a sweep runs: cells, samples, tokens per second, time left."""

import sys
import time
from collections import Counter
from collections.abc import Sequence
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from db.rows import SampleRow
from jobs.grid import Cell
from jobs.work_queue import CellSamples
from tiercache.requests import RunStats

LINE_EVERY_S = 10.0
SHOWN_CELLS = 14


class Progress(Protocol):
    """Told what happens; decides what to show."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def note(self, message: str) -> None:
        """Something that isn't a sample: workers starting."""

    def finished(self, cell: Cell, row: SampleRow) -> None:
        """A sample is stored."""

    def measured(self, stats: RunStats) -> None:
        """A shard has ended."""

    def refresh(self) -> None:
        """Called a few times a second."""


class _Tally:
    """What both displays count."""

    def __init__(self, cells: Sequence[Cell], missing: Sequence[CellSamples]) -> None:
        self.cells = list(cells)
        self.total = sum(cell.samples for cell in cells)
        todo = Counter({samples.cell.fingerprint: len(samples) for samples in missing})
        self.done = Counter({cell.fingerprint: cell.samples - todo[cell.fingerprint] for cell in cells})
        self.reused = self.total - todo.total()
        self.fresh = self.failed = self.tokens = 0
        self.correct: Counter[str] = Counter()
        self.judged: Counter[str] = Counter()
        self.message = ""
        self.started = time.monotonic()
        self.first: float | None = None  # when the first sample arrived: loading a model is not progress

    def count(self, cell: Cell, row: SampleRow) -> None:
        self.first = self.first or time.monotonic()
        self.done[cell.fingerprint] += 1
        self.fresh += 1
        self.failed += row.outcome == "failed"
        self.tokens += row.output_tokens or 0
        self.judged[cell.fingerprint] += row.outcome != "failed"
        self.correct[cell.fingerprint] += row.outcome == "correct"

    @property
    def cells_done(self) -> int:
        return sum(self.done[cell.fingerprint] >= cell.samples for cell in self.cells)

    def line(self) -> str:
        """One line: cells, samples, failures, tokens per second since the start, time left."""
        parts = [f"{self.cells_done}/{len(self.cells)} cells", f"{sum(self.done.values())}/{self.total} samples"]
        if self.reused:
            parts.append(f"{self.reused} reused")
        if self.failed:
            parts.append(f"{self.failed} failed")
        elapsed = time.monotonic() - self.started
        if self.tokens:
            parts.append(f"{self.tokens / elapsed:,.0f} tok/s")
        left = self.total - sum(self.done.values())
        if self.first is not None and self.fresh > 1 and left:
            rate = self.fresh / max(1e-3, elapsed)
            parts.append(f"ETA {clock(left / rate)}")
        return " · ".join([*parts, clock(elapsed)])


class LineProgress:
    """For logs and pipes: a line every ten seconds."""

    def __init__(self, cells: Sequence[Cell], missing: Sequence[CellSamples]) -> None:
        self.tally = _Tally(cells, missing)
        self._last = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._print(self.tally.line())

    def note(self, message: str) -> None:
        self._print(message)

    def finished(self, cell: Cell, row: SampleRow) -> None:
        self.tally.count(cell, row)

    def measured(self, stats: RunStats) -> None:
        pass

    def refresh(self) -> None:
        if time.monotonic() - self._last >= LINE_EVERY_S:
            self._last = time.monotonic()
            self._print(self.tally.line())

    @staticmethod
    def _print(line: str) -> None:
        print(line, file=sys.stderr, flush=True)


class LiveProgress:
    """For terminals: the cells under way, and one line for the whole."""

    def __init__(self, cells: Sequence[Cell], missing: Sequence[CellSamples]) -> None:
        self.tally = _Tally(cells, missing)
        self._live = Live(
            console=Console(stderr=True), get_renderable=self._render, refresh_per_second=4, transient=True
        )

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()
        Console(stderr=True, highlight=False).print(Text(self.tally.line()))

    def note(self, message: str) -> None:
        self.tally.message = message

    def finished(self, cell: Cell, row: SampleRow) -> None:
        self.tally.count(cell, row)

    def measured(self, stats: RunStats) -> None:
        pass

    def refresh(self) -> None:
        pass  # rich draws by itself

    def _render(self) -> RenderableType:
        tally = self.tally
        table = Table.grid(padding=(0, 2))
        active = [cell for cell in tally.cells if 0 < tally.done[cell.fingerprint] < cell.samples]
        for cell in active[:SHOWN_CELLS]:
            done, judged = tally.done[cell.fingerprint], tally.judged[cell.fingerprint]
            accuracy = f"{tally.correct[cell.fingerprint] / judged:.0%} right" if judged else ""
            bar = ProgressBar(total=cell.samples, completed=done, width=20)
            table.add_row(Text(cell.label), bar, Text(f"{done}/{cell.samples}"), Text(accuracy, style="dim"))
        return Group(table, Text(tally.message, style="dim"), Text(tally.line()))


def make_progress(live: bool, cells: Sequence[Cell], missing: Sequence[CellSamples]) -> Progress:
    """A live display where stderr is a terminal and one is wanted; lines otherwise."""
    return LiveProgress(cells, missing) if live and sys.stderr.isatty() else LineProgress(cells, missing)


def clock(seconds: float) -> str:
    """`1:02:03` or `2:03`."""
    whole = int(seconds)
    hours, minutes = whole // 3600, whole // 60 % 60
    return f"{hours}:{minutes:02d}:{whole % 60:02d}" if hours else f"{minutes}:{whole % 60:02d}"
