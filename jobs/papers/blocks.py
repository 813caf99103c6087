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
    """`numbers`: columns that are aligned to the right. `sources`: commands that give the table's numbers."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    sources: tuple[str, ...]
    numbers: tuple[int, ...] = ()


Block: TypeAlias = Heading | Paragraph | Bullets | Table
Document: TypeAlias = Sequence[Block]
