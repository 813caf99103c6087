"""HTML out of text. Everything goes through `text`, whatever it is: names, labels and errors may come from anywhere."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass

from dashboard.table_formats import one_line

NUMBER = ' class="n"'
LONGEST = 2000  # characters of one text: an error may be megabytes


def text(value: object) -> str:
    """Return a value as one line of text that is no markup, with what can't be seen made visible."""
    line = one_line(str(value))
    return html.escape(line if len(line) <= LONGEST else line[:LONGEST] + " …", quote=True)


def block(value: str) -> str:
    """Return a text of several lines, indented as it is."""
    seen = "".join(char if char.isprintable() or char == "\n" else repr(char)[1:-1] for char in value)
    return f'<pre tabindex="0"><code>{html.escape(seen, quote=True)}</code></pre>'


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table: its heading, whether it holds numbers, and what the heading means."""

    name: str
    number: bool = False
    about: str = ""


@dataclass(frozen=True, slots=True)
class Value:
    """A cell: what is read, and by what it is sorted where that is something else (None: missing, comes last)."""

    shown: str
    order: float | None = None


def table(caption: str, columns: Sequence[Column], rows: Sequence[Sequence[Value]], *, sortable: bool = False) -> str:
    """Return a table in a box that scrolls and can be reached by keyboard. The first column names the rows."""
    head = "".join(_heading(column, sortable) for column in columns)
    body = "\n".join(f"<tr>{_row(columns, row)}</tr>" for row in rows)
    sort = ' class="sortable"' if sortable else ""
    return (
        f'<div class="scroll" role="region" aria-label="{text(caption)}" tabindex="0"><table{sort}>'
        f"<caption>{text(caption)}</caption>\n"
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>"
    )


def facts(caption: str, pairs: Sequence[tuple[str, str]]) -> str:
    """Return a table of names and values."""
    rows = [[Value(name), Value(value)] for name, value in pairs]
    return table(caption, [Column("name"), Column("value")], rows)


def _heading(column: Column, sortable: bool) -> str:
    about = f' title="{text(column.about)}"' if column.about else ""
    name = f'<button type="button">{text(column.name)}</button>' if sortable else text(column.name)
    return f'<th scope="col"{about}{NUMBER if column.number else ""}>{name}</th>'


def _row(columns: Sequence[Column], row: Sequence[Value]) -> str:
    pairs = enumerate(zip(columns, row, strict=True))
    return "".join(_cell(value, column, place == 0) for place, (column, value) in pairs)


def _cell(value: Value, column: Column, first: bool) -> str:
    order = "" if value.order is None else f' data-v="{value.order:.10g}"'
    if first:
        return f'<th scope="row"{order}>{text(value.shown)}</th>'
    return f"<td{NUMBER if column.number else ''}{order}>{text(value.shown)}</td>"
