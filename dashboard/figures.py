"""The charts of a selection: lists of `CellSummary` in, plotly figures out. Nothing of Streamlit here.

A chart holds cells of one protocol only (`require_one_protocol`): scores under different token limits, sampling or
graders don't belong on one axis.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal

import plotly.graph_objects as go

from dashboard.colours import OUTCOME_COLOURS, TIER_COLOURS, Look
from dashboard.drawing import (
    FAINT,
    FULL,
    LEGEND_ROW_HEIGHT,
    baseline_shapes,
    by_accuracy,
    describe,
    finished,
    interval,
    list_rows,
    require_one_protocol,
    say,
)
from dashboard.fronts import on_front
from dashboard.marks import SINGLY_UP_TO, Mark, add_marks
from dashboard.wording import OUTCOME_NAMES, byte_unit, hover, human_bytes, percent, plain, shortened
from db.queries import CellSummary

LEGEND_WIDTH = 28  # characters, so that two columns fit below half a page

MemoryAxis = Literal["bytes", "share"]


def accuracy_against_memory(
    cells: Sequence[CellSummary], looks: Mapping[str, Look], axis: MemoryAxis = "bytes"
) -> go.Figure:
    """Accuracy against the KV bytes that stay in device memory, mean per sequence, or their share of the full cache.

    The dotted steps are the Pareto front on accuracy against bytes.
    """
    values = [cell.resident_bytes if axis == "bytes" else cell.resident_share for cell in cells]
    if axis == "bytes":
        divisor, unit = byte_unit(max((value for value in values if value is not None), default=0.0))
        x_title, x_format = f"Resident KV bytes per sequence, mean ({unit}, logical)", None
    else:
        divisor, x_title, x_format = 1.0, "Resident KV bytes / bytes of the full cache", ".0%"
    xs = [None if value is None else value / divisor for value in values]
    front = on_front(cells)
    figure = _accuracy_scatter(cells, xs, looks, ringed_ones=front)
    _add_front(figure, cells, xs, front)
    figure.update_xaxes(title={"text": x_title}, tickformat=x_format)
    return finished(figure, "Accuracy against resident memory", legend_height=_legend_height(cells))


def accuracy_against_throughput(cells: Sequence[CellSummary], looks: Mapping[str, Look]) -> go.Figure:
    """Accuracy against decode tokens/s, measured on the machines that ran the shards.

    A hollow mark was measured while another engine used the same node: its throughput isn't the policy's alone.
    """
    rates = [cell.decode_tokens_per_s for cell in cells]
    shared = {cell.fingerprint for cell in cells if cell.exclusive is False and cell.decode_tokens_per_s is not None}
    figure = _accuracy_scatter(cells, rates, looks, hollow=shared)
    if shared:
        figure.add_annotation(
            text="hollow: measured while another engine used the same node",
            **{"x": 1, "xref": "paper", "xanchor": "right", "y": 1, "yref": "paper", "yanchor": "bottom"},
            showarrow=False,
        )
    devices = sorted({device for cell in cells for device in cell.devices})
    where = plain(", ".join(devices[:3])) + (" …" if len(devices) > 3 else "") if devices else "no device"
    figure.update_xaxes(title={"text": f"Decode throughput (tokens/s per engine; {where})"})
    return finished(figure, "Accuracy against throughput", legend_height=_legend_height(cells))


def outcome_bars(cells: Sequence[CellSummary]) -> go.Figure:
    """What became of each policy's samples; beside each bar, how often the token limit cut the answer off."""
    require_one_protocol(cells)
    ordered = by_accuracy([cell for cell in cells if cell.n + cell.failed])
    places = list(range(len(ordered)))
    totals = [cell.n + cell.failed for cell in ordered]
    figure = go.Figure()
    for outcome, colour in OUTCOME_COLOURS.items():
        counts = [int(getattr(cell, outcome)) for cell in ordered]
        figure.add_bar(
            y=places,
            x=[count / total for count, total in zip(counts, totals, strict=True)],
            name=OUTCOME_NAMES[outcome],
            orientation="h",
            marker={"color": colour, "pattern": {"shape": "/" if outcome == "truncated" else "", "size": 5}},
            hovertemplate=[
                hover([plain(cell.policy), f"{OUTCOME_NAMES[outcome]}: {count} of {total} ({count / total:.1%})"])
                for cell, count, total in zip(ordered, counts, totals, strict=True)
            ],
        )
    # One trace for all: a hundred annotations take plotly longer to draw than the bars.
    figure.add_scatter(
        y=places,
        x=[1.0] * len(ordered),  # at the edge: beyond it nothing is drawn
        text=["\u2002" + ("–" if c.truncation_rate is None else percent(c.truncation_rate, 0)) for c in ordered],
        hovertemplate=[hover([plain(cell.policy), "cut off by the token limit"]) for cell in ordered],
        mode="text",
        textposition="middle right",
        cliponaxis=False,
        showlegend=False,
    )
    heading = {"x": 1.015, "xref": "paper", "xanchor": "left", "showarrow": False}
    heading |= {"y": 1.0, "yref": "paper", "yanchor": "bottom", "yshift": 18, "text": "cut off"}
    figure.add_annotation(**heading)
    if not ordered:
        say(figure)
    figure.update_layout(barmode="stack", bargap=0.3)
    figure.update_xaxes(title={"text": "Share of samples"}, tickformat=".0%", range=[0, 1])
    height = list_rows(figure, _labels(ordered))
    return finished(figure, "Outcomes", plot_height=height, legend_height=3 * LEGEND_ROW_HEIGHT, right=70, top=True)


