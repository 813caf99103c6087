"""The charts: lists of `CellSummary` in, plotly figures out. Nothing of Streamlit here.

A chart holds cells of one protocol only (`require_one_protocol`): scores under different token limits, sampling or
graders don't belong on one axis.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal

import plotly.graph_objects as go

from dashboard.colours import OUTCOME_COLOURS, TIER_COLOURS, Look
from dashboard.wording import OUTCOME_NAMES, byte_unit, human_bytes, number, percent, plain, wrapped
from db.queries import CellSummary

FAINT = "rgba(128,128,128,0.75)"
BAND = "rgba(128,128,128,0.13)"
GRID = "rgba(128,128,128,0.22)"
FULL = "full"
PLOT_HEIGHT = 300
TITLE_HEIGHT = 60
LEGEND_ROW_HEIGHT = 20
LEGEND_LINE_HEIGHT = 16
BAR_HEIGHT = 36  # clears a label of two lines

MemoryAxis = Literal["bytes", "share"]


def require_one_protocol(cells: Sequence[CellSummary]) -> None:
    """Raise ValueError if the cells can't be compared."""
    found = {(cell.model, cell.benchmark, cell.protocol) for cell in cells}
    if len(found) > 1:
        raise ValueError(f"{len(found)} different (model, benchmark, protocol) can't share a chart; choose one of them")


def accuracy_against_memory(
    cells: Sequence[CellSummary], looks: Mapping[str, Look], axis: MemoryAxis = "bytes"
) -> go.Figure:
    """Accuracy against the KV bytes that stay in device memory, mean per sequence, or their share of the full cache."""
    values = [cell.resident_bytes if axis == "bytes" else cell.resident_share for cell in cells]
    if axis == "bytes":
        divisor, unit = byte_unit(max((value for value in values if value is not None), default=0.0))
        x_title, x_format = f"Resident KV bytes per sequence, mean ({unit}, logical)", None
    else:
        divisor, x_title, x_format = 1.0, "Resident KV bytes / bytes of the full cache", ".0%"
    figure = _accuracy_scatter(cells, [None if value is None else value / divisor for value in values], looks)
    figure.update_xaxes(title={"text": x_title}, tickformat=x_format)
    return _finished(figure, "Accuracy against resident memory", legend_height=_legend_height(cells))


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
    return _finished(figure, "Accuracy against throughput", legend_height=_legend_height(cells))


def outcome_bars(cells: Sequence[CellSummary]) -> go.Figure:
    """What became of each policy's samples; beside each bar, how often the token limit cut the answer off."""
    require_one_protocol(cells)
    ordered = _by_accuracy([cell for cell in cells if cell.n + cell.failed])
    names = _row_names(ordered)
    figure = go.Figure()
    for outcome, colour in OUTCOME_COLOURS.items():
        counts = [int(getattr(cell, outcome)) for cell in ordered]
        totals = [cell.n + cell.failed for cell in ordered]
        figure.add_bar(
            y=names,
            x=[count / total for count, total in zip(counts, totals, strict=True)],
            name=OUTCOME_NAMES[outcome],
            orientation="h",
            marker={"color": colour, "pattern": {"shape": "/" if outcome == "truncated" else "", "size": 5}},
            customdata=list(zip(counts, totals, strict=True)),
            hovertemplate=f"%{{y}}<br>{OUTCOME_NAMES[outcome]}: "
            "%{customdata[0]} of %{customdata[1]} (%{x:.1%})<extra></extra>",
        )
    beside = {"x": 1.015, "xref": "paper", "xanchor": "left", "showarrow": False}
    cut_off = [
        {**beside, "y": name, "text": "–" if cell.truncation_rate is None else percent(cell.truncation_rate, 0)}
        for name, cell in zip(names, ordered, strict=True)
    ]
    heading = {**beside, "y": 1.0, "yref": "paper", "yanchor": "bottom", "text": "cut off"}
    # All at once: plotly copies the whole list for each that is added singly.
    figure.update_layout(barmode="stack", bargap=0.35, annotations=[*cut_off, heading])
    figure.update_xaxes(title={"text": "Share of samples"}, tickformat=".0%", range=[0, 1])
    figure.update_yaxes(title={"text": "Policy"}, showgrid=False, range=[-0.5, max(len(ordered), 1) - 0.5])
    return _finished(
        figure, "Outcomes", plot_height=_bars_height(ordered), legend_height=2 * LEGEND_ROW_HEIGHT, right=70
    )


