"""Where the bytes of a sequence lie: by policy beside the full cache's, and over the steps of one sample."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from dashboard.colours import TIER_COLOURS
from dashboard.drawing import FAINT, GRID, LEGEND_ROW_HEIGHT, finished, list_rows, require_one_protocol, say
from dashboard.wording import byte_unit, ellipsised, hover, human_bytes, percent, plain
from db.queries import CellSpeed, CellSummary, TierMap

Which = Literal["mean", "peak"]
METADATA = "#a8841a"  # scores and other fields of slots: device memory too
FULL_CACHE = "#8c8c8c"
THICK = 0.4  # of a row: a policy's bar, and below it the full cache's
PANEL_HEIGHT = 250
MOST_POINTS = 1500  # of a line: more than it has pixels


def parts(cell: CellSummary, speed: CellSpeed | None, which: Which) -> dict[str, float] | None:
    """Return a sequence's bytes by tier, None if they were not recorded.

    Of the peak the ledger keeps device memory in full precision: what a sequence held there at its fullest moment,
    before an event. Where tokens were quantised that isn't all of the device's bytes, so there is no peak.
    """
    if which == "mean":
        if cell.hbm_bytes is None:
            return None
        return {"HBM": cell.hbm_bytes, "packed": cell.packed_bytes or 0.0, "DDR": cell.ddr_bytes or 0.0}
    if speed is None or speed.hbm_bytes_peak is None or cell.packed_bytes:
        return None
    return {"HBM": speed.hbm_bytes_peak, "metadata": speed.metadata_bytes_peak or 0.0}


def full_cache(cell: CellSummary, speed: CellSpeed | None, which: Which) -> float | None:
    """Return what the full cache holds of the same sequences: mean over their decoding, or at their end, its most."""
    return cell.full_bytes if which == "mean" else speed and speed.full_bytes_end


def tier_bars(cells: Sequence[CellSummary], speeds: Mapping[str, CellSpeed], which: Which) -> go.Figure:
    """Bytes of a sequence by tier, stacked, beside what the full cache holds; the least in device memory on top.

    Policies without recorded bytes are left out.
    """
    require_one_protocol(cells)
    rows = [
        (cell, found, full_cache(cell, speeds.get(cell.fingerprint), which))
        for cell, found in _measured(cells, speeds, which)
    ]
    rows.sort(key=lambda row: -(row[1]["HBM"] + row[1].get("packed", 0.0)))
    divisor, unit = byte_unit(max((max(sum(found.values()), full or 0.0) for _, found, full in rows), default=0.0))
    figure = go.Figure()
    bases = [0.0] * len(rows)
    for tier, colour in {**TIER_COLOURS, "metadata": METADATA}.items():
        counts = [found.get(tier) for _, found, _ in rows]
        if all(count is None for count in counts):
            continue
        figure.add_bar(
            **_bars(counts, bases, divisor, 0.02),
            name=tier,
            marker={"color": colour},
            hovertemplate=[
                hover([plain(cell.policy), f"{tier}: {human_bytes(count)}", _of_full(sum(found.values()), full)])
                for (cell, found, full), count in zip(rows, counts, strict=True)
            ],
        )
        bases = [base + (count or 0.0) for base, count in zip(bases, counts, strict=True)]
    fulls = [full for _, _, full in rows]
    figure.add_bar(
        **_bars(fulls, [0.0] * len(rows), divisor, -THICK - 0.02),
        name="full cache",
        marker={"color": FULL_CACHE},
        hovertemplate=[hover([plain(cell.policy), f"the full cache: {human_bytes(full)}"]) for cell, _, full in rows],
    )
    if not rows:
        say(figure)
    what = "mean over decoding" if which == "mean" else "peak of each sequence, mean over sequences"
    figure.update_layout(barmode="overlay")
    figure.update_xaxes(title={"text": f"KV bytes of one sequence, {what} ({unit}, logical)"}, rangemode="tozero")
    height = list_rows(figure, [cell.policy for cell, _, _ in rows])
    return finished(figure, "Bytes by tier", plot_height=height, legend_height=2 * LEGEND_ROW_HEIGHT, top=True)


def _measured(
    cells: Sequence[CellSummary], speeds: Mapping[str, CellSpeed], which: Which
) -> list[tuple[CellSummary, dict[str, float]]]:
    found = ((cell, parts(cell, speeds.get(cell.fingerprint), which)) for cell in cells)
    return [(cell, each) for cell, each in found if each is not None]


def _bars(counts: Sequence[float | None], bases: Sequence[float], divisor: float, offset: float) -> dict[str, Any]:
    return {
        "y": list(range(len(counts))),
        "x": [None if count is None else count / divisor for count in counts],
        "base": [base / divisor for base in bases],
        "orientation": "h",
        "width": THICK,
        "offset": offset,
    }


def _of_full(held: float, full: float | None) -> str:
    return f"all tiers: {human_bytes(held)}, {percent(held / full if full else None)} of the full cache"


def over_time(maps: Sequence[tuple[str, TierMap]]) -> go.Figure:
    """Bytes in each tier after each decode step, one panel a policy, all on one scale; dashed: the full cache."""
    if not maps:
        figure = go.Figure()
        say(figure, "No tier map")
        return finished(figure, "Bytes by tier over time")
    columns = min(2, len(maps))
    rows = -(-len(maps) // columns)
    gap = 70 / (PANEL_HEIGHT * rows)
    figure = make_subplots(
        rows=rows,
        cols=columns,
        specs=[
            [{} if row * columns + column < len(maps) else None for column in range(columns)] for row in range(rows)
        ],
        shared_yaxes="all",
        horizontal_spacing=0.05,
        vertical_spacing=gap if rows > 1 else 0.0,
        subplot_titles=[ellipsised(label, 52) for label, _ in maps],
    )
    divisor, unit = byte_unit(max((int(found.series["full"].max(initial=0)) for _, found in maps), default=0))
    for place, (label, found) in enumerate(maps):
        _add_panel(figure, label, found, divisor, {"row": place // columns + 1, "col": place % columns + 1}, place == 0)
    figure.update_yaxes(rangemode="tozero")
    figure.update_yaxes(title={"text": f"KV bytes ({unit}, logical)"}, col=1)
    figure.update_xaxes(title={"text": "Decode step"}, row=rows)
    finished(figure, "Bytes by tier over time", plot_height=PANEL_HEIGHT * rows, legend_height=LEGEND_ROW_HEIGHT)
    return figure.update_layout(margin={"t": 90}, hovermode="x unified")


def _add_panel(
    figure: go.Figure, label: str, found: TierMap, divisor: float, place: dict[str, int], first: bool
) -> None:
    every = max(1, -(-len(found.series["full"]) // MOST_POINTS))  # the series has every decode step
    steps = list(range(0, len(found.series["full"]), every))
    for tier, name in (("HBM", "hbm"), ("packed", "packed"), ("DDR", "ddr")):
        figure.add_scatter(
            x=steps,
            y=(found.series[name][::every] / divisor).tolist(),
            name=tier,
            legendgroup=tier,
            showlegend=first,
            mode="lines",
            line={"width": 0.5, "color": TIER_COLOURS[tier], "shape": "hv"},
            fillcolor=TIER_COLOURS[tier],
            stackgroup=f"tiers {label}",
            hovertemplate=f"{tier} %{{y:.4~g}}<extra></extra>",
            **place,
        )
    for name, told, dash, colour in (("full", "full cache", "dash", FAINT), ("evicted", "evicted so far", "dot", GRID)):
        figure.add_scatter(
            x=steps,
            y=(found.series[name][::every] / divisor).tolist(),
            name=told,
            legendgroup=told,
            showlegend=first,
            mode="lines",
            line={"width": 1.5, "dash": dash, "color": FAINT if colour == FAINT else TIER_COLOURS["evicted"]},
            hovertemplate=f"{told} %{{y:.4~g}}<extra></extra>",
            **place,
        )


def bars_in_words(cells: Sequence[CellSummary], speeds: Mapping[str, CellSpeed], which: Which) -> str:
    """Return the bars in words, for those who can't see them."""
    told = [
        f"{cell.policy}: " + ", ".join(f"{human_bytes(count)} {tier}" for tier, count in found.items() if count)
        for cell, found in _measured(cells, speeds, which)[:12]
    ]
    return f"Chart: {which} bytes of a sequence by tier, {len(cells)} policies. " + "; ".join(told)


def time_in_words(maps: Sequence[tuple[str, TierMap]]) -> str:
    """Return the panels in words."""
    told = []
    for label, found in maps:
        held = found.series["hbm"] + found.series["packed"]
        most, last = int(held.max(initial=0)), int(held[-1]) if len(held) else 0
        told.append(f"{label}: at most {human_bytes(most)} in device memory, {human_bytes(last)} at the end")
    return f"Chart: bytes by tier over decode steps, {len(maps)} policies. " + "; ".join(told)
