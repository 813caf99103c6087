"""Three kinds of charts as SVG: lines with intervals, cost against accuracy with its front, published beside ours.

Pure functions of the numbers. Percent and percentage points throughout.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor

from jobs.papers.svg import FAINT, INK, Frame, Look, axes, document, line, look, mark, path, text, upright

PANEL, HEIGHT, LEFT, TOP = 350.0, 270.0, 62.0, 40.0
ACCURACY = (0.0, 20.0, 40.0, 60.0, 80.0, 100.0)
DODGE = 3.5  # pixels between lines that would hide each other
LEGEND_ROW = 18.0


@dataclass(frozen=True)
class Point:
    """A value with its 95% interval, at `x`."""

    x: float
    y: float
    low: float
    high: float


@dataclass(frozen=True)
class Series:
    name: str
    points: tuple[Point, ...]


@dataclass(frozen=True)
class Panel:
    """`front`: of the points, those that nothing beats at no more cost, the cheapest first; they are numbered."""

    title: str
    x_label: str
    series: tuple[Series, ...]
    front: tuple[Point, ...] = ()


@dataclass(frozen=True)
class Pair:
    """One policy: the paper's difference from its full cache, and ours with its interval."""

    label: str
    theirs: float
    ours: Point


def lines(title: str, panels: Sequence[Panel]) -> str:
    """Each series as a line; lines that lie on each other are shifted a little sideways."""
    parts, legend = [], max(len(panel.series) for panel in panels)
    for place, panel in enumerate(panels):
        frame = _frame(place, panel)
        parts += _panel(frame, panel, "accuracy, %" if place == 0 else "")
        middle = (len(panel.series) - 1) / 2
        for index, series in enumerate(panel.series):
            how, shift = look(index), DODGE * (index - middle)
            places = [(frame.across(point.x) + shift, frame.down(point.y)) for point in series.points]
            parts.append(path(places, how.colour))
            for (x, y), point in zip(places, series.points, strict=True):
                parts += [line(x, frame.down(point.low), x, frame.down(point.high), how.colour, 1.4), mark(x, y, how)]
            y = TOP + HEIGHT + 58 + LEGEND_ROW * index
            parts += [mark(frame.left + 6, y - 4, how), text(frame.left + 18, y, series.name)]
    height = TOP + HEIGHT + 58 + LEGEND_ROW * legend
    return document(_width(len(panels)), height, title, parts)


def scatter(title: str, panels: Sequence[Panel]) -> str:
    """Each series as points. The front is a dashed line, its points carry their number."""
    parts = []
    names = list(dict.fromkeys(series.name for panel in panels for series in panel.series))
    looks = {name: look(index) for index, name in enumerate(names)}
    for place, panel in enumerate(panels):
        frame = _frame(place, panel)
        parts += _panel(frame, panel, "accuracy, %" if place == 0 else "")
        front = [(frame.across(point.x), frame.down(point.y)) for point in panel.front]
        parts.append(path(front, INK, 1.0, "4 3") if front else "")
        for series in panel.series:
            how = looks[series.name]
            for point in series.points:
                x = frame.across(point.x)
                parts.append(line(x, frame.down(point.low), x, frame.down(point.high), how.colour, 0.8))
                parts.append(mark(x, frame.down(point.y), how, size=3.6))
        for index, (x, y) in enumerate(front, start=1):
            parts.append(text(x - 7, y - 7, str(index), anchor="end", size=11, bold=True))
    columns, start = 5, TOP + HEIGHT + 62
    step = (_width(len(panels)) - LEFT) / columns
    for index, name in enumerate(names):
        x, y = LEFT + step * (index % columns), start + LEGEND_ROW * (index // columns)
        parts += [mark(x, y - 4, looks[name], size=3.6), text(x + 11, y, name)]
    height = start + LEGEND_ROW * ceil(len(names) / columns)
    return document(_width(len(panels)), height, title, [part for part in parts if part])


def dumbbells(title: str, pairs: Sequence[Pair]) -> str:
    """One row a policy: hollow is published, filled is ours with its interval."""
    ours, theirs = look(0), Look("#777777", "diamond")
    values = [value for pair in pairs for value in (pair.theirs, pair.ours.low, pair.ours.high, 0.0)]
    low, high = 10.0 * floor(min(values) / 10), 10.0 * ceil(max(values) / 10)
    row, left, plot = 24.0, 24.0 + 7.0 * max(len(pair.label) for pair in pairs), 470.0
    frame = Frame(left, TOP, plot, row * len(pairs), (low, high), (0.0, float(len(pairs))))
    parts = axes(frame, _ticks(low, high), (), "points from the full cache", "")
    zero = frame.across(0.0)
    parts.append(line(zero, TOP, zero, TOP + frame.height, INK, 1.2))
    for index, pair in enumerate(pairs):
        y = TOP + row * (index + 0.5)
        mine, other = frame.across(pair.ours.x), frame.across(pair.theirs)
        parts += [
            text(left - 10, y + 4, pair.label, anchor="end"),
            line(mine, y, other, y, FAINT, 3.0),
            line(frame.across(pair.ours.low), y, frame.across(pair.ours.high), y, ours.colour, 1.6),
            mark(other, y, theirs, hollow=True),
            mark(mine, y, ours),
        ]
    y = TOP + frame.height + 58
    parts += [mark(left + 6, y - 4, ours), text(left + 18, y, "ours, with 95% interval")]
    parts += [mark(left + 206, y - 4, theirs, hollow=True), text(left + 218, y, "published")]
    parts.append(text(left, 22, title, bold=True))
    return document(left + plot + 24, y + 14, title, parts)


def _width(panels: int) -> float:
    return panels * (PANEL + LEFT) + 24.0


def _frame(place: int, panel: Panel) -> Frame:
    """With a little room beside the outermost points."""
    xs = [point.x for series in panel.series for point in series.points]
    room = 0.04 * (max(xs) - min(xs)) or 1.0
    return Frame(LEFT + place * (PANEL + LEFT), TOP, PANEL, HEIGHT, (min(xs) - room, max(xs) + room), (-3.0, 103.0))


def _panel(frame: Frame, panel: Panel, y_label: str) -> list[str]:
    parts = axes(frame, _ticks(*frame.x), ACCURACY, panel.x_label, "")
    if y_label:
        parts.append(upright(frame.left - 38, frame.top + frame.height / 2, y_label))
    return [*parts, text(frame.left, frame.top - 16, panel.title, bold=True)]


def _ticks(low: float, high: float) -> list[float]:
    """Round values between the two, at most eight."""
    span = high - low
    step = next((step for step in (1.0, 2.0, 2.5, 5.0, 10.0, 20.0, 25.0, 50.0) if span / step <= 7), 100.0)
    return [step * index for index in range(ceil(low / step), floor(high / step) + 1)]
