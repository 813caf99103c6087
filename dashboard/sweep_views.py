"""The parts of the page Sweeps, one function each. What models, users and errors say is shown as plain text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import pandas as pd
import streamlit as st

from dashboard.choices import choose, remember, remembered
from dashboard.downloads import downloads
from dashboard.row_choice import choose_row
from dashboard.sweep_facts import actor_table, coordinator_table, losses_in_words, machine_table
from dashboard.tables import STATE_MARKS, event_table, list_height, progress_table
from db.queries import ActorInfo, CellProgress, CoordinatorInfo, EventInfo, FailedSample, Loss

if TYPE_CHECKING:
    from jobs.failures import Reason

PROGRESS: Any = st.column_config.ProgressColumn("progress", format="percent", min_value=0, max_value=1)
ALL = "all"
FEW_ROWS = 8


def moment(name: str, **how: Any) -> Any:
    """Return how a column of moments is shown."""
    return st.column_config.DatetimeColumn(f"{name} (UTC)", format="D MMM, HH:mm:ss", **how)


def short_height(rows: int) -> Literal["content"] | int:
    """Return the height of a table that stands above what matters more."""
    return "content" if rows <= FEW_ROWS else 320


def failures(failed: Sequence[FailedSample]) -> None:
    """Why samples failed, one row a reason, and what to do about it."""
    from jobs.failures import advice, reasons  # the command line's words; where nothing failed they aren't needed

    st.subheader("Failures by reason")
    found = reasons(failed)
    table = failure_table(found)
    st.dataframe(
        table,
        hide_index=True,
        height=short_height(len(table)),
        alt="Failures by reason, the most frequent first",
        column_config={
            "reason": st.column_config.TextColumn(width="large", help="the first of its kind; numbers may differ"),
            "refused": st.column_config.CheckboxColumn(help="the engine would refuse again as things are"),
        },
    )
    downloads(table, "failures")
    st.caption(advice(len(failed), found))


def failure_table(found: Sequence[Reason]) -> pd.DataFrame:
    """One row a reason, the most frequent first."""
    rows = [
        [
            reason.samples,
            reason.cells,
            reason.text,
            reason.refused,
            f"{reason.example.policy}: {reason.example.problem_id}#{reason.example.repeat}",
            f"{reason.example.model} · {reason.example.benchmark}",
        ]
        for reason in found
    ]
    return pd.DataFrame(rows, columns=["samples", "cells", "reason", "refused", "for example", "on"])


def cells(found: Sequence[CellProgress], happened: Sequence[EventInfo]) -> None:
    """All cells or those in one state, in the sweep's order, so that rows stay where they are; one can be chosen."""
    counts = Counter(cell.state for cell in found)
    states = [ALL, *(state for state in STATE_MARKS if counts[state])]
    with st.columns(3)[0]:
        state = choose(
            "Cells", states, "state", lambda each: ALL if each == ALL else f"{STATE_MARKS[each]} ({counts[each]:,})"
        )
    chosen = [cell for cell in sorted(found, key=lambda each: each.position) if state in (ALL, cell.state)]
    table = progress_table(chosen, by_state=False)
    picked = remembered("cell")
    choose_row(
        table.assign(samples=[f"samples?cell={fingerprint}" for fingerprint in table["fingerprint"]]),
        list(table["fingerprint"]),
        "cell",
        picked,
        lambda fingerprint: remember("cell", fingerprint),
        hide_index=True,
        height=list_height(len(table)),
        alt="Cells of the sweep in its order",
        column_config={
            "progress": PROGRESS,
            "fingerprint": None,
            "samples": st.column_config.LinkColumn("samples", display_text="open"),
        },
    )
    downloads(table, "cells")
    cell = next((each for each in chosen if each.fingerprint == picked), None)
    if cell is not None:
        _one_cell(cell, [event for event in happened if event.fingerprint == cell.fingerprint])


def _one_cell(cell: CellProgress, happened: Sequence[EventInfo]) -> None:
    with st.container(border=True):
        st.text(f"{cell.policy}\n{cell.model} · {cell.benchmark} · protocol {cell.protocol}")
        st.text(
            f"{STATE_MARKS[cell.state]}: {cell.done:,} done and {cell.failed:,} failed of {cell.expected:,} samples, "
            f"{cell.shards:,} shards. Cell {cell.fingerprint}"
        )
        if happened:
            st.text("\n".join(f"{event.at:%d %b %H:%M:%S} {event.kind}: {event.message}" for event in happened[:5]))


def crew(actors: Sequence[ActorInfo], coordinators: Sequence[CoordinatorInfo], losses: Sequence[Loss]) -> None:
    """Who worked on the sweep, where, and when each was last heard of."""
    if not actors:
        st.text("No actor has ended a shard of this sweep yet.")
    else:
        when = {"first shard": moment("first shard"), "last shard": moment("last shard")}
        machines, table = machine_table(actors), actor_table(actors)
        st.dataframe(
            machines,
            hide_index=True,
            height=short_height(len(machines)),
            alt="Machines and their devices, the last heard of first",
            column_config=when,
        )
        downloads(machines, "machines")
        st.dataframe(
            table,
            hide_index=True,
            height=short_height(len(table)),
            alt="Actors, the last heard of first",
            column_config={**when, "samples/s": st.column_config.NumberColumn(format="%.2f")},
            placeholder="–",
        )
        downloads(table, "actors")
    if coordinators:
        held = coordinator_table(coordinators)
        st.dataframe(
            held,
            hide_index=True,
            height=short_height(len(held)),
            alt="Coordinators that hold cells",
            column_config={"last renewed": moment("last renewed")},
        )
        downloads(held, "coordinators")
    notes = [
        "An actor is known by the shards that it ended in this sweep: what it does now shows when its shard ends. "
        "Hours are of such shards; loading models and idling aren't in them."
    ]
    if lost := losses_in_words(losses):
        notes.append(f"Lost on the way: {lost}.")
    st.caption(" ".join(notes))


def events(happened: Sequence[EventInfo]) -> None:
    """The sweep's log, the newest first."""
    table = event_table(happened)
    if table.empty:
        st.text("Nothing has been logged.")
        return
    st.dataframe(
        table,
        hide_index=True,
        alt="Events, the newest first",
        column_config={"at": moment("at", width="small")},
    )
    downloads(table, "events")