def memory_bars(cells: Sequence[CellSummary]) -> go.Figure:
    """Where the KV bytes of a sequence lie, mean over decode steps; the line is what the full cache would hold."""
    require_one_protocol(cells)
    ordered = _by_accuracy([cell for cell in cells if cell.hbm_bytes is not None])
    names = _row_names(ordered)
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
            y=names,
            x=[count / divisor for count in counts],
            name=tier,
            orientation="h",
            marker={"color": TIER_COLOURS[tier]},
            customdata=[human_bytes(count) for count in counts],
            hovertemplate=f"%{{y}}<br>{tier}: %{{customdata}}<extra></extra>",
        )
    figure.add_scatter(
        y=names,
        x=[None if value is None else value / divisor for value in full],
        name="full cache",
        mode="markers",
        marker={"symbol": "line-ns", "size": 17, "line": {"width": 2, "color": FAINT}},
        customdata=[human_bytes(value) for value in full],
        hovertemplate="%{y}<br>the full cache would hold %{customdata}<extra></extra>",
    )
    figure.update_layout(barmode="stack", bargap=0.35)
    figure.update_xaxes(title={"text": f"KV bytes per sequence, mean ({unit}, logical)"}, rangemode="tozero")
    if not ordered:
        _say_nothing_measured(figure)
        figure.update_yaxes(showticklabels=False)
    figure.update_yaxes(title={"text": "Policy"}, showgrid=False, range=[-0.5, max(len(ordered), 1) - 0.5])
    return _finished(figure, "Memory by tier", plot_height=_bars_height(ordered), legend_height=2 * LEGEND_ROW_HEIGHT)


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
    return _finished(figure, "Tokens by tier", plot_height=70)


def alt_text(figure: go.Figure, cells: Sequence[CellSummary]) -> str:
    """Return a figure in words, for those who can't see it."""
    title = figure.layout.title.text
    scores = "; ".join(f"{cell.policy}: accuracy {percent(cell.accuracy)}" for cell in _by_accuracy(cells)[::-1][:12])
    return f"Chart: {title}, {len(cells)} policies. {scores}"


def _accuracy_scatter(
    cells: Sequence[CellSummary],
    xs: Sequence[float | None],
    looks: Mapping[str, Look],
    hollow: Collection[str] = (),
) -> go.Figure:
    require_one_protocol(cells)
    figure = go.Figure()
    shapes: list[dict[str, Any]] = []
    for cell, x in sorted(zip(cells, xs, strict=True), key=lambda pair: _place(pair[0])):
        if x is None or cell.accuracy is None or cell.accuracy_low is None or cell.accuracy_high is None:
            continue
        look = looks[cell.policy]
        if cell.policy_name == FULL:
            across = {"xref": "x domain", "x0": 0, "x1": 1, "layer": "below"}
            low, high = cell.accuracy_low, cell.accuracy_high
            shapes.append({**across, "type": "rect", "y0": low, "y1": high, "fillcolor": BAND, "line": {"width": 0}})
            dashes = {"color": FAINT, "width": 1, "dash": "dash"}
            shapes.append({**across, "type": "line", "y0": cell.accuracy, "y1": cell.accuracy, "line": dashes})
        figure.add_scatter(
            x=[x],
            y=[cell.accuracy],
            error_y={
                "type": "data",
                "symmetric": False,
                "array": [cell.accuracy_high - cell.accuracy],
                "arrayminus": [cell.accuracy - cell.accuracy_low],
                "thickness": 1.4,
                "width": 4,
                "color": look.colour,
            },
            mode="markers",
            name=wrapped(cell.policy),
            marker=_marker(look, cell.fingerprint in hollow),
            hovertemplate=_hover(cell) + "<extra></extra>",
        )
    if not figure.data:
        _say_nothing_measured(figure)
    figure.update_layout(shapes=shapes, showlegend=bool(figure.data))
    figure.update_yaxes(title={"text": "Accuracy (95% Wilson interval)"}, tickformat=".0%", range=[-0.03, 1.03])
    figure.update_xaxes(rangemode="tozero")
    return figure


