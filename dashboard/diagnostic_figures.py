"""Diagnostics against bytes and accuracy, by layer, and scorers against occlusion labels. Nothing of Streamlit here."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import plotly.graph_objects as go

from dashboard.colours import Look
from dashboard.drawing import FAINT, FULL, error_bars, finished, list_rows, marker, require_one_protocol, say
from dashboard.marks import Mark, add_marks
from dashboard.measures import Measure
from dashboard.wording import hover, percent, plain, shortened
from db.diagnostic_detail import LayerMeans
from db.occlusion import OcclusionCheck
from db.queries import CellSummary, DiagnosticSummary

FEW = 10  # samples below which a mark is hollow
RESAMPLES = 2000
MOST = 12  # policies told in words
LAYER_COLOURS = [[0.0, "#f3ecd2"], [0.35, "#8fc9b0"], [0.7, "#2b7e9a"], [1.0, "#173f6e"]]
DARK_FROM = 0.6
Axis = Literal["bytes", "accuracy"]
Summaries = Mapping[str, DiagnosticSummary]
Counts = Mapping[str, Mapping[str, int]]


def against(
    cells: Sequence[CellSummary],
    found: Summaries,
    counts: Counts,
    measure: Measure,
    looks: Mapping[str, Look],
    axis: Axis,
) -> go.Figure:
    """Each policy's measure over its device bytes or its accuracy; the dashed line is the full cache's own value.

    A hollow mark is a mean of fewer than ten samples. What wasn't measured has no mark.
    """
    require_one_protocol(cells)
    figure = go.Figure()
    marks = []
    for cell in cells:
        value, x = measure.of(found.get(cell.fingerprint)), _across(cell, axis)
        if value is None or x is None:
            continue
        n = _count(counts, cell, measure)
        marks.append(
            Mark(
                x=x,
                y=value,
                above=0.0,
                below=0.0,
                look=looks[cell.policy],
                preset=cell.policy_name,
                name=plain(cell.policy_name),
                told=hover(_told(cell, measure, value, n)),
                hollow=n < FEW,
            )
        )
    add_marks(figure, marks, together=True)
    figure.update_traces(cliponaxis=False, error_y={"visible": False})  # means without intervals
    if not marks:
        say(figure, f"Not measured: {measure.needs}")
    floor = next((measure.of(found.get(cell.fingerprint)) for cell in cells if cell.policy_name == FULL), None)
    if floor is not None:
        line = {"type": "line", "xref": "x domain", "x0": 0, "x1": 1, "y0": floor, "y1": floor, "layer": "below"}
        figure.update_layout(shapes=[{**line, "line": {"color": FAINT, "width": 1, "dash": "dash"}}])
    title = "Device bytes, share of the full cache's" if axis == "bytes" else "Accuracy"
    figure.update_xaxes(title={"text": title}, tickformat=".0%", rangemode="tozero")
    figure.update_yaxes(title={"text": f"{measure.name} ({measure.unit})"}, rangemode="tozero")
    return finished(figure, f"{measure.name} against {'device bytes' if axis == 'bytes' else 'accuracy'}")


def _across(cell: CellSummary, axis: Axis) -> float | None:
    return cell.resident_share if axis == "bytes" else cell.accuracy


def _count(counts: Counts, cell: CellSummary, measure: Measure) -> int:
    return counts.get(cell.fingerprint, {}).get(measure.field, 0)


def _told(cell: CellSummary, measure: Measure, value: float, n: int) -> list[str]:
    return [
        f"<b>{plain(cell.policy)}</b>",
        f"{measure.name} {measure.shown(value)}, mean of {n} samples",
        f"accuracy {percent(cell.accuracy)} of {cell.n} samples",
        f"device bytes {percent(cell.resident_share)} of the full cache's",
    ]


def against_in_words(cells: Sequence[CellSummary], found: Summaries, measure: Measure, axis: Axis) -> str:
    """Return the figure in words, for those who can't see it."""
    told = [
        f"{cell.policy}: {measure.shown(value)} at {percent(_across(cell, axis))}"
        for cell in cells
        if (value := measure.of(found.get(cell.fingerprint))) is not None and _across(cell, axis) is not None
    ]
    what = "device bytes" if axis == "bytes" else "accuracy"
    return f"Chart: {measure.name} against {what}. " + ("; ".join(told[:MOST]) or "Nothing measured.")


