"""Bytes that policies move between device and host memory, each way, and what part of decoding that takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import plotly.graph_objects as go

from dashboard.colours import TIER_COLOURS
from dashboard.drawing import LEGEND_ROW_HEIGHT, finished, list_rows, require_one_protocol, say
from dashboard.wording import byte_unit, hover, human_bytes, percent, plain
from db.queries import CellSummary, DeviceSpeed

WAYS = (("to the host", "DDR"), ("to the device", "HBM"))  # and the colours of the tiers that grow by it


@dataclass(frozen=True, slots=True)
class Moved:
    """Bytes that a cell's events moved between tiers, over all its shards; `share` of decode time is the bus's."""

    to_host: int
    to_device: int
    tokens: int
    share: float | None

    @property
    def per_token(self) -> tuple[float, float] | None:
        """Return bytes to the host and to the device for each generated token."""
        return (self.to_host / self.tokens, self.to_device / self.tokens) if self.tokens else None


def moved(devices: Sequence[DeviceSpeed]) -> dict[str, Moved]:
    """Return each cell's traffic over all devices, by fingerprint."""
    found: dict[str, list[DeviceSpeed]] = {}
    for each in devices:
        found.setdefault(each.fingerprint, []).append(each)
    return {fingerprint: _moved(members) for fingerprint, members in found.items()}


def _moved(members: Sequence[DeviceSpeed]) -> Moved:
    timed = [each for each in members if each.transfer_s is not None and each.transfer_decode_s]
    decoding = sum(each.transfer_decode_s or 0.0 for each in timed)
    return Moved(
        sum(each.bytes_to_host for each in members),
        sum(each.bytes_to_device for each in members),
        sum(each.decode_tokens for each in members),
        sum(each.transfer_s or 0.0 for each in timed) / decoding if decoding else None,
    )


def transfer_bars(cells: Sequence[CellSummary], traffic: Mapping[str, Moved]) -> go.Figure:
    """Bytes moved each way for each generated token; beside the bars the share of decode time that it took.

    Policies that moved nothing are left out; the one that moves least is on top.
    """
    require_one_protocol(cells)
    rows = []
    for cell in cells:
        found = traffic.get(cell.fingerprint)
        if found is not None and (each := found.per_token) is not None and sum(each) > 0:
            rows.append((cell, found, each))
    rows.sort(key=lambda row: -sum(row[2]))
    divisor, unit = byte_unit(max((max(each) for _, _, each in rows), default=0.0))
    figure = go.Figure()
    for place, (way, tier) in enumerate(WAYS if rows else ()):
        figure.add_bar(
            y=list(range(len(rows))),
            x=[each[place] / divisor for _, _, each in rows],
            orientation="h",
            name=way,
            marker={"color": TIER_COLOURS[tier]},
            hovertemplate=[
                hover(
                    [
                        plain(cell.policy),
                        f"{way}: {human_bytes(each[place])} a token",
                        f"in all {human_bytes((found.to_host, found.to_device)[place])}, {found.tokens:,} tokens",
                        f"share of decode time: {_share(found)}",
                    ]
                )
                for cell, found, each in rows
            ],
        )
    beside = {"x": 1.015, "xref": "paper", "xanchor": "left", "showarrow": False}
    shares = [
        {**beside, "y": place, "text": "–" if found.share is None else percent(found.share)}
        for place, (_, found, _) in enumerate(rows)
    ]
    heading = {**beside, "y": 1.0, "yref": "paper", "yanchor": "bottom", "yshift": 18, "text": "of decode<br>time"}
    if rows:
        figure.update_layout(annotations=[*shares, heading])
    else:
        say(figure, "Nothing was moved between tiers")
    figure.update_layout(barmode="group", bargap=0.3)
    figure.update_xaxes(title={"text": f"Bytes moved for each generated token ({unit})"}, rangemode="tozero")
    height = list_rows(figure, [cell.policy for cell, _, _ in rows])
    title = "Transfers between device and host memory"
    return finished(figure, title, plot_height=height, legend_height=LEGEND_ROW_HEIGHT, right=80, top=True)


def _share(found: Moved) -> str:
    return percent(found.share, reason="there is no bus, or its time wasn't measured")


def transfers_in_words(cells: Sequence[CellSummary], traffic: Mapping[str, Moved]) -> str:
    """Return the transfers in words."""
    told = []
    for cell in cells:
        found = traffic.get(cell.fingerprint)
        if found and found.per_token and sum(found.per_token):
            out, back = (human_bytes(each) for each in found.per_token)
            told.append(f"{cell.policy}: {out} to the host and {back} to the device a token, {_share(found)}")
    return f"Chart: bytes moved between tiers, {len(told)} policies. " + "; ".join(told[:12])
