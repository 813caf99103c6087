"""One colour and one marker a policy, the same on every page and under every filter.

The hue and the marker say which preset it is, the lightness which of its settings. Luminance stays in a band in which
a mark has a contrast of 3:1 to the white of the light theme and to the black of the dark one.
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
DARKEST, LIGHTEST = 0.13, 0.28  # relative luminance
HUE_SPREAD = 20  # degrees within a preset, so that several of its settings can be told apart
GOLDEN_ANGLE = 137.5  # degrees: hues so far apart never come round to the same one
OTHER_MARKERS = ("pentagon", "triangle-left", "triangle-right", "bowtie", "hourglass", "octagon")

OUTCOME_COLOURS = {
    "correct": "#2a9462",
    "wrong": "#d9544f",
    "no_answer": "#9173cc",
    "truncated": "#bd8112",
    "failed": "#868b94",
}
TIER_COLOURS = {"HBM": "#3b7dd8", "DDR": "#2b9c8e", "packed": "#a67fdc", "evicted": "#8a9099"}


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


def luminance(colour: str) -> float:
    """Return the relative luminance of "#rrggbb" by WCAG 2: 0 is black, 1 is white."""
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    """Return the contrast of two colours by WCAG 2: 1 is none, 21 is black on white."""
    darker, lighter = sorted((luminance(one), luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


def _colour(hue: float | None, place: int, members: int) -> str:
    along = 0.5 if members == 1 else place / (members - 1)
    wanted = DARKEST + (LIGHTEST - DARKEST) * along
    saturation = 0.0 if hue is None else 0.62
    turn = HUE_SPREAD * (along - 0.5)
    low, high = 0.0, 1.0
    for _ in range(12):  # hues of one lightness differ in luminance: find the lightness that has it
        lightness = (low + high) / 2
        colour = _hex((((hue or 0) - turn) % 360) / 360, lightness, saturation)
        low, high = (lightness, high) if luminance(colour) < wanted else (low, lightness)
    return colour


def _hex(hue: float, lightness: float, saturation: float) -> str:
    red, green, blue = colorsys.hls_to_rgb(hue, lightness, saturation)
    return f"#{round(red * 255):02x}{round(green * 255):02x}{round(blue * 255):02x}"
