"""Which policies no other beats: at most as many bytes and at least as right."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

from db.queries import CellSummary


def pareto(points: Sequence[tuple[float | None, float | None]]) -> list[bool]:
    """Return for each (cost, worth) whether it is on the front: no other costs at most as much and is worth at least
    as much without being its equal. A point with a missing part never is.
    """
    known = [(x, y) for x, y in points if x is not None and y is not None and isfinite(x) and isfinite(y)]
    best: dict[float, float] = {}
    highest = float("-inf")
    for cost, worth in sorted(known, key=lambda point: (point[0], -point[1])):
        if worth > highest:
            best[cost] = highest = worth
    return [x is not None and y is not None and best.get(x) == y for x, y in points]


def on_front(cells: Sequence[CellSummary]) -> set[str]:
    """Return the fingerprints on the front of accuracy against resident bytes, within each protocol."""
    found: set[str] = set()
    for key in {(cell.model, cell.benchmark, cell.protocol) for cell in cells}:
        group = [cell for cell in cells if (cell.model, cell.benchmark, cell.protocol) == key]
        marks = pareto([(cell.resident_bytes, cell.accuracy) for cell in group])
        found |= {cell.fingerprint for cell, mark in zip(group, marks, strict=True) if mark}
    return found
