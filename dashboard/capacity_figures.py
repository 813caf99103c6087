"""The charts of the capacity page: lists of `Capacity` in, plotly figures out. Nothing of Streamlit here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import plotly.graph_objects as go

from dashboard.colours import TIER_COLOURS, Look
from dashboard.drawing import FAINT, LEGEND_ROW_HEIGHT, finished, list_rows, marker, say
from dashboard.wording import byte_unit, ellipsised, human_bytes, plain
from tiercache.capacity import T1_READS, Capacity

# What lies on the device: the attribute of one sequence (None: of the model), and the colour.
PARTS: dict[str, tuple[str | None, str]] = {
    "weights": (None, "#868b94"),
    "T0, full precision": ("t0", TIER_COLOURS["HBM"]),
    "T2, quantised": ("t2", TIER_COLOURS["packed"]),
    "staging of T1": ("staging", "#bd8112"),
    "copy of T1": ("copy", TIER_COLOURS["DDR"]),
}
READ_COLOURS = dict(zip(T1_READS, ("#3b7dd8", "#d9544f", "#2a9462"), strict=True))


def device_bars(found: Sequence[Capacity], rows: int) -> go.Figure:
    """What lies in device memory while so many rows are decoded, beside what the GPU has."""
    gpu, usable = found[0].machine.gpu_bytes, found[0].usable
    totals = [(each.weights or 0) + rows * each.row for each in found]
    divisor, unit = byte_unit(max(gpu, *totals))
    figure = go.Figure()
    for name, (part, colour) in PARTS.items():
        counts = [(each.weights or 0) if part is None else rows * int(getattr(each, part)) for each in found]
        if any(counts):
            _bars(figure, name, colour, counts, divisor)
    height = list_rows(figure, [each.policy.label for each in found])
    line = {"type": "line", "yref": "paper", "y0": 0, "y1": 1}
    above = {"yref": "paper", "y": 1, "yanchor": "bottom", "showarrow": False}
    figure.update_layout(
        barmode="stack",
        bargap=0.3,
        shapes=[
            {**line, "x0": gpu / divisor, "x1": gpu / divisor, "line": {"color": FAINT, "width": 2}},
            {**line, "x0": usable / divisor, "x1": usable / divisor, "line": {"color": FAINT, "dash": "dash"}},
        ],
        annotations=[
            {**above, "x": gpu / divisor, "xanchor": "left", "text": "GPU"},
            {**above, "x": usable / divisor, "xanchor": "right", "text": "usable"},
        ],
    )
    figure.update_xaxes(title={"text": f"Device memory at {rows:,} rows ({unit})"})
    figure.update_xaxes(range=[0, 1.08 * max(gpu, *totals) / divisor])
    return finished(figure, "Device memory", plot_height=height, legend_height=2 * LEGEND_ROW_HEIGHT)


def bus_bars(found: Sequence[Capacity], rows: int) -> go.Figure:
    """What all rows together send over the bus in a decode step, by the way T1 is read."""
    counts = {read: [rows * sum(each.bus(read)) for each in found] for read in T1_READS}
    figure = go.Figure()
    if not any(map(any, counts.values())):
        say(figure, "No policy here keeps tokens on the host: nothing crosses")
    divisor, unit = byte_unit(max(map(max, counts.values())))
    for read, values in counts.items():
        if any(values):
            _bars(figure, read, READ_COLOURS[read], values, divisor)
    height = max(150, list_rows(figure, [each.policy.label for each in found]))
    figure.update_layout(barmode="group", bargap=0.3)
    figure.update_xaxes(title={"text": f"Over the bus in a decode step of {rows:,} rows ({unit}, log)"}, type="log")
    return finished(figure, "Bus traffic", plot_height=height)


def rows_over_context(series: Mapping[str, Sequence[Capacity]], looks: Mapping[str, Look]) -> go.Figure:
    """How many rows fit, over the length of the sequences; a length of which none fits has no mark."""
    figure = go.Figure()
    for label, found in series.items():
        said = [f"{each.context:,} tokens: {each.most_rows or 0:,} rows of {human_bytes(each.row)}" for each in found]
        rows = [each.most_rows or None for each in found]
        _line(figure, label, [each.context for each in found], rows, said, looks)
    if not any(each.most_rows for found in series.values() for each in found):
        say(figure, "Not one sequence fits beside the weights")
    contexts = sorted({each.context for found in series.values() for each in found})
    _ticks(figure, contexts)
    figure.update_xaxes(title={"text": "Tokens of a sequence (log)"})
    figure.update_yaxes(title={"text": "Largest batch (rows, log)"}, type="log", dtick=1)
    return finished(figure, "Largest batch", legend_height=LEGEND_ROW_HEIGHT * len(series))


def speed_over_rows(found: Sequence[Capacity], looks: Mapping[str, Look]) -> go.Figure:
    """The bound on decode tokens/s over the rows decoded together, up to the largest batch."""
    figure, ticks = go.Figure(), set[int]()
    for each in found:
        counts = batches(each.most_rows or 0)
        ticks.update(counts)
        said = [
            f"{rows:,} rows: at most {each.tokens_per_s(rows):,.0f} tokens/s, by {each.bound_by(rows)}"
            for rows in counts
        ]
        _line(figure, each.policy.label, counts, [each.tokens_per_s(rows) for rows in counts], said, looks)
    if not ticks:
        say(figure, "Not one sequence fits beside the weights")
    _ticks(figure, sorted(tick for tick in ticks if tick & (tick - 1) == 0)[::2])
    figure.update_xaxes(title={"text": "Rows decoded together (log)"})
    figure.update_yaxes(title={"text": "Tokens/s at most, all rows"}, rangemode="tozero")
    return finished(figure, "Bound on decode speed", legend_height=LEGEND_ROW_HEIGHT * len(found))


def batches(most: int) -> list[int]:
    """Return the powers of two up to the largest batch, and that."""
    return sorted({2**power for power in range(most.bit_length())} | {most}) if most else []


def alt_text(figure: go.Figure, found: Sequence[Capacity]) -> str:
    """Return a figure in words, for those who can't see it."""
    rows = "; ".join(
        f"{each.policy.label}: {human_bytes(each.row)} a sequence, {each.most_rows or 0:,} rows fit" for each in found
    )
    return f"Chart: {figure.layout.title.text}, {found[0].context:,} tokens. {rows}"


def _bars(figure: go.Figure, name: str, colour: str, counts: Sequence[int], divisor: float) -> None:
    figure.add_bar(
        y=list(range(len(counts))),
        x=[count / divisor or None for count in counts],
        name=name,
        orientation="h",
        marker={"color": colour},
        customdata=[human_bytes(count) for count in counts],
        hovertemplate=f"{name}: %{{customdata}}<extra></extra>",
    )


def _line(
    figure: go.Figure,
    label: str,
    xs: Sequence[int],
    ys: Sequence[float | None],
    said: Sequence[str],
    looks: Mapping[str, Look],
) -> None:
    figure.add_scatter(
        x=list(xs),
        y=list(ys),
        mode="lines+markers",
        name=ellipsised(label),
        line={"color": looks[label].colour, "width": 2},
        marker=marker(looks[label]),
        customdata=list(said),
        hovertemplate=f"<b>{plain(label)}</b><br>".replace("%{", "% {") + "%{customdata}<extra></extra>",
    )


def _ticks(figure: go.Figure, values: Sequence[int]) -> None:
    figure.update_xaxes(type="log", tickvals=list(values), ticktext=[f"{value:,}" for value in values])
