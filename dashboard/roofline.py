"""Decode tokens/s beside what the memory's bandwidth allows: a step can't be faster than reading what it reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log10

import plotly.graph_objects as go

from dashboard.colours import Look
from dashboard.drawing import BAND, FAINT, LEGEND_ROW_HEIGHT, finished, require_one_protocol, say
from dashboard.marks import SINGLY_UP_TO, Mark, add_marks
from dashboard.wording import byte_unit, hover, human_bytes, number, percent, plain, shortened
from db.queries import CellSummary, DeviceSpeed

GIGA = 1e9
ROOM = 1.35  # the roof reaches beyond the outermost points by this factor
PLOT_HEIGHT = 460


def measured(devices: Sequence[DeviceSpeed]) -> list[DeviceSpeed]:
    """Return those that have a place in the chart: bytes read, bandwidth and tokens/s are all known."""
    return [each for each in devices if each.roof_share is not None]


def why_not(each: DeviceSpeed) -> str:
    """Return why there is no place in the chart; empty where there is one."""
    if each.roof_share is not None:
        return ""
    if not each.decode_tokens:
        return "no token was decoded"
    return "bytes read or the memory's bandwidth were not recorded"


def roofline(cells: Sequence[CellSummary], devices: Sequence[DeviceSpeed], looks: Mapping[str, Look]) -> go.Figure:
    """Tokens/s against the bytes that a decode step reads for each token, both logarithmic.

    The roof is each device's measured copy bandwidth over these bytes; where processes measured different bandwidths it
    is a band, the largest its edge. Hollow: another engine ran on the node.
    """
    require_one_protocol(cells)
    by_key = {cell.fingerprint: cell for cell in cells}
    points = [each for each in measured(devices) if each.fingerprint in by_key]
    points.sort(key=lambda each: by_key[each.fingerprint].policy)
    divisor, unit = byte_unit(max((each.bytes_per_token or 0.0 for each in points), default=0.0))
    figure = go.Figure()
    _add_roofs(figure, points, divisor)
    names = dict(zip(by_key, shortened([cell.policy for cell in by_key.values()], 34), strict=True))
    marks = [
        Mark(
            x=(each.bytes_per_token or 0.0) / divisor,
            y=each.tokens_per_s or 0.0,
            above=0.0,
            below=0.0,
            look=looks[by_key[each.fingerprint].policy],
            preset=by_key[each.fingerprint].policy_name,
            name=names[each.fingerprint],
            told=_told(by_key[each.fingerprint], each),
            hollow=each.shared > 0,
        )
        for each in points
    ]
    together = len(marks) > SINGLY_UP_TO
    add_marks(figure, marks, together)
    figure.update_traces(error_y={"visible": False}, selector={"mode": "markers"})  # nothing was estimated
    named = {mark.preset if together else mark.name for mark in marks}
    if not points:
        say(figure)
    figure.update_xaxes(title={"text": f"Bytes read for each token: weights, keys, values ({unit})"}, type="log")
    figure.update_yaxes(title={"text": "Decode tokens/s of an engine"}, type="log", dtick="D2")  # at 1, 2, 5
    rows = -(-len(named) // 4)
    return finished(
        figure,
        "Tokens/s under the memory's roof",
        plot_height=PLOT_HEIGHT,
        legend_height=LEGEND_ROW_HEIGHT * max(1, rows),
    )


def _add_roofs(figure: go.Figure, points: Sequence[DeviceSpeed], divisor: float) -> None:
    """A straight line falls by as much as the bytes grow."""
    devices = sorted({each.device for each in points})
    for place, device in enumerate(devices):
        own = [each for each in points if each.device == device]
        reads = [each.bytes_per_token or 1.0 for each in own]
        speeds = [each.copy_bytes_per_s or 0.0 for each in own]
        xs = [min(reads) / ROOM, max(reads) * ROOM]
        for bandwidth, fill in ((min(speeds), None), (max(speeds), "tonexty")):
            figure.add_scatter(
                x=[x / divisor for x in xs],
                y=[bandwidth / x for x in xs],
                mode="lines",
                line={"color": FAINT, "width": 2 if fill else 0},
                fill=fill,
                fillcolor=BAND,
                name=plain(f"roof of {device}"),
                showlegend=False,
                hovertemplate=hover([plain(device), f"copies {bandwidth / GIGA:,.1f} GB/s, read and written"]),
            )
        at = xs[0] * (xs[1] / xs[0]) ** (place / len(devices))  # roofs may lie on each other: names side by side
        figure.add_annotation(
            x=_log10(at / divisor),
            y=_log10(max(speeds) / at),
            text=plain(f"{device}: {max(speeds) / GIGA:,.1f} GB/s"),
            xanchor="left",
            yanchor="bottom",
            yshift=4,
            showarrow=False,
        )


def _log10(value: float) -> float:
    """Annotations on a logarithmic axis stand at the exponent."""
    return log10(value) if value > 0 else 0.0


def _told(cell: CellSummary, each: DeviceSpeed) -> str:
    return hover(
        [
            f"<b>{plain(cell.policy)}</b>",
            f"{number(each.tokens_per_s, 'tokens/s')}, {percent(each.roof_share)} of the roof "
            f"({number(each.roof_tokens_per_s, 'tokens/s', 0)})",
            f"reads {human_bytes(each.bytes_per_token)} a token, weights shared by the rows of a batch",
            f"copies {(each.copy_bytes_per_s or 0.0) / GIGA:,.1f} GB/s on {plain(each.device)}",
            f"{each.measured} of {each.shards} shards measured"
            + (f", {each.shared} with another engine on the node" if each.shared else ""),
        ]
    )


def in_words(cells: Sequence[CellSummary], devices: Sequence[DeviceSpeed]) -> str:
    """Return the roofline in words, for those who can't see it."""
    names = {cell.fingerprint: cell.policy for cell in cells}
    found = sorted(
        (each for each in measured(devices) if each.fingerprint in names), key=lambda each: -(each.roof_share or 0.0)
    )
    told = [
        f"{names[each.fingerprint]}: {number(each.tokens_per_s, 'tokens/s')}, {percent(each.roof_share)} of the roof"
        for each in found[:12]
    ]
    return f"Chart: decode tokens/s against bytes read a token, {len(found)} measured. " + "; ".join(told)
