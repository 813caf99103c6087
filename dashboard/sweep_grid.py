"""A sweep as squares, one a cell, in rows by model and benchmark: what is done, what runs, what waits, what failed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import plotly.graph_objects as go

from dashboard.drawing import finished, say
from dashboard.wording import NO_NAME, ellipsised, plain
from db.queries import CellProgress

# State: name, colour, sign. The colours differ in lightness too; signs stand in the squares while these are few.
STATES = {
    "done": ("done", "#2a9462", "✔"),
    "running": ("running", "#3b7dd8", "▶"),
    "waiting": ("waiting", "#8a9099", "…"),
    "partial": ("partly failed", "#bd8112", "◐"),
    "failed": ("failed", "#c23b36", "✘"),
}
BEGUN = "begun"  # what `running` means once nobody runs the sweep
FEWEST_COLUMNS, MOST_COLUMNS = 30, 100
SIGNS_UP_TO = 200  # cells
SQUARE = 20  # pixels of a row


def cell_grid(cells: Sequence[CellProgress], running: bool = True) -> go.Figure:
    """One square a cell in the sweep's order, a row or several for each model and benchmark.

    `running`: whether a coordinator is at work; if not, cells with some samples have only been begun.
    """
    figure = go.Figure()
    rows, labels = _rows(cells)
    names = list(STATES)
    if not cells:
        say(figure, "No cells")
    else:
        width = len(rows[0])
        figure.add_heatmap(
            z=[[None if cell is None else names.index(cell.state) for cell in row] for row in rows],
            x=list(range(width)),
            y=list(range(len(rows))),
            customdata=[["" if cell is None else _told(cell, running) for cell in row] for row in rows],
            hovertemplate=f"%{{customdata}}{NO_NAME}",
            hoverongaps=False,
            zmin=-0.5,
            zmax=len(names) - 0.5,
            colorscale=_steps(),
            showscale=False,
            xgap=2,
            ygap=2,
            showlegend=False,
        )
        if len(cells) <= SIGNS_UP_TO:
            _add_signs(figure, rows)
        _add_legend(figure, cells, running)
    figure.update_xaxes(visible=False, fixedrange=True)
    figure.update_yaxes(
        tickvals=[place for place, label in enumerate(labels) if label],
        ticktext=[ellipsised(label, 44) for label in labels if label],
        range=[len(rows) - 0.5, -0.5],
        fixedrange=True,
    )
    finished(figure, "Cells by state", plot_height=max(40, SQUARE * len(rows)), legend_height=0)
    figure.update_layout(
        legend={"yanchor": "bottom", "y": 1.0, "yref": "paper", "x": 0, "itemclick": False, "itemdoubleclick": False},
        margin={"b": 10, "t": 84},
        height=94 + max(40, SQUARE * len(rows)),
        uirevision="grid",
    )
    return figure.update_xaxes(showgrid=False).update_yaxes(showgrid=False)


def _rows(cells: Sequence[CellProgress]) -> tuple[list[list[CellProgress | None]], list[str]]:
    """Squares row by row, the last of a group filled up with gaps, and the labels: of each group's first row alone."""
    groups: dict[tuple[str, str], list[CellProgress]] = {}
    for cell in sorted(cells, key=lambda each: each.position):
        groups.setdefault((cell.model, cell.benchmark), []).append(cell)
    most = max(map(len, groups.values()), default=0)
    width = min(MOST_COLUMNS, max(FEWEST_COLUMNS, most))
    rows: list[list[CellProgress | None]] = []
    labels: list[str] = []
    for (model, benchmark), members in groups.items():
        for start in range(0, len(members), width):
            part: list[CellProgress | None] = list(members[start : start + width])
            rows.append(part + [None] * (width - len(part)))
            labels.append("" if start else f"{model.rsplit('/', 1)[-1]} · {benchmark}")
    return rows, labels


def _told(cell: CellProgress, running: bool) -> str:
    return "<br>".join(
        [
            f"<b>{plain(cell.policy)}</b>",
            f"{plain(cell.model)} · {plain(cell.benchmark)}",
            f"{_name(cell.state, running)}: {cell.done:,} of {cell.expected:,} samples",
            f"failed {cell.failed:,}, shards {cell.shards:,}, protocol {plain(cell.protocol[:8])}",
        ]
    )


def _name(state: str, running: bool) -> str:
    return BEGUN if state == "running" and not running else STATES[state][0]


def _steps() -> list[list[object]]:
    """Flat colours: each state from its lower to its upper bound."""
    count = len(STATES)
    return [
        [bound / count, colour] for place, (_, colour, _) in enumerate(STATES.values()) for bound in (place, place + 1)
    ]


def _add_signs(figure: go.Figure, rows: Sequence[Sequence[CellProgress | None]]) -> None:
    placed = [(x, y, cell.state) for y, row in enumerate(rows) for x, cell in enumerate(row) if cell is not None]
    figure.add_scatter(
        x=[x for x, _, _ in placed],
        y=[y for _, y, _ in placed],
        text=[STATES[state][2] for _, _, state in placed],
        textfont={"color": "#ffffff", "size": 11},
        mode="text",
        hoverinfo="skip",
        hovertemplate=None,
        showlegend=False,
    )


def _add_legend(figure: go.Figure, cells: Sequence[CellProgress], running: bool) -> None:
    counts = Counter(cell.state for cell in cells)
    for state, (_, colour, sign) in STATES.items():
        if counts[state]:
            figure.add_scatter(
                x=[None],
                y=[None],
                mode="markers",
                marker={"symbol": "square", "size": 12, "color": colour},
                name=f"{sign} {_name(state, running)} {counts[state]:,}",
                showlegend=True,
                hoverinfo="skip",
            )


def in_words(cells: Sequence[CellProgress], running: bool = True) -> str:
    """Return the grid in words, for those who can't see it."""
    counts = Counter(cell.state for cell in cells)
    told = ", ".join(f"{counts[state]:,} {_name(state, running)}" for state in STATES if counts[state])
    open_groups = Counter(f"{cell.model} on {cell.benchmark}" for cell in cells if cell.state != "done")
    rest = "; ".join(f"{group}: {count:,} not done" for group, count in open_groups.most_common(8))
    return f"Chart: {len(cells):,} cells by state: {told or 'none'}." + (f" {rest}" if rest else "")