def by_layer(cells: Sequence[CellSummary], found: Mapping[str, LayerMeans], measure: Measure) -> go.Figure:
    """The measure of each policy in each layer; a dash where no sample has a value."""
    require_one_protocol(cells)
    rows = [(cell, _layers(found, cell, measure)) for cell in cells][::-1]
    rows = [(cell, values) for cell, values in rows if values]
    figure = go.Figure()
    if not rows:
        say(figure, f"No values by layer: {measure.needs}" if measure.layers else "This number has none by layer")
    width = max((len(values) for _, values in rows), default=0)
    table = [[*values, *[None] * (width - len(values))] for _, values in rows]
    known = [value for row in table for value in row if value is not None]
    top = max([*known, 1e-12])
    if rows:
        figure.add_heatmap(
            z=table,
            x=[str(layer) for layer in range(width)],
            y=list(range(len(rows))),
            zmin=0,
            zmax=top,
            colorscale=LAYER_COLOURS,
            colorbar={"title": {"text": measure.unit}, "thickness": 14},
            customdata=[[plain(cell.policy)] * width for cell, _ in rows],
            hovertemplate=hover(["PLACE"]).replace("PLACE", "%{customdata}<br>layer %{x}: %{z:.4f}"),
            hoverongaps=False,
            xgap=2,
            ygap=2,
        )
    notes = [
        {"x": layer, "y": place, "showarrow": False, **_written(value, top)}
        for place, row in enumerate(table)
        for layer, value in enumerate(row)
        if width <= 12 or value is None
    ]
    figure.update_layout(annotations=[*figure.layout.annotations, *notes])
    figure.update_xaxes(title={"text": "Layer"}, type="category", showgrid=False)
    height = list_rows(figure, [cell.policy for cell, _ in rows])
    finished(figure, f"{measure.name} by layer", plot_height=max(height, 150), legend_height=0)
    return figure.update_xaxes(showgrid=False)


def _layers(found: Mapping[str, LayerMeans], cell: CellSummary, measure: Measure) -> tuple[float | None, ...]:
    means = found.get(cell.fingerprint)
    return means.layers.get(measure.layers or "", ()) if means else ()


def _written(value: float | None, top: float) -> dict[str, Any]:
    if value is None:
        return {"text": "–"}
    return {"text": f"{value:.3f}", "font": {"color": "#ffffff" if value >= DARK_FROM * top else "#000000"}}


def by_layer_in_words(cells: Sequence[CellSummary], found: Mapping[str, LayerMeans], measure: Measure) -> str:
    """Return the map in words."""
    told = [
        f"{cell.policy}: {', '.join(measure.shown(value) for value in values)}"
        for cell in cells
        if (values := _layers(found, cell, measure))
    ]
    return f"Chart: {measure.name} by layer. " + ("; ".join(told[:MOST]) or "Nothing measured.")


def scorer_means(check: OcclusionCheck) -> list[tuple[str, float | None, float, float, int]]:
    """(scorer, mean correlation, its 95% interval, chains), the best first; None where no chain has a value.

    The interval is a bootstrap over chains, the same at every look.
    """
    found: list[tuple[str, float | None, float, float, int]] = []
    for name, values in check.values.items():
        known = [value for value in values if value is not None]
        if not known:
            found.append((name, None, 0.0, 0.0, 0))
            continue
        draw = random.Random(0)
        means = sorted(sum(draw.choices(known, k=len(known))) / len(known) for _ in range(RESAMPLES))
        low, high = means[int(0.025 * RESAMPLES)], means[int(0.975 * RESAMPLES) - 1]
        found.append((name, sum(known) / len(known), low, high, len(known)))
    return sorted(found, key=lambda row: (row[1] is None, -(row[1] or 0.0), row[0]))


def scorers(check: OcclusionCheck) -> go.Figure:
    """Each scorer's rank correlation with occlusion labels, mean over chains with a bootstrap interval, best on top."""
    rows = scorer_means(check)[::-1]
    figure = go.Figure()
    dashes = []
    for place, (name, mean, low, high, chains) in enumerate(rows):
        if mean is None:
            text = "– tells no token apart"
            dashes.append({"x": 0, "y": place, "text": text, "xanchor": "left", "xshift": 8, "showarrow": False})
            continue
        told = [f"<b>{plain(name)}</b>", f"Spearman {mean:+.3f} [{low:+.3f}, {high:+.3f}]", f"{chains} chains"]
        figure.add_scatter(
            x=[mean],
            y=[place],
            error_x=error_bars([high - mean], [mean - low], "#3b7dd8"),
            mode="markers",
            marker=marker(Look("#3b7dd8", "circle"), hollow=low <= 0 <= high) | {"size": 10},
            hovertemplate=hover(told),
        )
    if not rows:
        say(figure, "No scorer was checked")
    zero = {"type": "line", "xref": "x", "yref": "y domain", "x0": 0, "x1": 0, "y0": 0, "y1": 1, "layer": "below"}
    figure.update_layout(
        shapes=[{**zero, "line": {"color": FAINT, "width": 1.5, "dash": "dash"}}],
        annotations=[*figure.layout.annotations, *dashes],
        showlegend=False,
    )
    figure.update_xaxes(title={"text": "Rank correlation with occlusion labels (95%, over chains)"}, tickformat="+.1f")
    height = list_rows(figure, [name for name, *_ in rows])
    figure.update_yaxes(title={"text": "Scorer"}, ticktext=shortened([name for name, *_ in rows]))
    return finished(figure, "Which scorer knows what the answer needs", plot_height=height, legend_height=0, top=True)


def scorers_in_words(check: OcclusionCheck) -> str:
    """Return the figure in words."""
    told = [f"{name} {'–' if mean is None else f'{mean:+.2f}'}" for name, mean, *_ in scorer_means(check)]
    return f"Chart: rank correlation of scorers with occlusion labels on {len(check.chains)} chains. " + ", ".join(told)
