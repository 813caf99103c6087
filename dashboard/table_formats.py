"""A table as a file: CSV, Parquet, Markdown, LaTeX. Pure: a frame in, bytes out. Nothing of Streamlit here.

Cells may hold what a model wrote. No format lets it become more than text: no formula in a spreadsheet, no markup in a
Markdown viewer, no command in LaTeX. What is missing is empty in CSV, null in Parquet and a dash where people read.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from dashboard.tables import csv_safe

DASH = "–"
SIGNIFICANT = 6  # digits of a number that people read; CSV and Parquet keep all

_MARKDOWN = re.compile(r"[\\`*_{}\[\]<>#|~&!$:@]")
_LATEX = {
    "\\": r"\textbackslash{}",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
    "`": r"\textasciigrave{}",
    "'": r"\textquotesingle{}",
    "-": "{-}",  # two would join into a dash
    "[": "{[}",  # after a line's end it would begin that command's argument
    "]": "{]}",
    "*": "{*}",  # the same
    "?": "{?}",  # ?` and !` would join
    "!": "{!}",
    **{char: f"\\{char}" for char in "&%$#_{}"},
}


def to_csv(frame: pd.DataFrame) -> bytes:
    """Return a frame as CSV (UTF-8) in which no text cell starts a formula when a spreadsheet opens it."""
    return csv_safe(_labelled(frame).map(lambda value: value.replace("\0", "\ufffd") if _is_text(value) else value))


def to_parquet(frame: pd.DataFrame) -> bytes:
    """Return a frame as Parquet: types and missing values kept, text as it is; a column of mixed types as text."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    frame = _labelled(frame)
    table = pa.table({str(name): _arrow(pa, frame[name]) for name in frame.columns})
    sink = io.BytesIO()
    pq.write_table(table, sink)
    return sink.getvalue()


def to_markdown(frame: pd.DataFrame) -> bytes:
    """Return a frame as a Markdown table of one line a row, every sign that Markdown obeys behind a backslash."""
    frame = _labelled(frame)
    lines = [[str(name) for name in frame.columns], *_texts(frame)]
    rows = ["| " + " | ".join(map(_markdown, line)) + " |" for line in lines]
    rule = "|" + "|".join("---:" if _numbers(frame[name]) else "---" for name in frame.columns) + "|"
    return "\n".join([rows[0], rule, *rows[1:], ""]).encode("utf-8", "replace")


def to_latex(frame: pd.DataFrame) -> bytes:
    """Return a frame as a LaTeX tabular with booktabs' rules. Letters beyond ASCII stay: they need UTF-8 and a font."""
    frame = _labelled(frame)
    names = " & ".join(_latex(str(name)) for name in frame.columns)
    lines = [
        "% \\usepackage{booktabs}  \\usepackage{textcomp}",
        f"\\begin{{tabular}}{{{''.join('r' if _numbers(frame[name]) else 'l' for name in frame.columns)}}}",
        "\\toprule",
        f"{names} \\\\",
        "\\midrule",
        *(" & ".join(map(_latex, line)) + " \\\\" for line in _texts(frame)),
        "\\bottomrule",
        "\\end{tabular}",
        "",
    ]
    return "\n".join(lines).encode("utf-8", "replace")


@dataclass(frozen=True, slots=True)
class Format:
    """A kind of file: its name for people, how it is made, the end of its name, its MIME type."""

    name: str
    render: Callable[[pd.DataFrame], bytes]
    suffix: str
    mime: str


FORMATS = (
    Format("CSV", to_csv, "csv", "text/csv"),
    Format("Parquet", to_parquet, "parquet", "application/vnd.apache.parquet"),
    Format("Markdown", to_markdown, "md", "text/markdown"),
    Format("LaTeX", to_latex, "tex", "application/x-tex"),
)


def readable(value: Any) -> str:
    """Return a cell as people read it: a dash if it is missing, a number without more digits than it is good for."""
    if _missing(value):
        return DASH
    if isinstance(value, bool | np.bool_):
        return "yes" if value else "no"
    if isinstance(value, float | np.floating):
        if not np.isfinite(value):
            return DASH
        whole = len(str(abs(int(value))))  # digits before the point are never cut off
        return np.format_float_positional(value, max(SIGNIFICANT, whole), fractional=False, trim="-")
    return str(value)


def _texts(frame: pd.DataFrame) -> list[list[str]]:
    return [[readable(value) for value in row] for row in frame.itertuples(index=False, name=None)]


def _missing(value: Any) -> bool:
    return value is None or (pd.api.types.is_scalar(value) and bool(pd.isna(value)))


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _numbers(column: pd.Series[Any]) -> bool:
    """Whether a column holds numbers and nothing else; such a one is aligned to the right."""
    found = [value for value in column if not _missing(value)]
    return bool(found) and all(
        isinstance(value, int | float | np.number) and not isinstance(value, bool | np.bool_) for value in found
    )


def _labelled(frame: pd.DataFrame) -> pd.DataFrame:
    """Parquet takes no column name twice, so a second one gets a number; the row numbers are left out."""
    names: list[str] = []
    for name in map(str, frame.columns):
        place = 1 + sum(each == name or each.startswith(f"{name} (") for each in names)
        names.append(name if place == 1 else f"{name} ({place})")
    return frame.set_axis(names, axis=1).reset_index(drop=True)


def _arrow(pa: Any, column: pd.Series[Any]) -> Any:
    values = [None if _missing(value) else _plain(value) for value in column]
    try:
        return pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError):
        return pa.array([None if value is None else _plain(str(value)) for value in values], pa.string())


def _plain(value: Any) -> Any:
    """What a driver or numpy made, as Python's own; text without halves of characters, which no file takes."""
    if isinstance(value, np.generic):
        return value.item()
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else value


def one_line(text: str) -> str:
    """Without line ends, and with what can't be seen or would turn the direction of reading made visible."""
    line = " ".join(text.split())
    if line.isprintable():
        return line
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in line)


def _markdown(text: str) -> str:
    line = _MARKDOWN.sub(r"\\\g<0>", one_line(text))
    return re.sub(r"(?i)\bwww\.", r"www\\.", line)  # some viewers link it


def _latex(text: str) -> str:
    return "".join(_LATEX.get(char, char) for char in one_line(text))
