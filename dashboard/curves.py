"""Budget curves: how a policy's accuracy falls as fewer bytes stay, one line a family, and where it breaks.

A family is a preset with all its settings but one, the knob: a line that turned two knobs at once would say nothing
about either.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import pandas as pd
import plotly.graph_objects as go

from dashboard.colours import Look
from dashboard.drawing import (
    FAINT,
    FULL,
    baseline_shapes,
    describe,
    error_bars,
    finished,
    interval,
    require_one_protocol,
    say,
)
from dashboard.wording import percent, plain, shortened
from db.queries import CellSummary, PairedDelta

# Settings that say how much is kept, the most usual first.
SIZE_KNOBS = ("budget", "hbm", "evict", "packed", "packed_bytes", "packed_bits", "chunk_keep", "read_budget")
DEFAULT = "default"
HALF = 0.5  # of the full cache's bytes
IN_COLOUR = 8  # as many lines as colours can still be told apart
PLOT_HEIGHT = 460
DASHES = ("solid", "dash", "dot", "dashdot")  # lines of one preset have its hue
FADED = "#8c8c8c"


@dataclass(frozen=True, slots=True)
class Line:
    """Cells of one protocol that differ in one knob."""

    name: str
    policy_name: str
    knob: str | None  # None: there is one cell only
    points: tuple[CellSummary, ...]  # measured ones, the least resident share first


def settings(label: str) -> tuple[str, dict[str, str]]:
    """Return a policy's label without the settings that say how much is kept, and these."""
    kept, sizes = [], {}
    for word in label.split():
        key, equals, value = word.partition("=")
        if equals and key in SIZE_KNOBS:
            sizes[key] = value
        else:
            kept.append(word)
    return " ".join(kept), sizes


def measured(cell: CellSummary) -> bool:
    """Whether a cell has a place in the chart."""
    return cell.resident_share is not None and interval(cell) is not None


def lines(cells: Sequence[CellSummary]) -> list[Line]:
    """Return the families of cells that can be drawn; cells of different protocols are never on one line."""
    families: dict[tuple[str, ...], list[CellSummary]] = {}
    for cell in cells:
        if measured(cell):
            key = (cell.model, cell.benchmark, cell.protocol, cell.policy_name, settings(cell.policy)[0])
            families.setdefault(key, []).append(cell)
    return [line for key, members in sorted(families.items()) for line in _split(key[-1], members)]


def _split(name: str, members: Sequence[CellSummary]) -> list[Line]:
    """Part a family until one knob changes along each line: the one with the most values."""
    sizes = [settings(cell.policy)[1] for cell in members]
    values = {knob: {size.get(knob, DEFAULT) for size in sizes} for knob in SIZE_KNOBS}
    varying = [knob for knob in SIZE_KNOBS if len(values[knob]) > 1]
    knob = max(varying, key=lambda each: len(values[each]), default=None)
    groups: dict[tuple[tuple[str, str], ...], list[CellSummary]] = {}
    for cell, size in zip(members, sizes, strict=True):
        others = tuple((each, size.get(each, DEFAULT)) for each in varying if each != knob)
        groups.setdefault(others, []).append(cell)
    return [
        Line(
            " ".join([name, *(f"{each}={value}" for each, value in others if value != DEFAULT)]),
            group[0].policy_name,
            knob if len(group) > 1 else None,
            tuple(sorted(group, key=lambda cell: (cell.resident_share or 0.0, cell.accuracy or 0.0))),
        )
        for others, group in sorted(groups.items())
    ]


def cliff(line: Line) -> tuple[CellSummary, CellSummary] | None:
    """Return the neighbours (more bytes, fewer) between which accuracy falls most, if their intervals are apart."""
    found, deepest = None, 0.0
    for fewer, more in zip(line.points, line.points[1:], strict=False):
        fall = (more.accuracy or 0.0) - (fewer.accuracy or 0.0)
        if fall > deepest and (more.accuracy_low or 0.0) > (fewer.accuracy_high or 0.0):
            found, deepest = (more, fewer), fall
    return found


def first_in_colour(cells: Sequence[CellSummary]) -> list[str]:
    """Return the presets that are most accurate on at most half of the full cache's bytes: a start for a choice."""
    best: dict[str, float] = {}
    for cell in cells:
        share, accuracy = cell.resident_share, cell.accuracy
        if share is not None and accuracy is not None and cell.policy_name != FULL:
            score = accuracy if share <= HALF else -1.0
            best[cell.policy_name] = max(best.get(cell.policy_name, -1.0), score)
    return sorted(best, key=lambda name: (-best[name], name))[:IN_COLOUR]


