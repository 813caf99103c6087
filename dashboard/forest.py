"""Paired differences from a baseline: each policy's gain or loss in accuracy with its interval, the best on top."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import plotly.graph_objects as go

from dashboard.colours import Look
from dashboard.drawing import FAINT, finished, list_rows, require_one_protocol, say
from dashboard.marks import SINGLY_UP_TO, Mark, add_marks
from dashboard.wording import hover, plain, signed
from db.queries import CellSummary, PairedDelta


def ranked(
    cells: Sequence[CellSummary], deltas: Mapping[str, PairedDelta]
) -> list[tuple[CellSummary, PairedDelta | None]]:
    """Return the cells by their difference, the best first; those without a pair come last."""
    pairs = [(cell, deltas.get(cell.fingerprint)) for cell in cells]
    return sorted(pairs, key=lambda pair: (pair[1] is None, -pair[1].delta if pair[1] else 0.0, pair[0].policy))


def paired_differences(
    cells: Sequence[CellSummary], deltas: Mapping[str, PairedDelta], looks: Mapping[str, Look], baseline: CellSummary
) -> go.Figure:
    """Each cell's accuracy minus the baseline's on the samples that both have, with its 95% interval.

    A hollow mark's interval holds zero: no difference is shown. A cell without a pair has a dash instead of a mark.
    """
    require_one_protocol([*cells, baseline])
    rows = ranked([cell for cell in cells if cell.fingerprint != baseline.fingerprint], deltas)[::-1]
    figure = go.Figure()
    dashes, marks = [], []
    for place, (cell, delta) in enumerate(rows):
        if delta is None:
            reason = "– no sample in common" if cell.n else "– no sample judged yet"
            dashes.append({"x": 0, "y": place, "text": reason, "showarrow": False})
            continue
        marks.append(
            Mark(
                x=delta.delta,
                y=place,
                above=delta.high - delta.delta,
                below=delta.delta - delta.low,
                look=looks[cell.policy],
                preset=cell.policy_name,
                name=plain(cell.policy),
                told=hover(_told(cell, delta, baseline)),
                hollow=delta.low <= 0 <= delta.high,
            )
        )
    add_marks(figure, marks, len(rows) > SINGLY_UP_TO, interval="x", size=10)
    if rows:
        zero = {"type": "line", "xref": "x", "yref": "y domain", "x0": 0, "x1": 0, "y0": 0, "y1": 1, "layer": "below"}
        figure.update_layout(shapes=[{**zero, "line": {"color": FAINT, "width": 1.5, "dash": "dash"}}])
    else:
        say(figure, "Nothing to compare with the baseline yet")
    limits = [edge for _, delta in rows if delta for edge in (delta.low, delta.high)]
    low, high = min([*limits, -0.05]), max([*limits, 0.05])
    # On that side of zero on which there is more room for words.
    side = {"xanchor": "right", "xshift": -8} if -low > high else {"xanchor": "left", "xshift": 8}
    dashes = [{**dash, **side} for dash in dashes]
    figure.update_layout(annotations=[*figure.layout.annotations, *dashes], showlegend=False)
    margin = 0.03 * (high - low)
    figure.update_xaxes(
        title={"text": "Difference in accuracy, paired by sample (95% interval)"},
        tickformat="+.0%",
        range=[low - margin, high + margin],
    )
    height = list_rows(figure, [cell.policy for cell, _ in rows])
    return finished(figure, "Difference from the baseline", plot_height=height, legend_height=0, top=True)


def _told(cell: CellSummary, delta: PairedDelta, baseline: CellSummary) -> list[str]:
    return [
        f"<b>{plain(cell.policy)}</b>",
        f"against {plain(baseline.policy)}",
        f"difference {signed(delta.delta)} ({signed(delta.low)} to {signed(delta.high)})",
        f"{delta.pairs} pairs: {delta.gained} gained (right only here), {delta.lost} lost (right only there)",
    ]


def in_words(cells: Sequence[CellSummary], deltas: Mapping[str, PairedDelta], baseline: CellSummary) -> str:
    """Return the differences in words, for those who can't see them."""
    rows = ranked([cell for cell in cells if cell.fingerprint != baseline.fingerprint], deltas)
    told = [f"{cell.policy}: {signed(delta.delta) if delta else 'no pair'}" for cell, delta in rows[:12]]
    return f"Chart: difference in accuracy from {baseline.policy}, {len(rows)} policies, the best first. " + "; ".join(
        told
    )