def _place(cell: CellSummary) -> tuple[bool, str]:
    return cell.policy_name != FULL, cell.policy


def _marker(look: Look, hollow: bool) -> dict[str, Any]:
    if hollow:
        return {"color": look.colour, "symbol": f"{look.marker}-open", "size": 12, "line": {"width": 2.5}}
    return {"color": look.colour, "symbol": look.marker, "size": 12, "line": {"width": 1, "color": FAINT}}


def _hover(cell: CellSummary) -> str:
    lines = [
        f"<b>{plain(cell.policy)}</b>",
        f"accuracy {percent(cell.accuracy)} ({percent(cell.accuracy_low)} to {percent(cell.accuracy_high)})",
        f"{cell.n} samples of {cell.problems} problems",
        f"cut off by the token limit {percent(cell.truncation_rate)}",
        f"resident {human_bytes(cell.resident_bytes)} a sequence, {percent(cell.resident_share)} of the full cache",
        f"host {human_bytes(cell.ddr_bytes)}, packed {human_bytes(cell.packed_bytes)}",
        f"decode {number(cell.decode_tokens_per_s, 'tokens/s')}, largest batch {cell.max_rows or 'not measured'}",
        f"on {plain(', '.join(cell.devices)) or 'no device'}"
        + ("" if cell.exclusive is not False else ", node shared"),
    ]
    return "<br>".join(lines).replace("%{", "% {")


def _by_accuracy(cells: Sequence[CellSummary]) -> list[CellSummary]:
    """Plotly draws the first row at the bottom, so the best comes last."""
    return sorted(cells, key=lambda cell: (-1.0 if cell.accuracy is None else cell.accuracy, cell.policy))


def _bars_height(cells: Sequence[CellSummary]) -> int:
    return max(110, BAR_HEIGHT * len(cells))


def _row_names(cells: Sequence[CellSummary]) -> list[str]:
    """Cells can have one label and differ elsewhere (an engine setting); bars of one name would be added up."""
    labels = [cell.policy for cell in cells]
    return [
        wrapped(cell.policy if labels.count(cell.policy) == 1 else f"{cell.policy} [{cell.fingerprint[:6]}]")
        for cell in cells
    ]


def _say_nothing_measured(figure: go.Figure) -> None:
    figure.add_annotation(text="Nothing measured yet", showarrow=False, x=0.5, y=0.5, xref="paper", yref="paper")
    figure.update_xaxes(showticklabels=False)


def _legend_height(cells: Sequence[CellSummary]) -> int:
    """Of all cells, measured or not, so that charts side by side are of one height. Labels stand in two columns."""
    breaks = [wrapped(cell.policy).count("<br>") for cell in sorted(cells, key=_place)]
    rows = [max(breaks[start : start + 2]) for start in range(0, len(breaks), 2)]
    return sum(LEGEND_ROW_HEIGHT + LEGEND_LINE_HEIGHT * lines for lines in rows)


def _finished(
    figure: go.Figure,
    title: str,
    *,
    plot_height: int = PLOT_HEIGHT,
    legend_height: int = LEGEND_ROW_HEIGHT,
    right: int = 20,
) -> go.Figure:
    """Set what all charts share. Heights are in pixels, so that the legend clears the axis title however long it is."""
    below = 74 + legend_height
    figure.update_layout(
        title={"text": title, "x": 0, "xanchor": "left", "font": {"size": 18}},
        height=TITLE_HEIGHT + plot_height + below,
        margin={"l": 10, "r": right, "t": TITLE_HEIGHT, "b": below},
        legend={"orientation": "h", "yanchor": "top", "y": -66 / plot_height, "x": 0, "traceorder": "normal"},
        hoverlabel={"align": "left"},
    )
    figure.update_xaxes(gridcolor=GRID, zeroline=False, automargin=True, title={"standoff": 12})
    figure.update_yaxes(gridcolor=GRID, zeroline=False, automargin=True)
    return figure
