"""The few signs that our figures consist of, as SVG text. Equal data give equal files: no clock, no random names.

Coordinates are pixels from the upper left corner. All text is escaped.
"""

import html
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from jobs.printable import printable

INK, FAINT, PAPER = "#222222", "#d4d7dc", "#ffffff"
FONT = "font-family=\"system-ui, 'Segoe UI', Helvetica, Arial, sans-serif\""
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#8a6d00", "#56b4e9", "#7a5195", "#4d4d4d")  # Okabe and Ito's
MARKS = ("circle", "square", "triangle", "diamond", "down", "cross")

_BENDS = ((0.4, 1.1), (0.4, 0.4), (1.1, 0.4))  # of a quarter of a cross, from one arm's end to the next one's
_ARMS = ((1, 1, _BENDS), (1, -1, _BENDS[::-1]), (-1, -1, _BENDS), (-1, 1, _BENDS[::-1]))


@dataclass(frozen=True)
class Look:
    colour: str
    mark: str


def look(place: int) -> Look:
    """Colours come round after eight, and then with another mark."""
    return Look(COLOURS[place % len(COLOURS)], MARKS[(place % len(COLOURS) + place // len(COLOURS)) % len(MARKS)])


@dataclass(frozen=True)
class Frame:
    """A plot's area in pixels, and the values at its edges."""

    left: float
    top: float
    width: float
    height: float
    x: tuple[float, float]
    y: tuple[float, float]

    def across(self, value: float) -> float:
        low, high = self.x
        return self.left + self.width * (value - low) / (high - low)

    def down(self, value: float) -> float:
        low, high = self.y
        return self.top + self.height * (1 - (value - low) / (high - low))


def document(width: float, height: float, title: str, parts: Iterable[str]) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" role="img" '
        f'width="{width:g}" height="{height:g}" {FONT} font-size="12" fill="{INK}">\n'
        f"<title>{_text(title)}</title>\n"
        f'<rect width="100%" height="100%" fill="{PAPER}"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def text(x: float, y: float, words: str, *, anchor: str = "start", size: int = 12, bold: bool = False) -> str:
    weight = ' font-weight="600"' if bold else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}"{weight}>{_text(words)}</text>'


def upright(x: float, y: float, words: str) -> str:
    """Text that reads upwards, centred."""
    return f'<text transform="translate({x:.1f} {y:.1f}) rotate(-90)" text-anchor="middle">{_text(words)}</text>'


def line(x1: float, y1: float, x2: float, y2: float, colour: str = FAINT, width: float = 1.0, dash: str = "") -> str:
    dashed = f' stroke-dasharray="{dash}"' if dash else ""
    ends = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
    return f'<line {ends} stroke="{colour}" stroke-width="{width:g}"{dashed}/>'


def path(points: Sequence[tuple[float, float]], colour: str, width: float = 1.8, dash: str = "") -> str:
    dashed = f' stroke-dasharray="{dash}"' if dash else ""
    steps = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{steps}" fill="none" stroke="{colour}" stroke-width="{width:g}"{dashed}/>'


def mark(x: float, y: float, how: Look, *, size: float = 4.2, hollow: bool = False) -> str:
    """One point; its shape says the same as its colour."""
    fill = PAPER if hollow else how.colour
    style = f'fill="{fill}" stroke="{how.colour}" stroke-width="1.4"'
    if how.mark == "circle":
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{size:.1f}" {style}/>'
    corners = {
        "square": ((-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)),
        "triangle": ((0, -1.15), (1.1, 0.85), (-1.1, 0.85)),
        "down": ((0, 1.15), (1.1, -0.85), (-1.1, -0.85)),
        "diamond": ((0, -1.3), (1.3, 0), (0, 1.3), (-1.3, 0)),
        "cross": tuple((sx * dx, sy * dy) for sx, sy, bends in _ARMS for dx, dy in bends),
    }[how.mark]
    places = " ".join(f"{x + size * dx:.1f},{y + size * dy:.1f}" for dx, dy in corners)
    return f'<polygon points="{places}" {style}/>'


def axes(frame: Frame, x_ticks: Sequence[float], y_ticks: Sequence[float], x_label: str, y_label: str) -> list[str]:
    """Grid lines, numbers and names; no box."""
    right, bottom = frame.left + frame.width, frame.top + frame.height
    parts = []
    for value in y_ticks:
        y = frame.down(value)
        parts += [line(frame.left, y, right, y), text(frame.left - 6, y + 4, f"{value:g}", anchor="end")]
    for value in x_ticks:
        x = frame.across(value)
        parts += [line(x, frame.top, x, bottom), text(x, bottom + 16, f"{value:g}", anchor="middle")]
    parts.append(text(frame.left + frame.width / 2, bottom + 34, x_label, anchor="middle"))
    if y_label:
        parts.append(upright(frame.left - 38, frame.top + frame.height / 2, y_label))
    return parts


def _text(words: str) -> str:
    return html.escape(printable(" ".join(words.split())), quote=True)
