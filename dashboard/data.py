"""The pages' way to the database: read-only, cached for as long as nothing changes, and calm when nothing is there.

Cached values are keyed by the database's identity and its change token, so a finished sweep is read once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import streamlit as st
from sqlalchemy import Engine

from dashboard.wording import EMPTY_HINT
from db import queries
from db.connection import default_url, masked, open_engine, parse_url
from db.errors import DatabaseMissing, StorageError
from db.migrate import status
from db.rows import utc_now


@dataclass(frozen=True, slots=True)
class Source:
    """An open database. `key` changes with its file and its content."""

    engine: Engine
    key: tuple[str, int]


def source() -> Source:
    """Return the database that TIERCACHE_DB names, or show why there is none to read and end the page."""
    url = default_url()
    try:
        identity = _identity(url)
        engine = _engine(url, identity)
        state = status(engine)
        token = queries.change_token(engine)
    except DatabaseMissing:
        nothing_yet(f"There is no database at {_shown(url)} yet.")
    except StorageError as error:
        problem(str(error))
    except Exception as error:  # a file that is not a database, a server that went away: words, not a stack trace
        problem(f"Database {_shown(url)} can't be read: {getattr(error, 'orig', error)}")
    if state == "empty":
        nothing_yet(f"The database at {_shown(url)} has no tables yet.")
    if state == "old":
        problem(
            f"Database {_shown(url)} was made by an older version. Any 'tiercache run' with it brings it up to date."
        )
    if state == "unknown":
        problem(f"Database {_shown(url)} was made by a newer version. Upgrade tiercache-eval to read it.")
    return Source(engine, (f"{url} {identity}", token))


def nothing_yet(what: str) -> Any:
    """Say that there is nothing to see and how to make something, and end the page."""
    st.info("No results yet", icon=":material/inbox:")
    st.text(f"{what} A first sweep takes about two minutes on a laptop:")
    st.code(EMPTY_HINT, language="bash")
    st.stop()


def problem(what: str) -> Any:
    """Say what is wrong in plain text (it may quote paths and drivers), and end the page."""
    st.warning("The results can't be read", icon=":material/error:")
    st.text(what)
    st.stop()


def sweeps(source: Source) -> list[queries.SweepInfo]:
    """Return all sweeps; never cached, because heartbeats don't move the change token."""
    return queries.list_sweeps(source.engine)


@st.cache_data(max_entries=8, show_spinner=False)
def names_of_sweeps(key: tuple[str, int], _engine: Engine) -> dict[str, str]:
    """Return the names of all sweeps by their ids, the newest first: what a choice needs."""
    return {sweep.id: sweep.name for sweep in queries.list_sweeps(_engine)}


@st.cache_data(max_entries=64, show_spinner=False)
def progress(key: tuple[str, int], _engine: Engine, sweep_id: str) -> list[queries.CellProgress]:
    return queries.sweep_progress(_engine, sweep_id)


@st.cache_data(max_entries=64, show_spinner=False)
def events(key: tuple[str, int], _engine: Engine, sweep_id: str) -> list[queries.EventInfo]:
    return queries.list_events(_engine, sweep_id)


@st.cache_data(max_entries=16, show_spinner=False)
def cells(key: tuple[str, int], _engine: Engine, sweep_id: str | None) -> list[queries.CellInfo]:
    """Return what cells there are: all that a choice needs, and quick for thousands of them."""
    return queries.list_cells(_engine, sweep_id)


class Place(NamedTuple):
    """Where a policy was measured."""

    model: str
    benchmark: str
    protocol: str


@st.cache_data(max_entries=32, show_spinner=False)
def places(key: tuple[str, int], _engine: Engine, sweep_id: str | None) -> list[Place]:
    """Return where the policies of a sweep were measured; of thousands of cells there are a few places."""
    found = queries.list_cells(_engine, sweep_id)
    return sorted({Place(cell.model, cell.benchmark, cell.protocol) for cell in found})


@st.cache_data(max_entries=32, show_spinner=False)
def summaries(
    key: tuple[str, int], _engine: Engine, sweep_id: str | None, model: str | None = None, benchmark: str | None = None
) -> list[queries.CellSummary]:
    """Return the numbers of cells. Name a model and a benchmark: of all cells of a large store it takes seconds."""
    return queries.cell_summaries(_engine, sweep_id, model=model, benchmark=benchmark)


