"""A document as plain data, so that Markdown and HTML say the same."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True)
class Heading:
    level: int
    text: str


@dataclass(frozen=True)
class Paragraph:
    text: str


@dataclass(frozen=True)
class Bullets:
    items: tuple[str, ...]


@dataclass(frozen=True)
class Table:
    """`numbers`: columns that are aligned to the right. `sources`: commands that give the table's numbers.

    `queries`: files of this repository in which these numbers are asked for or computed.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    sources: tuple[str, ...]
    numbers: tuple[int, ...] = ()
    queries: tuple[str, ...] = ()


@dataclass(frozen=True)
class Figure:
    """An SVG file beside the document. `alt` says what it shows to those who don't see it."""

    file: str
    alt: str
    sources: tuple[str, ...]
    queries: tuple[str, ...] = ()


@dataclass(frozen=True)
class Links:
    """Other pages: (text, relative address)."""

    items: tuple[tuple[str, str], ...]


Block: TypeAlias = Heading | Paragraph | Bullets | Table
PageBlock: TypeAlias = Block | Figure | Links  # of pages that lie beside others
Document: TypeAlias = Sequence[PageBlock]
