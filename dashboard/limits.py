"""How many policies a chart shows at most. More can't be told apart, and take the reader's browser seconds to draw."""

from __future__ import annotations

from collections.abc import Sequence

from dashboard.drawing import FULL
from db.queries import CellSummary

LISTED = 40  # policies in a chart that gives each a row
GLANCE = 24  # in two such charts side by side: what can be seen without scrolling
MARKED = 300  # in one that gives each a mark


def limited(cells: Sequence[CellSummary], most: int, what: str) -> tuple[list[CellSummary], list[str]]:
    """Return at most so many cells, in their order, and the words that say so: the full cache, then the most accurate.

    `what` begins the sentence and names the charts.
    """
    if len(cells) <= most:
        return list(cells), []
    ranked = sorted(cells, key=lambda cell: (cell.policy_name != FULL, -(cell.accuracy or 0.0), cell.policy))
    kept = {cell.fingerprint for cell in ranked[:most]}
    first = "the full cache and " if ranked[0].policy_name == FULL else ""
    words = f"{what} {first}the most accurate others, {most} of {len(cells):,} policies; the table has all."
    return [cell for cell in cells if cell.fingerprint in kept], [words]
