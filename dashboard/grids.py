"""The hierarchy's two ratios against each other: how much stays in HBM, and how much is evicted for good."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from dashboard.drawing import describe, finished, require_one_protocol, say
from dashboard.wording import NO_NAME, percent
from db.queries import CellSummary

HIERARCHY = "hierarchy"
Grid = dict[tuple[float, float], CellSummary]  # by (hbm, evict)
ACCURACY_COLOURS = [[0.0, "#f3ecd2"], [0.35, "#8fc9b0"], [0.7, "#2b7e9a"], [1.0, "#173f6e"]]
DARK_FROM = 0.7
CELL_HEIGHT = 64


def ratios(config: Mapping[str, Any]) -> tuple[float, float] | None:
    """Return a cell's (HBM ratio, eviction ratio), or None if its configuration names none."""
    policy = config.get("policy")
    placement = policy.get("placement") if isinstance(policy, Mapping) else None
    found = [placement.get(name) if isinstance(placement, Mapping) else None for name in ("hbm", "evict")]
    hbm, evict = (float(each) if isinstance(each, int | float) else None for each in found)
    return None if hbm is None or evict is None else (hbm, evict)


def grids(cells: Sequence[CellSummary], configs: Mapping[str, Mapping[str, Any]]) -> dict[str, Grid]:
    """Return the grids of hierarchy cells by their other settings, the fullest first.

    Only where both ratios take at least two values: one row or column is no grid, and has its budget curve.
    """
    require_one_protocol(cells)
    found: dict[str, Grid] = {}
    for cell in cells:
        place = ratios(configs.get(cell.fingerprint, {}))
        if cell.policy_name == HIERARCHY and place is not None:
            others = " ".join(word for word in cell.policy.split() if not word.startswith(("hbm=", "evict=")))
            found.setdefault(others, {}).setdefault(place, cell)
    real = {
        others: grid
        for others, grid in found.items()
        if all(len({place[axis] for place in grid}) > 1 for axis in (0, 1))
    }
    return dict(sorted(real.items(), key=lambda item: (-len(item[1]), item[0])))


def hbm_evict_map(grid: Grid) -> go.Figure:
    """Accuracy and number of samples by HBM ratio and eviction ratio; a dash where nothing was measured."""
    require_one_protocol(list(grid.values()))
    hbms, evicts = (sorted({place[axis] for place in grid}) for axis in (0, 1))
    rows = [[grid.get((hbm, evict)) for evict in evicts] for hbm in hbms]
    figure = go.Figure()
    if not grid:
        say(figure, "No hierarchy cells")
    else:
        figure.add_heatmap(
            z=[[cell and cell.accuracy for cell in row] for row in rows],
            x=[f"{evict:g}" for evict in evicts],
            y=[f"{hbm:g}" for hbm in hbms],
            customdata=[["" if c is None else describe(c).removesuffix(NO_NAME) for c in row] for row in rows],
            hovertemplate=f"%{{customdata}}{NO_NAME}",
            hoverongaps=False,
            zmin=0,
            zmax=1,
            colorscale=ACCURACY_COLOURS,
            colorbar={"title": {"text": "Accuracy"}, "tickformat": ".0%", "thickness": 14},
            xgap=3,
            ygap=3,
        )
        # Annotations: a gap in a heat map can't bear text, and theirs doesn't contrast with every colour.
        figure.update_layout(
            annotations=[
                {"x": column, "y": row, "showarrow": False, **_written(cell)}
                for row, cells in enumerate(rows)
                for column, cell in enumerate(cells)
            ]
        )
    figure.update_xaxes(title={"text": "Eviction ratio (evict)"}, type="category")
    figure.update_yaxes(title={"text": "HBM ratio (hbm)"}, type="category")
    finished(
        figure,
        "Accuracy by HBM ratio and eviction ratio",
        plot_height=max(160, CELL_HEIGHT * len(hbms)),
        legend_height=0,
    )
    return figure.update_xaxes(showgrid=False).update_yaxes(showgrid=False)


def _written(cell: CellSummary | None) -> dict[str, Any]:
    if cell is None:
        return {"text": "–"}
    if cell.accuracy is None:
        return {"text": "–<br>no sample"}
    colour = "#ffffff" if cell.accuracy >= DARK_FROM else "#000000"
    return {"text": f"<b>{percent(cell.accuracy)}</b><br>n={cell.n}", "font": {"color": colour}}


def in_words(grid: Grid) -> str:
    """Return the map in words, for those who can't see it."""
    told = [
        f"HBM {hbm:g}, eviction {evict:g}: {percent(c.accuracy)} of {c.n}" for (hbm, evict), c in sorted(grid.items())
    ]
    return "Chart: accuracy by HBM ratio and eviction ratio. " + "; ".join(told)
