"""Which sweeps there are, how far each is, who works on it, and what happened in it."""

from __future__ import annotations

from functools import partial
from typing import Any

import streamlit as st

from dashboard import data, sweep_grid, sweep_views
from dashboard.choices import choice_key, choose, remember, remembered, sweep_names
from dashboard.downloads import downloads
from dashboard.row_choice import choose_row
from dashboard.show import picture_choice, show
from dashboard.sweep_facts import Fact, costs, time_left
from dashboard.tables import sweep_table
from db.queries import CellProgress, SweepInfo
from db.rows import utc_now

REFRESH_S = 3.0


def page() -> None:
    """Show the page. Its one live part refreshes only while a sweep runs."""
    st.title("Sweeps")
    found = data.sweeps(data.source())
    if not found:
        data.nothing_yet("The database holds no sweep.")
    names = {sweep.id: sweep.name for sweep in found}
    chosen = choose("Sweep", list(names), "sweep", sweep_names(names))
    runs = any(sweep.live_state() == "running" for sweep in found)
    st.fragment(live, run_every=REFRESH_S if runs else None)(chosen, runs, choice_key("sweep", list(names)))
    picture_choice()


def live(sweep_id: str, runs: bool, box: str) -> None:
    """Show what changes while a sweep runs; once none does, rebuild the page without the timer.

    `box` is the key of the select box above, which a click on a sweep's row sets too.
    """
    source = data.source()
    found = data.sweeps(source)
    if runs != any(sweep.live_state() == "running" for sweep in found) or remembered("sweep") != sweep_id:
        st.rerun()
    table = sweep_table(found, utc_now())
    choose_row(
        table,
        [sweep.id for sweep in found],
        "sweep",
        sweep_id,
        partial(_pick_sweep, box),
        required=True,
        hide_index=True,
        height=sweep_views.short_height(len(found)),
        alt="All sweeps, the newest first",
        column_config={
            "progress": sweep_views.PROGRESS,
            "started": sweep_views.moment("started"),
            "last sign of life": sweep_views.moment("last sign of life"),
        },
    )
    downloads(table, "sweeps")
    sweep = next((each for each in found if each.id == sweep_id), None)
    if sweep is None:
        st.text("The chosen sweep is no longer in the database.")
        return
    _one(source, sweep)


def _pick_sweep(box: str, sweep_id: str | None) -> None:
    if sweep_id is not None:
        remember("sweep", sweep_id)
        st.session_state[box] = sweep_id


def _one(source: data.Source, sweep: SweepInfo) -> None:
    state = sweep.live_state(utc_now())
    if state == "silent":
        st.warning("This sweep says that it runs but gives no sign of life. Run the same command again to resume it.")
    st.subheader("Progress")
    cells = data.progress(source.key, source.engine, sweep.id)
    actors, losses = data.actors(source.key, source.engine, sweep.id)
    _numbers(sweep, cells)
    came = data.arrivals(source, sweep) if state == "running" else None
    _facts(time_left(sweep, state, came), *costs(actors, sweep.spec))
    if cells:
        runs = state in ("running", "paused")
        show(sweep_grid.cell_grid(cells, runs), alt=sweep_grid.in_words(cells, runs), name="cells by state")
    if sweep.failed:
        sweep_views.failures(data.failures(source.key, source.engine, sweep.id))
    st.subheader("Cells")
    happened = data.events(source.key, source.engine, sweep.id)
    if not cells:
        st.text("This sweep has no cells.")
    else:
        sweep_views.cells(cells, happened)
    st.subheader("Actors and machines")
    sweep_views.crew(actors, data.coordinators(source, sweep.id), losses)
    st.subheader("Events")
    sweep_views.events(happened)
    with st.expander("Specification and environment"):
        left, right = st.columns(2)
        left.json(sweep.spec)
        right.json(sweep.environment)


def _numbers(sweep: SweepInfo, cells: list[CellProgress]) -> None:
    totals = st.columns(5)
    totals[0].metric("samples done", f"{sweep.done:,} of {sweep.expected:,}")
    totals[1].metric("failed", f"{sweep.failed:,}")
    for column, state in zip(totals[2:], ("done", "running", "waiting"), strict=True):
        column.metric(f"cells {state}", sum(cell.state == state for cell in cells))
    st.progress((sweep.done + sweep.failed) / sweep.expected if sweep.expected else 0.0)


def _facts(left: Fact, gpu: Fact, cpu: Fact) -> None:
    for column, name, fact in zip(
        st.columns(3), ("time left, about", "GPU hours so far", "CPU hours so far"), (left, gpu, cpu), strict=True
    ):
        told: dict[str, Any] = {"delta": fact.note, "delta_color": "off", "delta_arrow": "off"}
        column.metric(name, fact.value, **told)
