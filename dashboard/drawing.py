"""What all charts share: how a cell is named, explained and marked, and the frame around a plot."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go

from dashboard.colours import Look
from dashboard.wording import dash, hover, human_bytes, number, percent, plain, shortened
from db.queries import CellSummary

FAINT = "#808080"  # has a contrast of 3:1 to white and to black
BAND = "rgba(128,128,128,0.13)"
GRID = "rgba(128,128,128,0.22)"
FULL = "full"
PLOT_HEIGHT = 300
TITLE_HEIGHT = 60
LEGEND_ROW_HEIGHT = 20
LETTER_WIDTH, AXIS_TITLE_WIDTH = 5.4, 44  # pixels, of a tick label and of what stands left of it
MEASURED_LABELS = 24  # so many plotly may measure to set the margin
ROW_HEIGHT = 26  # of a list of policies: clears a label of one line


def require_one_protocol(cells: Sequence[CellSummary]) -> None:
    """Raise ValueError if the cells can't be compared."""
    found = {(cell.model, cell.benchmark, cell.protocol) for cell in cells}
    if len(found) > 1:
        raise ValueError(f"{len(found)} different (model, benchmark, protocol) can't share a chart; choose one of them")


def marker(look: Look, hollow: bool = False, ring: bool = False) -> dict[str, Any]:
    """Return a policy's mark; a hollow one says less than it seems to, a ringed one is on the Pareto front."""
    if ring and not hollow:
        return {"color": look.colour, "symbol": look.marker, "size": 15, "line": {"width": 3, "color": FAINT}}
    if hollow:
        return {"color": look.colour, "symbol": f"{look.marker}-open", "size": 12, "line": {"width": 2.5}}
    return {"color": look.colour, "symbol": look.marker, "size": 12, "line": {"width": 1, "color": FAINT}}


def interval(cell: CellSummary) -> tuple[float, float, float] | None:
    """Return (accuracy, how far the interval reaches up, and down), or None where there is no accuracy."""
    if cell.accuracy is None or cell.accuracy_low is None or cell.accuracy_high is None:
        return None
    return cell.accuracy, cell.accuracy_high - cell.accuracy, cell.accuracy - cell.accuracy_low


def error_bars(above: Sequence[float], below: Sequence[float], colour: str) -> dict[str, Any]:
    """Return plotly's words for intervals that reach `above` and `below` their points."""
    common = {"type": "data", "symmetric": False, "thickness": 1.4, "width": 4, "color": colour}
    return {**common, "array": list(above), "arrayminus": list(below)}


def describe(cell: CellSummary, *more: str) -> str:
    """Return what a cell's mark says when one points at it."""
    lines = [
        f"<b>{plain(cell.policy)}</b>",
        f"accuracy {percent(cell.accuracy)}"
        + (f" ({percent(cell.accuracy_low)} to {percent(cell.accuracy_high)})" if interval(cell) else ""),
        f"{cell.n} samples of {cell.problems} problems",
        f"cut off by the token limit {percent(cell.truncation_rate)}",
        f"resident {human_bytes(cell.resident_bytes)} a sequence, {percent(cell.resident_share)} of the full cache",
        f"host {human_bytes(cell.ddr_bytes)}, packed {human_bytes(cell.packed_bytes)}",
        f"decode {number(cell.decode_tokens_per_s, 'tokens/s')}, largest batch {cell.max_rows or dash()}",
        f"on {plain(', '.join(cell.devices)) or 'no device'}"
        + ("" if cell.exclusive is not False else ", node shared"),
        *more,
    ]
    return hover(lines)


def baseline_shapes(cell: CellSummary) -> list[dict[str, Any]]:
    """Return a cell's accuracy as a dashed line across the plot, and its interval as a band."""
    across = {"xref": "x domain", "x0": 0, "x1": 1, "layer": "below"}
    band = {"y0": cell.accuracy_low, "y1": cell.accuracy_high, "fillcolor": BAND, "line": {"width": 0}}
    line = {"y0": cell.accuracy, "y1": cell.accuracy, "line": {"color": FAINT, "width": 1, "dash": "dash"}}
    return [{**across, "type": "rect", **band}, {**across, "type": "line", **line}]


def by_accuracy(cells: Sequence[CellSummary]) -> list[CellSummary]:
    """Plotly draws the first row at the bottom, so the best comes last, and what has no accuracy first."""
    return sorted(cells, key=lambda cell: (-1.0 if cell.accuracy is None else cell.accuracy, cell.policy))


def list_rows(figure: go.Figure, labels: Sequence[str]) -> int:
    """Make the y axis a list with one row a label, the first at the bottom; return its height in pixels.

    Rows are told apart by their place, not by their name: two policies may have the same label, or get it by being
    shortened.
    """
    figure.update_yaxes(
        title={"text": "Policy"},
        showgrid=False,
        range=[-0.6, max(len(labels), 1) - 0.4],
        tickvals=list(range(len(labels))),
        ticktext=shortened(labels),
        ticklabeloverflow="allow",  # else plotly measures each label to hide what is cut off, and none is
    )
    return max(110, ROW_HEIGHT * len(labels))


def say(figure: go.Figure, text: str = "Nothing measured yet") -> None:
    """Say in an empty plot why it is empty."""
    figure.add_annotation(text=plain(text), showarrow=False, x=0.5, y=0.5, xref="paper", yref="paper")
    figure.update_xaxes(showticklabels=False)


def finished(
    figure: go.Figure,
    title: str,
    *,
    plot_height: int = PLOT_HEIGHT,
    legend_height: int = LEGEND_ROW_HEIGHT,
    right: int = 20,
    top: bool = False,
) -> go.Figure:
    """Set what all charts share. Heights are in pixels, so that the legend clears the axis title however long it is.

    `top` puts legend and axis above the plot: a list can be so long that its end isn't seen.
    """
    beside = 74 + legend_height
    above, below = (TITLE_HEIGHT + beside - 20, 20) if top else (TITLE_HEIGHT, beside)
    place = {"yanchor": "bottom", "y": 1 + 58 / plot_height} if top else {"yanchor": "top", "y": -66 / plot_height}
    figure.update_layout(
        title={"text": title, "x": 0, "xanchor": "left", "yref": "container", "y": 1, "yanchor": "top"},
        title_font={"size": 18},
        title_pad={"t": 20},
        height=above + plot_height + below,
        margin={"l": 10, "r": right, "t": above, "b": below},
        legend={"orientation": "h", "x": 0, "traceorder": "normal", **place},
        hoverlabel={"align": "left", "namelength": -1},
    )
    figure.update_xaxes(gridcolor=GRID, zeroline=False, automargin=True, title={"standoff": 12})
    figure.update_yaxes(gridcolor=GRID, zeroline=False, automargin=True)
    if top:
        figure.update_xaxes(side="top")
        _long_list(figure)
    return figure


def _long_list(figure: go.Figure) -> None:
    """Give a long list its margins as numbers: finding them out, plotly draws it several times, which takes seconds."""
    labels = figure.layout.yaxis.ticktext or ()
    if len(labels) > MEASURED_LABELS:
        widest = max(len(html.unescape(label)) for label in labels)
        figure.update_xaxes(automargin=False)
        figure.update_yaxes(automargin=False)
        figure.update_layout(margin_l=AXIS_TITLE_WIDTH + round(LETTER_WIDTH * widest))