def memory_bars(cells: Sequence[CellSummary]) -> go.Figure:
    """Where the KV bytes of a sequence lie, mean over decode steps; the line is what the full cache would hold."""
    require_one_protocol(cells)
    ordered = by_accuracy([cell for cell in cells if cell.hbm_bytes is not None])
    places = list(range(len(ordered)))
    parts = {
        "HBM": [cell.hbm_bytes or 0.0 for cell in ordered],
        "DDR": [cell.ddr_bytes or 0.0 for cell in ordered],
        "packed": [cell.packed_bytes or 0.0 for cell in ordered],
    }
    full = [cell.full_bytes for cell in ordered]
    divisor, unit = byte_unit(
        max([*(sum(row) for row in zip(*parts.values(), strict=True)), *(f or 0 for f in full), 0.0])
    )
    figure = go.Figure()
    for tier, counts in parts.items():
        figure.add_bar(
            y=places,
            x=[count / divisor for count in counts],
            name=tier,
            orientation="h",
            marker={"color": TIER_COLOURS[tier]},
            hovertemplate=_byte_hovers(ordered, f"{tier}:", counts),
        )
    figure.add_scatter(
        y=places,
        x=[None if value is None else value / divisor for value in full],
        name="full cache",
        mode="markers",
        marker={"symbol": "line-ns", "size": 14, "line": {"width": 2, "color": FAINT}},
        hovertemplate=_byte_hovers(ordered, "the full cache would hold", full),
    )
    figure.update_layout(barmode="stack", bargap=0.3)
    figure.update_xaxes(title={"text": f"KV bytes per sequence, mean ({unit}, logical)"}, rangemode="tozero")
    if not ordered:
        say(figure)
    height = list_rows(figure, _labels(ordered))
    return finished(figure, "Memory by tier", plot_height=height, legend_height=3 * LEGEND_ROW_HEIGHT, top=True)


def tier_tokens(hbm: int | None, ddr: int | None, packed: int | None, evicted: int | None) -> go.Figure:
    """One sample's tokens by tier at the end, as a single bar."""
    figure = go.Figure()
    for tier, count in zip(TIER_COLOURS, (hbm, ddr, packed, evicted), strict=True):
        figure.add_bar(
            y=["tokens"],
            x=[count or 0],
            name=tier,
            orientation="h",
            marker={"color": TIER_COLOURS[tier]},
            text=[f"{count:,}" if count else ""],
            textposition="inside",
            insidetextanchor="middle",
            hovertemplate=f"{tier}: %{{x:,}} tokens per KV head<extra></extra>",
        )
    figure.update_layout(barmode="stack")
    figure.update_xaxes(title={"text": "Tokens per KV head at the end"})
    figure.update_yaxes(showticklabels=False, showgrid=False)
    return finished(figure, "Tokens by tier", plot_height=70)


