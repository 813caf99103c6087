"""Published differences beside ours, claim by claim. Pure: pairs in, a figure out."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from dashboard.drawing import FAINT, LEGEND_ROW_HEIGHT, finished, list_rows, say
from dashboard.paper_results import Pair
from dashboard.wording import hover, plain

VERDICT_COLOURS = {"supported": "#2e9e6b", "not supported": "#d9544f"}
UNDECIDED = "#b7791f"
BAND = "rgba(128,128,128,0.22)"
MOST = 12  # pairs told in words


def dumbbells(pairs: Sequence[Pair]) -> go.Figure:
    """One row a test: filled is ours with its 95% interval, hollow the published difference, grey the margin.

    The margin is the smallest difference that matters to the claim, on both sides of zero.
    """
    rows = list(pairs)[::-1]
    figure = go.Figure()
    for name, hollow in (("ours, coloured by verdict", False), ("published", True)):
        symbol = "diamond-open" if hollow else "circle"
        mark = {"symbol": symbol, "size": 11, "color": FAINT, "line": {"width": 2}}
        figure.add_scatter(x=[None], y=[None], mode="markers", name=name, marker=mark, hoverinfo="skip")
    for place, pair in enumerate(rows):
        colour = VERDICT_COLOURS.get(pair.verdict, UNDECIDED)
        if pair.published is not None:
            figure.add_scatter(
                x=[pair.published, pair.value],
                y=[place, place],
                mode="lines",
                line={"color": FAINT, "width": 2},
                hoverinfo="skip",
                showlegend=False,
            )
            _mark(figure, place + 0.16, pair.published, pair.published_low, pair.published_high, FAINT, True, pair)
        _mark(figure, place, pair.value, pair.low, pair.high, colour, False, pair)
    if not rows:
        say(figure, "No test of a difference in this selection")
    shapes = [
        {"type": "rect", "x0": -pair.margin, "x1": pair.margin, "y0": place - 0.38, "y1": place + 0.38}
        for place, pair in enumerate(rows)
    ]
    figure.update_layout(
        shapes=[
            *({**shape, "fillcolor": BAND, "line": {"width": 0}, "layer": "below"} for shape in shapes),
            {"type": "line", "yref": "y domain", "x0": 0, "x1": 0, "y0": 0, "y1": 1, "line": {"color": FAINT}},
        ]
    )
    height = list_rows(figure, labels(rows))
    figure.update_xaxes(title={"text": "Difference in accuracy (95% intervals)"}, tickformat="+.0%")
    figure.update_yaxes(title={"text": "Claim and test"})
    return finished(figure, "Published and ours", plot_height=height, legend_height=LEGEND_ROW_HEIGHT, top=True)


def labels(pairs: Sequence[Pair]) -> list[str]:
    """The claims' names; several tests of one claim are told apart by the words that they don't share."""
    words = {
        pair.claim: set.intersection(*(set(each.what.split()) for each in pairs if each.claim == pair.claim))
        for pair in pairs
    }
    several = {claim for claim in words if sum(pair.claim == claim for pair in pairs) > 1}
    return [
        " ".join([pair.claim, *(word for word in pair.what.split() if word not in words[pair.claim])])
        if pair.claim in several
        else pair.claim
        for pair in pairs
    ]


def _mark(
    figure: go.Figure, y: float, x: float, low: float | None, high: float | None, colour: str, hollow: bool, pair: Pair
) -> None:
    known = low is not None and high is not None
    figure.add_scatter(
        x=[x],
        y=[y],
        error_x={
            "type": "data",
            "symmetric": False,
            "array": [high - x if high is not None else 0],
            "arrayminus": [x - low if low is not None else 0],
            "color": colour,
            "thickness": 1.4,
            "width": 4,
            "visible": known,
        },
        mode="markers",
        marker={"symbol": "diamond-open" if hollow else "circle", "size": 11, "color": colour, "line": {"width": 2}},
        hovertemplate=hover(_told(pair)),
        showlegend=False,
    )


def _told(pair: Pair) -> list[str]:
    return [
        f"<b>{plain(pair.claim)}</b>: {plain(pair.verdict)}",
        plain(pair.what),
        f"ours {_points(pair.value, pair.low, pair.high)}, {pair.n:,} problems",
        f"published {_points(pair.published, pair.published_low, pair.published_high)}",
        f"margin {100 * pair.margin:.1f} points",
    ]


def _points(value: float | None, low: float | None, high: float | None) -> str:
    if value is None:
        return "– (not printed there)"
    ends = "" if low is None or high is None else f" [{100 * low:+.1f}, {100 * high:+.1f}]"
    return f"{100 * value:+.1f} points{ends}"


def in_words(pairs: Sequence[Pair]) -> str:
    """Return the figure in words, for those who can't see it."""
    told = [
        f"{pair.claim}: ours {_points(pair.value, None, None)}, published {_points(pair.published, None, None)}, "
        f"{pair.verdict}"
        for pair in pairs[:MOST]
    ]
    return f"Chart: published differences beside ours, {len(pairs)} tests. " + "; ".join(told)
