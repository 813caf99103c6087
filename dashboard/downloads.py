"""The control beside a table that hands it out as a file. Nothing is written before it is asked for."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import pandas as pd
import streamlit as st

from dashboard.table_formats import FORMATS


def downloads(table: pd.DataFrame, name: str, place: Any = st, *, key: str | None = None) -> None:
    """Show one small menu with a table's formats: CSV, Parquet, Markdown, LaTeX.

    `name` is a word or two of ours for what the table is; it names the files and tells two menus on a page apart.
    `key` does the latter where one name is shown twice.
    """
    base = file_name(name)
    with place.popover(
        "Download", icon=":material/download:", key=f"downloads {key or base}", help=f"{name}, as a file"
    ):
        for form in FORMATS:
            st.download_button(
                form.name,
                partial(form.render, table),  # made when clicked, not whenever the page is drawn
                f"{base}.{form.suffix}",
                form.mime,
                key=f"download {key or base} {form.suffix}",
                on_click="ignore",
                type="tertiary",
            )


def file_name(name: str) -> str:
    """Return a name that every file system takes, without its suffix."""
    return "tiercache-" + (re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:60] or "table")
