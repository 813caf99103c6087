"""Marks with their intervals: each a trace of its own, or, where there are many, all of one preset together.

A chart of a hundred policies takes plotly seconds if each is a trace; together they look and answer the pointer alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go

from dashboard.colours import Look
from dashboard.drawing import error_bars, marker
from dashboard.wording import plain

SINGLY_UP_TO = 12  # with more the legend names presets, of which there are fewer


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """One policy's place in a chart; `above` and `below` are how far its interval reaches."""

    x: float
    y: float
    above: float
    below: float
    look: Look
    preset: str
    name: str  # for the legend, fit for display
    told: str  # plotly's hover template
    hollow: bool = False
    ringed: bool = False


def add_marks(figure: go.Figure, marks: Sequence[Mark], together: bool, *, interval: str = "y", **more: Any) -> None:
    """Add marks with intervals along an axis, in their order or preset by preset. `more` overrides marker settings."""
    groups: dict[str, list[Mark]] = {}
    for place, mark in enumerate(marks):
        groups.setdefault(mark.preset if together else str(place), []).append(mark)
    for members in groups.values():
        first, looks = members[0], [marker(mark.look, mark.hollow, mark.ringed) for mark in members]
        drawn: dict[str, Any] = looks[0]
        if len(members) > 1:
            drawn = {name: [look[name] for look in looks] for name in ("color", "symbol", "size")}
            # The edge of a hollow mark is its colour, which a list has to say.
            edges = [look["line"].get("color", look["color"]) for look in looks]
            drawn["line"] = {"width": [look["line"]["width"] for look in looks], "color": edges}
        # Plotly has one colour for the intervals of a trace: the middle one's of the preset.
        colour = members[len(members) // 2].look.colour
        bars = error_bars([mark.above for mark in members], [mark.below for mark in members], colour)
        figure.add_scatter(
            x=[mark.x for mark in members],
            y=[mark.y for mark in members],
            mode="markers",
            showlegend=True,
            name=plain(first.preset) if together else first.name,
            marker=drawn | more,
            hovertemplate=[mark.told for mark in members] if len(members) > 1 else first.told,
            **{f"error_{interval}": bars},
        )
