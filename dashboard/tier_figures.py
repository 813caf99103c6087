"""The tier map as figures: tokens in reading order, and tokens against decode steps, coloured by tier."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from dashboard.colours import TIER_COLOURS
from dashboard.drawing import FAINT, LEGEND_ROW_HEIGHT, finished
from dashboard.tier_text import Layout, lay_out
from dashboard.tier_words import HOVER, hover_data
from dashboard.wording import plain
from db.tier_maps import ABSENT, EVICTED, TIERS, TierMap

ALONE, BESIDE = 104, 50  # characters in a row of a map that has the page's width, and of one that shares it
PART = 800  # tokens shown at once: a browser needs about a millisecond for each
ROW = 24  # pixels
FONT = {"family": "monospace", "size": 12}
STYLES = {"HBM": "{}", "DDR": "<i>{}</i>", "packed": "<u>{}</u>", "evicted": "<s>{}</s>"}  # not by colour alone
STYLE_NAMES = {"HBM": "HBM", "DDR": "DDR (italic)", "packed": "packed (underlined)", "evicted": "evicted (struck out)"}
STRENGTH = 0.38  # of a token's colour: its text stays readable on it in both themes
MARK = "#d9544f"
MOST_CELLS = 60_000  # of the map of steps: each carries its words
MOST_COLUMNS = 700
SCALE = [
    [place, TIER_COLOURS[tier]] for i, tier in enumerate(TIERS) for place in (i / len(TIERS), (i + 1) / len(TIERS))
]
CODES = {"colorscale": SCALE, "zmin": -0.5, "zmax": len(TIERS) - 0.5, "showscale": False}


def placed(tiers: TierMap, layer: int | None) -> NDArray[np.uint8]:
    """Return codes [looks, tokens] of one layer, or where most of all layers and heads have each token."""
    return tiers.overall if layer is None else tiers.tiers[:, layer]


def token_map(
    tiers: TierMap,
    look: int,
    layer: int | None = None,
    *,
    characters: int = ALONE,
    part: range | None = None,
    mark: int | None = None,
    ink: str | None = None,
) -> go.Figure:
    """Tokens in reading order at one look, each with its tier's colour; those to come are left out.

    `part` of the tokens, else all; the legend counts all. `mark` is a token that gets a frame: the first at which two
    texts part. `ink`: the colour of the text, else the figure's.
    """
    every = placed(tiers, layer)[look]
    there = int((every != ABSENT).sum())
    part = range(there) if part is None else range(min(part.start, there), min(part.stop, there))
    codes = every[part.start : part.stop]
    layout = lay_out(tiers.texts[part.start : part.stop], characters)
    figure = go.Figure()
    figure.add_heatmap(z=_cells(layout, codes), opacity=STRENGTH, hoverinfo="skip", **CODES)
    middles = [start + width / 2 - 0.5 for start, width in zip(layout.starts, layout.widths, strict=True)]
    gone = codes == EVICTED
    words = hover_data(tiers, placed(tiers, layer), look, part)
    for which, colour in ((~gone, ink), (gone, FAINT)):
        chosen = np.flatnonzero(which)
        figure.add_scatter(
            x=[middles[i] for i in chosen],
            y=[layout.rows[i] for i in chosen],
            mode="text",
            text=[STYLES[TIERS[codes[i]]].format(plain(layout.labels[i])) for i in chosen],
            textfont={**FONT, "color": colour} if colour else FONT,
            customdata=[words[i] for i in chosen],
            hovertemplate=HOVER,
            showlegend=False,
        )
    counts = [int((every == code).sum()) for code in range(len(TIERS))]
    _legend(figure, [f"{STYLE_NAMES[tier]}: {count:,}" for tier, count in zip(TIERS, counts, strict=True)])
    if mark is not None and mark in part:
        place = mark - part.start
        left, row = layout.starts[place] - 0.5, layout.rows[place]
        figure.add_shape(
            type="rect",
            x0=left,
            x1=left + layout.widths[place],
            y0=row - 0.5,
            y1=row + 0.5,
            line={"color": MARK, "width": 2.5},
        )
    height = max(1, layout.height)
    figure.update_xaxes(visible=False, range=[-0.5, layout.width - 0.5], fixedrange=True)
    figure.update_yaxes(visible=False, range=[height - 0.5, -0.5], fixedrange=True)
    title = f"Tokens after decode step {int(tiers.steps[look]):,}"
    finished(figure, title, plot_height=ROW * height, top=True)
    figure.update_layout(legend={"y": 1 + 4 / (ROW * height)}, hoverdistance=40)
    return figure.update_layout(height=ROW * height + 96, margin={"t": 88, "b": 8, "l": 4, "r": 4})


def _cells(layout: Layout, codes: NDArray[np.uint8]) -> NDArray[np.float32]:
    grid = np.full((max(1, layout.height), layout.width), np.nan, dtype=np.float32)
    for i, (row, start, width) in enumerate(zip(layout.rows, layout.starts, layout.widths, strict=True)):
        grid[row, start : start + width] = codes[i]
    return grid


def _legend(figure: go.Figure, names: Sequence[str]) -> None:
    """A square for each tier: a heat map's own legend is a scale, which tiers are not."""
    for tier, name in zip(TIERS, names, strict=True):
        figure.add_scatter(
            x=[None],
            y=[None],
            mode="markers",
            marker={"symbol": "square", "size": 12, "color": TIER_COLOURS[tier]},
            name=name,
        )
    figure.update_layout(legend={"itemclick": False, "itemdoubleclick": False})


def step_map(tiers: TierMap, layer: int | None = None) -> go.Figure:
    """Where each token lay at each look: tokens from left to right, decode steps downwards.

    A long text's columns are several tokens each, the first of which is shown; likewise looks.
    """
    codes = placed(tiers, layer)
    across = max(1, -(-tiers.tokens // MOST_COLUMNS))
    down = max(1, -(-len(codes) // max(2, MOST_CELLS // -(-tiers.tokens // across))))
    rows = np.unique(np.append(np.arange(0, len(codes), down), len(codes) - 1))
    found = codes[rows][:, ::across]
    names = np.array([*TIERS, ""])
    figure = go.Figure()
    figure.add_heatmap(
        x=list(range(0, tiers.tokens, across)),
        y=tiers.steps[rows].tolist(),
        z=np.where(found == ABSENT, np.nan, found).astype(np.float32),
        text=names[np.where(found == ABSENT, len(TIERS), found)].tolist(),
        hovertemplate="token %{x:,}<br>after step %{y:,}<br>%{text}<extra></extra>",
        hoverongaps=False,
        **CODES,
    )
    _legend(figure, TIERS)
    if 0 < tiers.prompt_tokens < tiers.tokens:
        figure.add_vline(x=tiers.prompt_tokens - 0.5, line={"color": FAINT, "width": 1, "dash": "dash"})
    each = "" if across == 1 else f", every {_nth(across)} shown"
    figure.update_xaxes(title={"text": f"Token (the output begins at the dashed line{each})"}, showgrid=False)
    figure.update_yaxes(title={"text": "Decode step"}, autorange="reversed", showgrid=False)
    return finished(figure, "Tier of each token over decode steps", legend_height=LEGEND_ROW_HEIGHT)


def _nth(number: int) -> str:
    return f"{number}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10 if number % 100 not in (11, 12, 13) else 0, 'th') }"
