"""A document of plain blocks on a page. Names and labels in it may come from anybody: nothing is read as Markdown."""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd
import streamlit as st

from dashboard.downloads import downloads
from dashboard.tables import list_height
from jobs.papers.blocks import Bullets, Figure, Heading, Links, PageBlock, Paragraph, Table


def render(blocks: Iterable[PageBlock], name: str) -> None:
    """Show blocks in order; `name`, a word of ours, names the files of their tables. Under each stand its sources."""
    for place, block in enumerate(blocks):
        if isinstance(block, Heading | Paragraph):
            st.text(block.text)
        elif isinstance(block, Bullets):
            st.text("\n".join(f"• {item}" for item in block.items))
        elif isinstance(block, Table):
            _table(block, f"{name} {place}")
        elif isinstance(block, Figure | Links):  # of pages that lie in files
            continue


def _table(block: Table, name: str) -> None:
    frame = pd.DataFrame(list(block.rows), columns=_unlike(block.columns))
    config = {
        column: st.column_config.TextColumn(alignment="right")
        for place, column in enumerate(frame.columns)
        if place in block.numbers
    }
    height = list_height(len(frame))
    alt = f"Table: {', '.join(map(str, block.columns))}"
    st.dataframe(frame, hide_index=True, height=height, column_config=config, alt=alt)
    downloads(frame, name)
    st.code("\n".join((*block.sources, *(f"# {file}" for file in block.queries))), language="bash", wrap_lines=True)


def _unlike(columns: Iterable[str]) -> list[str]:
    """Column names that a table can be keyed by: none empty, none twice."""
    found: list[str] = []
    for column in columns:
        name = column or "value"
        found.append(name if name not in found else f"{name} ({found.count(name) + 1})")
    return found
