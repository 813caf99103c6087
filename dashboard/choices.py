"""Choices that live in the URL, so that a view can be sent to a colleague, and survive a change of page."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import streamlit as st


def remembered(name: str) -> str | None:
    """Return what the URL says of `name`, else what was chosen on the page before."""
    return st.query_params.get(name) or st.session_state.get(f"last {name}")


def remember(name: str, value: str | None) -> None:
    """Put a choice into the URL, or take it out."""
    st.session_state[f"last {name}"] = value
    if value:
        if st.query_params.get(name) != value:
            st.query_params[name] = value
    elif name in st.query_params:
        del st.query_params[name]


def choose(label: str, options: Sequence[str], name: str, shown: Callable[[str], str] = str) -> str:
    """Show a select box whose value is the URL's `name`; an unknown value there falls back to the first option."""
    wanted, key = remembered(name), choice_key(name, options)
    start = {} if key in st.session_state else {"index": options.index(wanted) if wanted in options else 0}
    chosen: str = st.selectbox(label, options, format_func=shown, key=key, **start)
    remember(name, chosen)
    return chosen


def choice_key(name: str, options: Sequence[str]) -> str:
    """Return the key of the select box of these options, for who sets its value by another way than a click on it."""
    return f"choose {name} {hash(tuple(options))}"


def write(label: str, name: str, placeholder: str) -> str:
    """Show a text box whose value is the URL's `name`."""
    text: str = st.text_input(label, value=remembered(name) or "", placeholder=placeholder, key=f"write {name}") or ""
    remember(name, text)
    return text


def sweep_names(names: dict[str, str]) -> Callable[[str], str]:
    """Return how a sweep's id is shown: its name, with a piece of the id where the name alone isn't enough."""
    several = [name for name in names.values() if list(names.values()).count(name) > 1]
    return lambda key: f"{names[key]} [{key[:12]}]" if names[key] in several else names[key]
