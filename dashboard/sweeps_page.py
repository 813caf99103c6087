"""Which sweeps there are, how far each is, and what happened in it."""

from __future__ import annotations

import pandas as pd
import streamlit as st

from dashboard import data
from dashboard.choices import choose, sweep_names
from dashboard.tables import event_table, list_height, progress_table, sweep_table
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
    st.fragment(live, run_every=REFRESH_S if runs else None)(chosen, runs)


def live(sweep_id: str, runs: bool) -> None:
    """Show what changes while a sweep runs; once none does, rebuild the page without the timer."""
    source = data.source()
    found = data.sweeps(source)
    if runs != any(sweep.live_state() == "running" for sweep in found):
        st.rerun()
    now = utc_now()
    bar = st.column_config.ProgressColumn("progress", format="percent", min_value=0, max_value=1)
    moment = "D MMM, HH:mm:ss"
    st.dataframe(
        sweep_table(found, now),
        hide_index=True,
        alt="All sweeps, the newest first",
        column_config={
            "progress": bar,
            "started": st.column_config.DatetimeColumn("started (UTC)", format=moment),
            "last sign of life": st.column_config.DatetimeColumn("last sign of life (UTC)", format=moment),
        },
    )
    sweep = next((each for each in found if each.id == sweep_id), None)
    if sweep is None:
        st.text("The chosen sweep is no longer in the database.")
        return
    if sweep.live_state(now) == "silent":
        st.warning("This sweep says that it runs but gives no sign of life. Run the same command again to resume it.")
    st.subheader("Cells")
    cells = data.progress(source.key, source.engine, sweep_id)
    totals = st.columns(5)
    totals[0].metric("samples done", f"{sweep.done:,} of {sweep.expected:,}")
    totals[1].metric("failed", f"{sweep.failed:,}")
    for column, state in zip(totals[2:], ("done", "running", "waiting"), strict=True):
        column.metric(f"cells {state}", sum(cell.state == state for cell in cells))
    if not cells:
        st.text("This sweep has no cells.")
    else:
        columns = {
            "progress": bar,
            "fingerprint": None,
            "samples": st.column_config.LinkColumn("samples", display_text="open"),
        }
        table = _linked(progress_table(cells))
        height = list_height(len(table))
        st.dataframe(table, hide_index=True, height=height, alt="Cells of the sweep by state", column_config=columns)
    st.subheader("Events")
    happened = event_table(data.events(source.key, source.engine, sweep_id))
    if happened.empty:
        st.text("Nothing has been logged.")
    else:
        when = st.column_config.DatetimeColumn("at (UTC)", format=moment, width="small")
        st.dataframe(happened, hide_index=True, alt="Events, the newest first", column_config={"at": when})
    with st.expander("Specification and environment"):
        left, right = st.columns(2)
        left.json(sweep.spec)
        right.json(sweep.environment)


def _linked(table: pd.DataFrame) -> pd.DataFrame:
    return table.assign(samples=[f"samples?cell={fingerprint}" for fingerprint in table["fingerprint"]])
