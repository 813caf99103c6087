"""The one way a chart gets onto a page: its words for those who can't see it, its file name, its buttons.

A browser's chart saves itself as a picture of one kind; which, is chosen once at the page's end and holds for all.
"""

from __future__ import annotations

from typing import Any

import plotly.graph_objects as go
import streamlit as st

from dashboard.downloads import file_name

TALLEST = 760  # pixels of a chart; a longer list scrolls within
PICTURES = {"svg": "SVG", "png": "PNG"}
PNG_SCALE = 2  # pixels of the picture to one of the page: sharp in print
KEPT, ASKED, SHOWN = "picture", "picture asked", "charts shown"  # in the session


def show(figure: go.Figure, *, alt: str, name: str, place: Any = st) -> None:
    """Show a chart.

    `alt` says in words what it shows; `name`, a word or two of ours, names the file it is saved as. `place` is
    Streamlit itself or a column. A chart that is taller than a screen scrolls within.
    """
    if not alt.strip():
        raise ValueError("alt: a chart needs words for those who can't see it")
    st.session_state[SHOWN] = True
    long = (figure.layout.height or 0) > TALLEST
    with place.container(height=TALLEST if long else "content", border=False):
        st.plotly_chart(figure, config=chart_config(name, _picture()), alt=alt)


def chart_config(name: str, picture: str) -> dict[str, Any]:
    """Return plotly's settings for a chart that is saved as `picture`, a key of PICTURES."""
    scale = PNG_SCALE if picture == "png" else 1
    return {
        "displaylogo": False,
        "typesetMath": False,  # dollars in a label are dollars
        "modeBarButtonsToRemove": ["select2d", "lasso2d"],
        "toImageButtonOptions": {"format": picture, "filename": file_name(name), "scale": scale},
    }


def picture_choice() -> None:
    """At the end of a page with charts: ask what their camera button saves. It holds for all pages of the session."""
    if st.session_state.pop(SHOWN, False):
        chosen = st.segmented_control(
            "The camera above a chart saves it as",
            list(PICTURES),
            default=_picture(),
            required=True,
            format_func=PICTURES.__getitem__,
            key=ASKED,
        )
        st.session_state[KEPT] = chosen


def _picture() -> str:
    """What was just clicked, which the charts above the question have to know; else what was chosen before."""
    return st.session_state.get(ASKED) or st.session_state.get(KEPT) or "svg"