@st.cache_data(max_entries=8, show_spinner=False)
def all_policies(key: tuple[str, int], _engine: Engine) -> list[tuple[str, str]]:
    return queries.list_policies(_engine)


@st.cache_data(max_entries=32, show_spinner=False)
def deltas(
    key: tuple[str, int], _engine: Engine, baseline: str, fingerprints: tuple[str, ...]
) -> dict[str, queries.PairedDelta]:
    return queries.paired_deltas(_engine, baseline, fingerprints)


@st.cache_data(max_entries=8, show_spinner=False)
def configs(key: tuple[str, int], _engine: Engine, sweep_ids: tuple[str, ...]) -> dict[str, Mapping[str, Any]]:
    """Return the configuration of each cell of the sweeps, by fingerprint."""
    return {
        fingerprint: config
        for sweep_id in sweep_ids
        for fingerprint, (_, config) in queries.cell_configs(_engine, sweep_id).items()
    }


@st.cache_data(max_entries=32, show_spinner=False)
def actors(key: tuple[str, int], _engine: Engine, sweep_id: str) -> tuple[list[queries.ActorInfo], list[queries.Loss]]:
    """Return who ended shards of a sweep, and what was lost on the way."""
    return queries.list_actors(_engine, sweep_id), queries.list_losses(_engine, sweep_id)


def coordinators(source: Source, sweep_id: str) -> list[queries.CoordinatorInfo]:
    """Return who holds cells of a sweep; never cached, because renewals don't move the change token."""
    return queries.list_coordinators(source.engine, sweep_id)


@st.cache_data(max_entries=32, show_spinner=False)
def failures(key: tuple[str, int], _engine: Engine, sweep_id: str) -> list[queries.FailedSample]:
    return queries.failed_samples(_engine, sweep_id)


def arrivals(source: Source, sweep: queries.SweepInfo) -> queries.Arrivals:
    """Return what came of late; never cached, because time goes on where samples don't come."""
    return queries.arrivals(source.engine, sweep.id, sweep.created_at, utc_now())


@st.cache_data(max_entries=32, show_spinner=False)
def speeds(
    key: tuple[str, int], _engine: Engine, sweep_id: str | None, model: str, benchmark: str
) -> dict[str, queries.CellSpeed]:
    return queries.cell_speeds(_engine, sweep_id, model, benchmark)


@st.cache_data(max_entries=32, show_spinner=False)
def device_speeds(key: tuple[str, int], _engine: Engine, fingerprints: tuple[str, ...]) -> list[queries.DeviceSpeed]:
    return queries.device_speeds(_engine, fingerprints)


@st.cache_data(max_entries=8, show_spinner=False)
def tier_maps(key: tuple[str, int], _engine: Engine, sweep_ids: tuple[str, ...]) -> list[queries.TierMapInfo]:
    """Return what tier maps the cells of the sweeps have; a cell of two sweeps once."""
    found = (info for sweep_id in sweep_ids for info in queries.list_tier_maps(_engine, sweep_id))
    return list({(info.fingerprint, info.problem_id, info.repeat): info for info in found}.values())


@st.cache_data(max_entries=24, show_spinner=False)
def tier_map(
    key: tuple[str, int], _engine: Engine, fingerprint: str, problem_id: str, repeat: int
) -> queries.TierMap | None:
    return queries.get_tier_map(_engine, fingerprint, problem_id, repeat)


@st.cache_resource(max_entries=4, show_spinner=False)
def _engine(url: str, identity: str) -> Engine:
    return open_engine(url, read_only=True)


def _identity(url: str) -> str:
    """A file that was deleted and made anew is another database, although its path is the same."""
    parsed = parse_url(url)
    if parsed.get_backend_name() != "sqlite":
        return ""
    try:
        found = Path(str(parsed.database)).stat()
    except OSError:
        return "missing"
    return f"{found.st_dev}:{found.st_ino}"


def _shown(url: str) -> str:
    try:
        parsed = parse_url(url)
    except StorageError:
        return "TIERCACHE_DB"
    return str(parsed.database) if parsed.get_backend_name() == "sqlite" else masked(parsed)
