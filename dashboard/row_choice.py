"""Tables of which one row can be chosen. The choice is an id: rows that come, go or move leave it where it is.

Streamlit knows a chosen row by its place alone. So a table's widget belongs to one list of ids: another list makes a
new widget, which starts with the place that the chosen id has there. What is clicked is looked up in the list that was
shown when it was clicked, by the callback that belongs to that widget, however much has changed since.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pandas as pd
import streamlit as st


def choose_row(
    table: pd.DataFrame,
    ids: Sequence[str],
    name: str,
    chosen: str | None,
    pick: Callable[[str | None], None],
    *,
    required: bool = False,
    **how: Any,
) -> None:
    """Show a table with row `chosen` marked, and call `pick` with the id of a row that is clicked.

    `ids` name the rows, in order; `required`: a row can't be let go of, only changed (else `pick(None)`). `how` goes to
    `st.dataframe`.
    """
    if len(ids) != len(table):
        raise ValueError(f"{len(ids)} ids for {len(table)} rows")
    if table.empty:
        st.dataframe(table, **how)
        return
    key = f"rows {name} {hashlib.sha256(chr(0).join(ids).encode()).hexdigest()[:16]}"
    rows = [ids.index(chosen)] if chosen in ids else []
    if rows_of(st.session_state.get(key)) != rows and key in st.session_state:
        # Something else than a click has changed the choice: a link, a select box.
        st.session_state[key] = _selection(rows)
    st.dataframe(
        table,
        key=key,
        on_select=partial(_clicked, key, tuple(ids), pick),
        selection_mode="single-row-required" if required and rows else "single-row",
        selection_default=_selection(rows),
        **how,
    )


def rows_of(state: Any) -> list[int]:
    """Return the places of the rows that are chosen in a table's state."""
    return list(state["selection"]["rows"]) if state else []


def _clicked(key: str, ids: tuple[str, ...], pick: Callable[[str | None], None]) -> None:
    rows = [row for row in rows_of(st.session_state.get(key)) if row < len(ids)]
    pick(ids[rows[0]] if rows else None)


def _selection(rows: list[int]) -> dict[str, Any]:
    return {"selection": {"rows": rows, "columns": [], "cells": []}}
