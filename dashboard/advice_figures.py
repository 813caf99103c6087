"""What each policy loses over what it takes, beside the tolerated loss and the budget. Nothing of Streamlit here."""

from __future__ import annotations

from collections.abc import Mapping

import plotly.graph_objects as go

from dashboard.colours import Look
from dashboard.drawing import FAINT, finished, say
from dashboard.marks import Mark, add_marks
from dashboard.wording import hover, human_bytes, percent, plain
from jobs.advice import Answer, Candidate, Share

PLOT_HEIGHT = 380
MOST = 12  # policies told in words


def losses(found: Answer, looks: Mapping[str, Look]) -> go.Figure:
    """Each policy's difference from the full cache with its 95% interval, over its share of the full cache's bytes.

    A hollow mark is undecided. Below the dashed line more is lost than is tolerated; left of the upright one it fits.
    """
    figure = go.Figure()
    shown = [each for each in found.candidates if each.margin is not None and each.size.share is not None]
    marks = []
    for each in shown:
        assert each.margin is not None
        assert each.size.share is not None
        margin = each.margin
        marks.append(
            Mark(
                x=each.size.share,
                y=margin.difference,
                above=margin.high - margin.difference,
                below=margin.difference - margin.low,
                look=looks[each.cell.policy],
                preset=each.cell.policy_name,
                name=plain(each.cell.policy_name),
                told=hover(_told(each)),
                hollow=each.verdict not in ("holds", "loses more"),
            )
        )
    add_marks(figure, marks, together=True)
    figure.update_traces(cliponaxis=False)
    if not shown:
        say(figure, "No policy was compared with a full cache here")
    lines = [
        {"type": "line", "xref": "x domain", "x0": 0, "x1": 1, "y0": -found.question.loss, "y1": -found.question.loss}
    ]
    if isinstance(found.question.budget, Share):
        most = found.question.budget.most
        lines.append({"type": "line", "yref": "y domain", "y0": 0, "y1": 1, "x0": most, "x1": most})
    look_of_line = {"line": {"color": FAINT, "width": 1.5, "dash": "dash"}, "layer": "below"}
    figure.update_layout(shapes=[{**line, **look_of_line} for line in lines])
    shares = [each.size.share for each in shown if each.size.share is not None]
    figure.update_xaxes(
        title={"text": "Device bytes, share of the full cache's"},
        tickformat=".0%",
        range=[0, 1.04 * max([1.0, *shares])],
    )
    figure.update_yaxes(title={"text": "Difference in accuracy from the full cache"}, tickformat="+.0%")
    return finished(figure, "What each policy loses", plot_height=PLOT_HEIGHT)


def _told(each: Candidate) -> list[str]:
    margin = each.margin
    assert margin is not None
    return [
        f"<b>{plain(each.cell.policy)}</b>: {each.verdict}",
        f"difference {100 * margin.difference:+.1f} points ({100 * margin.low:+.1f} to {100 * margin.high:+.1f})",
        f"{margin.n:,} problems in common with the full cache",
        f"{percent(each.size.share)} of the full cache's device bytes, {human_bytes(each.size.device)}",
        f"host memory {human_bytes(each.size.host)}",
    ]


def in_words(found: Answer) -> str:
    """Return the figure in words, for those who can't see it."""
    told = [
        f"{each.cell.policy}, {percent(each.size.share)}: {100 * each.margin.difference:+.1f} points, {each.verdict}"
        for each in found.candidates[:MOST]
        if each.margin is not None
    ]
    return "Chart: difference in accuracy from the full cache over device bytes. " + ("; ".join(told) or "Nothing.")