def alt_text(figure: go.Figure, cells: Sequence[CellSummary]) -> str:
    """Return a figure in words, for those who can't see it."""
    title = figure.layout.title.text
    scores = "; ".join(f"{cell.policy}: accuracy {percent(cell.accuracy)}" for cell in by_accuracy(cells)[::-1][:12])
    return f"Chart: {title}, {len(cells)} policies. {scores}"


def _accuracy_scatter(
    cells: Sequence[CellSummary],
    xs: Sequence[float | None],
    looks: Mapping[str, Look],
    hollow: Collection[str] = (),
    ringed_ones: Collection[str] = (),
) -> go.Figure:
    require_one_protocol(cells)
    figure = go.Figure()
    shapes: list[dict[str, Any]] = []
    marks = []
    labels = dict(zip(cells, shortened([cell.policy for cell in cells], LEGEND_WIDTH), strict=True))
    for cell, x in sorted(zip(cells, xs, strict=True), key=lambda pair: _place(pair[0])):
        reach = interval(cell)
        if x is None or reach is None:
            continue
        if cell.policy_name == FULL:
            shapes += baseline_shapes(cell)
        accuracy, above, below = reach
        ringed = cell.fingerprint in ringed_ones
        more = ["on the Pareto front: accuracy against resident bytes"] if ringed else []
        marks.append(
            Mark(
                x=x,
                y=accuracy,
                above=above,
                below=below,
                look=looks[cell.policy],
                preset=cell.policy_name,
                name=labels[cell],
                told=describe(cell, *more),
                hollow=cell.fingerprint in hollow,
                ringed=ringed,
            )
        )
    add_marks(figure, marks, len(cells) > SINGLY_UP_TO)
    if not figure.data:
        say(figure)
    figure.update_layout(shapes=shapes, showlegend=bool(figure.data))
    figure.update_yaxes(title={"text": "Accuracy (95% interval)"}, tickformat=".0%", range=[-0.03, 1.03])
    figure.update_xaxes(rangemode="tozero")
    return figure


def _add_front(
    figure: go.Figure, cells: Sequence[CellSummary], xs: Sequence[float | None], front: Collection[str]
) -> None:
    points = sorted(
        (x, cell.accuracy)
        for cell, x in zip(cells, xs, strict=True)
        if cell.fingerprint in front and x is not None and cell.accuracy is not None
    )
    if points:
        figure.add_scatter(
            x=[x for x, _ in points],
            y=[y for _, y in points],
            mode="lines",
            line={"shape": "hv", "dash": "dot", "width": 1.5, "color": FAINT},
            name="Pareto front",
            showlegend=False,
            hovertemplate="the Pareto front<extra></extra>",
        )


def _place(cell: CellSummary) -> tuple[bool, str]:
    return cell.policy_name != FULL, cell.policy


def _byte_hovers(cells: Sequence[CellSummary], what: str, counts: Sequence[float | None]) -> list[str]:
    return [
        hover([plain(cell.policy), f"{what} {human_bytes(count)}"]) for cell, count in zip(cells, counts, strict=True)
    ]


def _labels(cells: Sequence[CellSummary]) -> list[str]:
    """Cells can have one label and differ elsewhere (an engine setting): then a piece of the fingerprint tells."""
    labels = [cell.policy for cell in cells]
    return [
        label if labels.count(label) == 1 else f"{label} [{c.fingerprint[:6]}]"
        for c, label in zip(cells, labels, strict=True)
    ]


def _legend_height(cells: Sequence[CellSummary]) -> int:
    """Of all cells, measured or not, so that charts side by side are of one height. Two or three columns."""
    presets = len({cell.policy_name for cell in cells})
    rows = -(-presets // 3) if len(cells) > SINGLY_UP_TO else -(-len(cells) // 2)
    return LEGEND_ROW_HEIGHT * max(1, rows)
