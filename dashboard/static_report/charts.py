"""The charts of a group: the dashboard's own, with their words, in the order of the questions that they answer."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import plotly.graph_objects as go
from plotly.io.json import to_json_plotly

from dashboard import curves, figures, forest, grids
from dashboard.colours import Look
from dashboard.drawing import FULL
from dashboard.static_report.content import Group
from db.queries import CellSummary

WIDE = ("budget-curves", "paired")  # charts with a legend or a scale that half a page has no room for
LISTED = 60  # policies in a chart that gives each a row
MARKED = 300  # in one that gives each a mark: more can't be told apart, nor drawn in a second
GRIDS = 4


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart, its words, and what the reader has to know of it."""

    name: str  # of ours, fit for a file's name
    figure: go.Figure
    alt: str
    note: str

    @property
    def height(self) -> int:
        return int(self.figure.layout.height or 400)

    def packed(self) -> str:
        """Return data and layout, compressed: hover texts repeat themselves, and there is one for each mark."""
        plain = self.figure.to_dict()
        layout = plain["layout"]
        layout.pop("template", None)
        layout["title"]["font"] = {"size": 16, "weight": "bold"}
        layout["yaxis"]["title"]["standoff"] = 14
        return base64.b64encode(zlib.compress(to_json_plotly(plain).encode())).decode()


def charts(group: Group, look: Mapping[str, Look]) -> Iterator[Chart]:
    """Return the charts for which something was measured."""
    judged = [cell for cell in group.cells if cell.n]
    if not judged:
        return
    marked, left_out = _limited(judged, group, MARKED, "marks")
    listed, unlisted = _limited([cell for cell in group.cells if cell.n + cell.failed], group, LISTED, "rows")
    if any(cell.resident_bytes is not None for cell in marked):
        figure = figures.accuracy_against_memory(marked, look)
        note = "Ringed and joined by dots: no other policy has at least this accuracy on at most these bytes."
        yield Chart("accuracy-memory", figure, figures.alt_text(figure, marked), _joined(note, left_out))
    if any(cell.decode_tokens_per_s is not None for cell in marked):
        figure = figures.accuracy_against_throughput(marked, look)
        note = "Of one engine on the machine that ran it; hollow: another engine used the same node."
        yield Chart("accuracy-throughput", figure, figures.alt_text(figure, marked), _joined(note, left_out))
    if any(line.policy_name != FULL for line in curves.lines(marked)):
        figure = curves.budget_curves(marked, look, curves.first_in_colour(marked))
        note = "A line turns one setting; a wide pale stretch is its steepest fall."
        yield Chart("budget-curves", figure, curves.in_words(marked), _joined(note, left_out))
    if group.full is not None and group.full.n and len(listed) > 1:
        yield _forest(group, group.full, [cell for cell in listed if cell is not group.full], look, unlisted)
    for place, (others, grid) in enumerate(list(grids.grids(judged, group.configs).items())[:GRIDS], 1):
        note = f"Cells: {others}. A dash: not in this sweep, or not judged yet."
        yield Chart(f"hbm-evict-{place}", grids.hbm_evict_map(grid), grids.in_words(grid), note)
    figure = figures.outcome_bars(listed)
    yield Chart("outcomes", figure, figures.alt_text(figure, listed), _joined("", unlisted))
    if any(cell.hbm_bytes is not None for cell in listed):
        figure = figures.memory_bars(listed)
        yield Chart("memory", figure, figures.alt_text(figure, listed), _joined("", unlisted))


def _forest(
    group: Group, full: CellSummary, others: list[CellSummary], look: Mapping[str, Look], left_out: str
) -> Chart:
    figure = forest.paired_differences(others, group.deltas, look, full)
    note = "Paired by problem and repeat; hollow: the interval holds zero. Intervals aren't corrected for their number."
    return Chart("paired", figure, forest.in_words(others, group.deltas, full), _joined(note, left_out))


def _limited(cells: list[CellSummary], group: Group, most: int, what: str) -> tuple[list[CellSummary], str]:
    """Return at most so many cells and the words that say so: the full cache, then the most accurate."""
    if len(cells) <= most:
        return cells, ""
    ranked = sorted(cells, key=lambda cell: (cell is not group.full, -(cell.accuracy or 0.0), cell.policy))
    kept = {cell.fingerprint for cell in ranked[:most]}
    words = f"The full cache and the {most - 1} most accurate of {len(cells)} policies: more {what} can't be read. "
    return [cell for cell in cells if cell.fingerprint in kept], words + "The table has all."


def _joined(*notes: str) -> str:
    return " ".join(filter(None, notes))
