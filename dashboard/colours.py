"""One colour and one marker a policy, the same on every page and under every filter.

The hue and the marker say which preset it is, the lightness which of its settings. Lightness stays in the middle, so
that marks read on white and on black.
"""

from __future__ import annotations

import colorsys
from collections.abc import Iterable
from dataclasses import dataclass

# Preset: hue in degrees (None is grey), marker. The full cache is what all others are measured by: neutral.
PRESETS: dict[str, tuple[int | None, str]] = {
    "full": (None, "diamond"),
    "hierarchy": (214, "circle"),
    "h2o": (36, "square"),
    "streaming": (172, "triangle-up"),
    "rkv": (126, "cross"),
    "epikv": (276, "star"),
    "qevict": (322, "hexagon"),
    "snapkv": (58, "triangle-down"),
    "random": (0, "x"),
}
HUE_SPREAD = 20  # degrees within a preset, so that several of its settings can be told apart
GOLDEN_ANGLE = 137.5  # degrees: hues so far apart never come round to the same one
OTHER_MARKERS = ("pentagon", "triangle-left", "triangle-right", "bowtie", "hourglass", "octagon")

OUTCOME_COLOURS = {
    "correct": "#2e9e6b",
    "wrong": "#d9544f",
    "no_answer": "#9a7fd1",
    "truncated": "#e0a030",
    "failed": "#8a8f98",
}
TIER_COLOURS = {"HBM": "#3b7dd8", "DDR": "#38b2a3", "packed": "#b08fe0", "evicted": "#a3a9b3"}


@dataclass(frozen=True, slots=True)
class Look:
    """How a policy is drawn."""

    colour: str  # "#rrggbb"
    marker: str  # plotly's name


def looks(policies: Iterable[tuple[str, str]]) -> dict[str, Look]:
    """Return the look of each policy label, given (label, preset) of *all* policies in the database."""
    families: dict[str, list[str]] = {}
    for label, preset in sorted(set(policies)):
        families.setdefault(preset, []).append(label)
    others = sorted(set(families) - set(PRESETS))
    known: dict[str, tuple[float | None, str]] = {
        **PRESETS,
        **{
            preset: ((90 + GOLDEN_ANGLE * place) % 360, OTHER_MARKERS[place % len(OTHER_MARKERS)])
            for place, preset in enumerate(others)
        },
    }
    return {
        label: Look(_colour(known[preset][0], place, len(labels)), known[preset][1])
        for preset, labels in families.items()
        for place, label in enumerate(labels)
    }


def _colour(hue: float | None, place: int, members: int) -> str:
    lightness = 0.5 if members == 1 else 0.44 + 0.28 * place / (members - 1)
    saturation = 0.0 if hue is None else 0.68
    turn = 0.0 if members == 1 else HUE_SPREAD * (place / (members - 1) - 0.5)
    red, green, blue = colorsys.hls_to_rgb((((hue or 0) - turn) % 360) / 360, lightness, saturation)
    return f"#{round(red * 255):02x}{round(green * 255):02x}{round(blue * 255):02x}"
