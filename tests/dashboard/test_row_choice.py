"""Rows that are chosen stay chosen when others come above them: by their id, never by their place."""

from datetime import UTC, datetime

import pandas as pd
import pytest
import streamlit as st
from sqlalchemy import update
from streamlit.testing.v1 import AppTest

from dashboard import row_choice
from db import queries
from db.connection import open_engine
from db.rows import CellRow
from db.schema import Sweep
from db.writer import Writer


def test_a_click_is_looked_up_among_the_rows_that_were_shown(monkeypatch):
    picked = []
    state = {"key": {"selection": {"rows": [1], "columns": [], "cells": []}}}
    monkeypatch.setattr(st, "session_state", state)
    row_choice._clicked("key", ("a", "b", "c"), picked.append)
    state["key"]["selection"]["rows"] = []
    row_choice._clicked("key", ("a", "b", "c"), picked.append)
    state["key"]["selection"]["rows"] = [7]
    row_choice._clicked("key", ("a", "b", "c"), picked.append)
    assert picked == ["b", None, None]
    with pytest.raises(ValueError, match="2 ids for 1 rows"):
        row_choice.choose_row(pd.DataFrame({"x": [1]}), ["a", "b"], "n", None, picked.append)


def table_page(ids: list[str]) -> None:  # its source is run as the app, so it imports for itself
    import pandas as pd
    import streamlit as st

    from dashboard.row_choice import choose_row

    st.session_state.setdefault("chosen", ids[0])
    frame = pd.DataFrame({"id": ids})
    choose_row(frame, ids, "n", st.session_state["chosen"], lambda new: st.session_state.update(chosen=new))


def marked(app):
    """The chosen rows of the page's first table, as its widget has them."""
    table = app.dataframe[0]
    return [table.value.iloc[row, 0] for row in app.session_state[table.key]["selection"]["rows"]]


def test_the_chosen_row_is_followed_by_its_id():
    app = AppTest.from_function(table_page, kwargs={"ids": ["a", "b"]}).run()
    for ids in (["new", "a", "b"], ["b", "a"], ["b"], ["newer", "new", "a", "b"]):
        app = AppTest.from_function(table_page, kwargs={"ids": ids})
        app.session_state["chosen"] = "a"
        app.run()
        assert not app.exception
        assert marked(app) == (["a"] if "a" in ids else [])
    app.session_state["chosen"] = "b"  # by another way than a click
    assert marked(app.run()) == ["b"]


def run_page() -> None:
    from dashboard import sweeps_page

    sweeps_page.page()


@pytest.fixture
def running(tmp_path, made_up):
    """The URL of a database whose sweep never falls silent."""
    url = f"sqlite:///{tmp_path / 'running.db'}"
    made_up.fill(url, 4)
    engine = open_engine(url)
    with engine.begin() as connection:
        connection.execute(update(Sweep).values(heartbeat_at=datetime(2099, 1, 1, tzinfo=UTC)))
    engine.dispose()
    return url


def newer(url, name):
    """Register a sweep of one cell that is newer than all others."""
    engine = open_engine(url, read_only=True)
    first = queries.list_cells(engine, "sweep-1")[0]
    engine.dispose()
    facts = {field: getattr(first, field) for field in first.__dataclass_fields__}
    row = CellRow(**facts, config={}, kv_bytes_per_token=1, expected_samples=3)
    with Writer.open(url) as writer:
        writer.register_sweep(name, name, {}, {}, [row], created_at=datetime(2031, 1, 1, tzinfo=UTC))


def metrics(app):
    return {metric.label: metric.value for metric in app.metric}


def test_a_newer_sweep_above_leaves_the_chosen_one_chosen(running, monkeypatch):
    monkeypatch.setenv("TIERCACHE_DB", running)
    app = AppTest.from_function(run_page, default_timeout=30)
    app.query_params["sweep"] = "sweep-1"
    app.run()
    assert [list(app.dataframe[0].value["id"]), metrics(app)["samples done"]] == [["sweep-1"], "33 of 40"]
    newer(running, "sweep-2")
    app.run()
    assert not app.exception
    assert list(app.dataframe[0].value["id"]) == ["sweep-2", "sweep-1"]
    assert app.session_state[app.dataframe[0].key]["selection"]["rows"] == [1]
    assert metrics(app)["samples done"] == "33 of 40"


def test_clicked_rows_stay_chosen_while_newer_ones_arrive(running, serve, browser):
    address = serve(running).address
    newer(running, "sweep-0")
    with browser.new_page(viewport={"width": 1280, "height": 2600}) as page:
        page.goto(f"{address}/sweeps?sweep=sweep-0")
        page.get_by_text("3 of 3", exact=True).first.wait_for(timeout=60_000)
        sweeps = page.locator("[data-testid=stDataFrame]").first
        click_row(page, sweeps, 1)  # the older one: the click reaches the page and the address
        page.get_by_text("33 of 40", exact=True).first.wait_for(timeout=60_000)
        page.wait_for_url("**sweep=sweep-1*", timeout=30_000)
        page.wait_for_selector("[data-testid=stStatusWidget]", state="detached", timeout=60_000)
        tables = page.locator("[data-testid=stDataFrame]")
        cells = tables.filter(has=page.locator("td", has_text="streaming budget=0.25")).first
        click_row(page, cells, 4)
        page.get_by_text("Cell 041a2b3c4d5e6f").wait_for(timeout=30_000)
        newer(running, "sweep-9")  # the page looks again by itself, since a sweep runs
        chosen = page.locator("[data-testid=stDataFrame] tr[aria-selected=true]")
        page.locator("td", has_text="sweep-9").first.wait_for(state="attached", timeout=60_000)
        page.wait_for_selector("[data-testid=stStatusWidget]", state="detached", timeout=60_000)
        assert "sweep=sweep-1" in page.url
        assert page.get_by_text("33 of 40", exact=True).count() == 1
        assert page.get_by_text("Cell 041a2b3c4d5e6f").count() == 1
        words = chosen.all_inner_texts()
        assert len(words) == 2
        assert "sweep-1" in words[0]
        assert "h2o budget=0.5" in words[1]


def click_row(page, table, row):
    """A table is a picture: its rows are 35 pixels high, and the first column holds what is clicked."""
    table.locator("canvas").first.wait_for(timeout=60_000)
    table.scroll_into_view_if_needed()
    page.wait_for_timeout(500)
    table.click(position={"x": 18, "y": 35 * (row + 1.5)})
