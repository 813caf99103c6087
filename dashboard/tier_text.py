"""Tokens laid out as text: what each is written as, and where it stands in rows of equally wide characters."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

LONGEST = 16  # characters of a token's label
NAMED = {"\n": "⏎", "\r": "⏎", "\t": "⇥", " ": "␣"}
PAD = 1  # half characters at each side of a label, and between two tokens


@dataclass(frozen=True, slots=True)
class Layout:
    """Where tokens stand. Widths are in half characters; `starts` and `widths` are those of the coloured cells."""

    rows: list[int]
    starts: list[int]
    widths: list[int]
    labels: list[str]  # unescaped
    width: int  # of a row

    @property
    def height(self) -> int:
        """Rows."""
        return self.rows[-1] + 1 if self.rows else 0


def lay_out(texts: Sequence[str], characters: int) -> Layout:
    """Put tokens in reading order into rows of so many characters."""
    width = 2 * characters
    labels = [label(text) for text in texts]
    rows, starts, widths = [], [], []
    row = column = 0
    for each in labels:
        size = min(width, 2 * columns(each) + 2 * PAD)
        if column and column + size > width:
            row, column = row + 1, 0
        rows.append(row)
        starts.append(column)
        widths.append(size)
        column += size + PAD
    return Layout(rows, starts, widths, labels, width)


def label(text: str) -> str:
    """Return what a token is written as: on one line, everything visible, not too long."""
    body = text.strip(" ") or text[:1] or "∅"
    shown = "".join(NAMED.get(each) or (each if each.isprintable() else "·") for each in body)
    return shown if len(shown) <= LONGEST else f"{shown[: LONGEST - 1]}…"


def columns(text: str) -> int:
    """Return how many characters wide a text is: Chinese, Japanese and Korean ones take two."""
    return sum(
        0 if unicodedata.combining(each) else 2 if unicodedata.east_asian_width(each) in "WF" else 1 for each in text
    )