def budget_curves(
    cells: Sequence[CellSummary], looks: Mapping[str, Look], in_colour: Collection[str] | None = None
) -> go.Figure:
    """Accuracy against the share of the full cache's bytes that stays resident, one line a family.

    Presets outside of `in_colour` (None: all are in it) are grey. A wide pale stretch is a cliff; the full cache is the
    dashed line.
    """
    require_one_protocol(cells)
    figure = go.Figure()
    found = [line for line in lines(cells) if line.policy_name != FULL]
    grey = [line for line in found if in_colour is not None and line.policy_name not in in_colour]
    _add_grey(figure, grey)
    coloured = [line for line in found if line not in grey]
    place: Counter[str] = Counter()
    for line, name in zip(coloured, shortened([line.name for line in coloured]), strict=True):
        _add_line(figure, line, name, looks, DASHES[place[line.policy_name] % len(DASHES)])
        place[line.policy_name] += 1
    full = next((cell for cell in cells if cell.policy_name == FULL and measured(cell)), None)
    if full is not None:
        figure.update_layout(shapes=baseline_shapes(full))
        across = {"x": 0, "xref": "x domain", "xanchor": "left", "showarrow": False}
        text = f"full cache {percent(full.accuracy)}"
        figure.add_annotation(text=text, y=full.accuracy, yanchor="bottom", **across)
    if not found:
        say(figure)
    figure.update_yaxes(title={"text": "Accuracy (95% interval)"}, tickformat=".0%", range=[-0.03, 1.09])
    widest = max((cell.resident_share or 0.0 for line in found for cell in line.points), default=1.0)
    figure.update_xaxes(
        title={"text": "Resident KV bytes / bytes of the full cache"},
        tickformat=".0%",
        range=[-0.02, max(1.0, widest) + 0.03],
    )
    finished(figure, "Accuracy against the resident share", plot_height=PLOT_HEIGHT, legend_height=0)
    beside = {"orientation": "v", "x": 1.01, "xanchor": "left", "y": 1, "yanchor": "top"}
    return figure.update_layout(showlegend=bool(found), legend=beside)


def _add_grey(figure: go.Figure, grey: Sequence[Line]) -> None:
    """All as one trace: a gap parts the lines."""
    points = [cell for line in grey for cell in (*line.points, None)]
    if points:
        figure.add_scatter(
            x=[cell and cell.resident_share for cell in points],
            y=[cell and cell.accuracy for cell in points],
            mode="lines+markers",
            line={"color": FADED, "width": 1},
            marker={"color": FADED, "size": 5},
            name="others",
            legendrank=2000,
            hovertemplate=["" if cell is None else describe(cell) for cell in points],
            connectgaps=False,
        )


def _add_line(figure: go.Figure, line: Line, name: str, looks: Mapping[str, Look], dash: str) -> None:
    look = looks[line.points[len(line.points) // 2].policy]
    steep = cliff(line)
    if steep is not None:
        figure.add_scatter(
            x=[cell.resident_share for cell in steep],
            y=[cell.accuracy for cell in steep],
            mode="lines",
            line={"color": look.colour, "width": 11},
            opacity=0.22,
            legendgroup=plain(line.name),
            showlegend=False,
            hoverinfo="skip",
        )
    reaches = [reach for cell in line.points if (reach := interval(cell)) is not None]
    along = [f"along this line changes: {line.knob}"] if line.knob else []
    figure.add_scatter(
        x=[cell.resident_share for cell in line.points],
        y=[accuracy for accuracy, _, _ in reaches],
        error_y=error_bars([above for _, above, _ in reaches], [below for _, _, below in reaches], look.colour),
        mode="lines+markers",
        name=name,
        legendgroup=plain(line.name),
        line={"color": look.colour, "width": 2, "dash": dash},
        marker={
            "color": [looks[cell.policy].colour for cell in line.points],
            "symbol": look.marker,
            "size": 10,
            "line": {"width": 1, "color": FAINT},
        },
        hovertemplate=[describe(cell, *along) for cell in line.points],
    )


def cliff_table(cells: Sequence[CellSummary], deltas: Mapping[str, PairedDelta]) -> pd.DataFrame:
    """One row a line: the least share that isn't shown to be worse than the baseline, and where accuracy falls most.

    `deltas` are paired differences to the baseline. From the fullest cache downwards: the first that is worse ends it.
    """
    columns = ["policy", "knob", "holds down to", "setting there", "cliff from", "cliff to", "accuracy lost there"]
    rows = []
    for line in lines(cells):
        if line.policy_name == FULL:
            continue
        holds: CellSummary | None = None
        for cell in reversed(line.points):
            delta = deltas.get(cell.fingerprint)
            if delta is None or delta.high < 0:
                break
            holds = cell
        steep = cliff(line)
        rows.append(
            [
                line.name,
                line.knob,
                holds and holds.resident_share,
                holds and _setting(holds, line.knob),
                steep and steep[0].resident_share,
                steep and steep[1].resident_share,
                steep and (steep[0].accuracy or 0.0) - (steep[1].accuracy or 0.0),
            ]
        )
    # What holds nowhere has no share to be ranked by: it comes last.
    rows.sort(key=lambda row: (row[2] is None, row[2] or 0.0, row[0]))
    return pd.DataFrame(rows, columns=columns)


def _setting(cell: CellSummary, knob: str | None) -> str | None:
    return None if knob is None else f"{knob}={settings(cell.policy)[1].get(knob, DEFAULT)}"


def in_words(cells: Sequence[CellSummary]) -> str:
    """Return the curves in words, for those who can't see them."""
    told = [
        f"{line.name}: " + ", ".join(f"{percent(c.accuracy)} at {percent(c.resident_share, 0)}" for c in line.points)
        for line in lines(cells)[:12]
    ]
    return f"Chart: accuracy against the resident share, {len(lines(cells))} lines. " + "; ".join(told)
