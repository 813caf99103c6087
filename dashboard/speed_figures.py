"""How fast policies answer: latencies as they are spread over samples. Quantiles in, figures out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import plotly.graph_objects as go

from dashboard.colours import Look
from dashboard.drawing import FAINT, LEGEND_ROW_HEIGHT, finished, list_rows, require_one_protocol, say
from dashboard.wording import dash, hover, plain
from db.queries import CellSpeed, CellSummary, Quantiles

Measure = Literal["ttft", "tpot"]
TITLES = {"ttft": "Time to first token", "tpot": "Time per output token"}
WIDEST = 30.0  # from the least to the largest value on a linear axis
MILLI = 1000.0
DARK, LIGHT = "#3a3f47", "#ffffff"


def spread(speed: CellSpeed | None, measure: Measure) -> Quantiles | None:
    """Return how a latency is spread over a cell's samples."""
    return speed and (speed.ttft_s if measure == "ttft" else speed.tpot_s)


def latency_spread(
    cells: Sequence[CellSummary], speeds: Mapping[str, CellSpeed], looks: Mapping[str, Look], measure: Measure
) -> go.Figure:
    """One row a policy, the fastest median on top: half of the samples in the bar, 90% along the line, 99% left of it.

    Policies without a measured sample are left out. Hollow: another engine ran on the node.
    """
    require_one_protocol(cells)
    rows = [(cell, found) for cell in cells if (found := spread(speeds.get(cell.fingerprint), measure))]
    rows.sort(key=lambda row: -row[1].median)
    figure = go.Figure()
    told = [_latency_hover(cell, found, measure) for cell, found in rows]
    _add_range(figure, rows, (5, 95), 0.1, looks, told)
    _add_range(figure, rows, (25, 75), 0.5, looks, told)
    symbols = [f"{looks[cell.policy].marker}{'-open' if _shared(cell) else ''}" for cell, _ in rows]
    fills = [FAINT if _shared(cell) else LIGHT for cell, _ in rows]
    medians = {"color": fills, "symbol": symbols, "size": 9, "line": {"width": 1.5, "color": DARK}}
    _add_marks(figure, [found.median for _, found in rows], medians, told, "median")
    ticks = {"symbol": "line-ns", "size": 13, "line": {"width": 2, "color": FAINT}}
    _add_marks(figure, [found.at[99] for _, found in rows], ticks, told, "99%")
    if measure == "tpot":
        crosses = {"symbol": "x-thin", "size": 8, "line": {"width": 2, "color": FAINT}}
        _add_marks(figure, [cell.tpot_p50_s for cell, _ in rows], crosses, told, "decode step, 50%")
        _add_marks(
            figure, [cell.tpot_p99_s for cell, _ in rows], {**crosses, "symbol": "y-up"}, told, "decode step, 99%"
        )
    if not rows:
        say(figure)
    least = min((found.at[5] for _, found in rows), default=0.0)
    most = max((found.at[99] for _, found in rows), default=0.0)
    log = least > 0 and most / least > WIDEST
    figure.update_layout(barmode="overlay")
    figure.update_xaxes(
        title={"text": f"{TITLES[measure]} (ms{', logarithmic' if log else ''})"},
        type="log" if log else "linear",
        rangemode="normal" if log else "tozero",
    )
    height = list_rows(figure, [cell.policy for cell, _ in rows])
    return finished(figure, TITLES[measure], plot_height=height, legend_height=2 * LEGEND_ROW_HEIGHT, top=True)


def _add_range(
    figure: go.Figure,
    rows: Sequence[tuple[CellSummary, Quantiles]],
    ends: tuple[int, int],
    width: float,
    looks: Mapping[str, Look],
    told: Sequence[str],
) -> None:
    colours = [looks[cell.policy].colour for cell, _ in rows]
    figure.add_bar(
        y=list(range(len(rows))),
        x=[MILLI * (found.at[ends[1]] - found.at[ends[0]]) for _, found in rows],
        base=[MILLI * found.at[ends[0]] for _, found in rows],
        orientation="h",
        width=width,
        marker={
            "color": [
                f"{colour}40" if _shared(cell) else colour for (cell, _), colour in zip(rows, colours, strict=True)
            ],
            "line": {"width": 1, "color": colours},
        },
        hovertemplate=list(told),
        name=f"{ends[0]}% to {ends[1]}%",
        showlegend=False,  # its colours are the policies'; what it spans is said below the chart
    )


def _shared(cell: CellSummary) -> bool:
    return cell.exclusive is False


def _add_marks(
    figure: go.Figure, seconds: Sequence[float | None], mark: dict[str, Any], told: Sequence[str], name: str
) -> None:
    figure.add_scatter(
        y=list(range(len(seconds))),
        x=[None if each is None else MILLI * each for each in seconds],
        mode="markers",
        marker=mark,
        hovertemplate=list(told),
        name=name,
    )


def _latency_hover(cell: CellSummary, found: Quantiles, measure: Measure) -> str:
    lines = [
        f"<b>{plain(cell.policy)}</b>",
        f"{found.n:,} samples: median {milliseconds(found.median)}, mean {milliseconds(found.mean)}",
        f"half from {milliseconds(found.at[25])} to {milliseconds(found.at[75])}",
        f"5% below {milliseconds(found.at[5])}, 5% above {milliseconds(found.at[95])}",
        f"1% above {milliseconds(found.at[99])}",
        f"on {plain(', '.join(cell.devices)) or 'no device'}"
        + (", node shared" if cell.exclusive is False else "")
        + f", largest batch {cell.max_rows or '–'}",
    ]
    if measure == "tpot":
        steps = f"decode steps: median {milliseconds(cell.tpot_p50_s)}, 1% above {milliseconds(cell.tpot_p99_s)}"
        lines.insert(5, steps)
    return hover(lines)


def milliseconds(seconds: float | None) -> str:
    """Return a time in milliseconds with three digits."""
    return dash() if seconds is None else f"{MILLI * seconds:,.3g} ms" if seconds < 1 else f"{seconds:,.3g} s"


def latency_in_words(cells: Sequence[CellSummary], speeds: Mapping[str, CellSpeed], measure: Measure) -> str:
    """Return the latencies in words, for those who can't see them."""
    rows = [(cell, found) for cell in cells if (found := spread(speeds.get(cell.fingerprint), measure))]
    rows.sort(key=lambda row: row[1].median)
    told = [f"{c.policy}: median {milliseconds(q.median)}, 99% below {milliseconds(q.at[99])}" for c, q in rows[:12]]
    return f"Chart: {TITLES[measure]} of {len(rows)} policies, the fastest first. " + "; ".join(told)
