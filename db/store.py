"""The statements that change the database, each idempotent: saying one twice leaves what saying it once leaves.

An *entry* is a kind and a plain dict, which is also a line of the spool file, so that a write made now and one
replayed after an outage go through the same code.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from sqlalchemy import Connection, bindparam, case, update
from sqlalchemy.dialects import postgresql, sqlite

from db.schema import Base, Cell, Diagnostic, Event, Revision, Sample, Shard, StoredTierMap, Sweep

EntryKind = Literal["sample", "diagnostic", "tier_map", "shard", "event", "state", "grade", "kv_bytes"]


@dataclass(frozen=True, slots=True)
class Entry:
    """One thing to be stored."""

    kind: EntryKind
    values: dict[str, Any]


def upsert(connection: Connection, table: type[Base]) -> sqlite.Insert | postgresql.Insert:
    """Return an INSERT that knows ON CONFLICT in the connection's dialect."""
    return _insert(table, connection.dialect.name)


def _insert(table: type[Base], dialect: str) -> sqlite.Insert | postgresql.Insert:
    return postgresql.insert(table) if dialect == "postgresql" else sqlite.insert(table)


def clean(values: Mapping[str, Any]) -> dict[str, Any]:
    """Make values storable in both databases: no NUL or lone surrogate in text, no NaN or infinity in numbers.

    Models do produce such text, and one odd token must not lose the sample that holds it.
    """
    return {name: _clean(value) for name, value in values.items()}


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return value.replace("\x00", "\ufffd").encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(_clean(str(name))): _clean(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_clean(item) for item in value]
    return value


def store(connection: Connection, entries: Iterable[Entry]) -> int:
    """Apply `entries` in the connection's transaction and return how many samples are new or replace a failed one."""
    of_kind: dict[EntryKind, list[dict[str, Any]]] = {}
    for entry in entries:
        of_kind.setdefault(entry.kind, []).append(clean(entry.values))
    new = insert_samples(connection, of_kind.get("sample", []))
    for values in of_kind.get("diagnostic", []):
        connection.execute(upsert(connection, Diagnostic).values(values).on_conflict_do_nothing())
    for values in of_kind.get("tier_map", []):
        connection.execute(upsert(connection, StoredTierMap).values(values).on_conflict_do_nothing())
    for values in of_kind.get("shard", []):
        connection.execute(upsert(connection, Shard).values(values).on_conflict_do_nothing())
    for values in of_kind.get("event", []):
        connection.execute(upsert(connection, Event).values(values).on_conflict_do_nothing(index_elements=["uid"]))
    for values in of_kind.get("state", []):
        connection.execute(
            update(Sweep).where(Sweep.id == values["sweep_id"]).values(state=values["state"], heartbeat_at=values["at"])
        )
    for values in of_kind.get("kv_bytes", []):
        unknown = (Cell.fingerprint == values["fingerprint"]) & (Cell.kv_bytes_per_token == 0)
        connection.execute(update(Cell).where(unknown).values(kv_bytes_per_token=values["bytes"]))
    regrade(connection, of_kind.get("grade", []))
    count_up(connection)
    return new


def insert_samples(connection: Connection, rows: Sequence[dict[str, Any]]) -> int:
    """Insert or ignore; a success replaces a failed row, and nothing ever replaces a success."""
    chosen: dict[tuple[str, str, int], dict[str, Any]] = {}
    for row in rows:  # one statement may not touch a row twice, so the rule is applied within the batch first
        key = (row["fingerprint"], row["problem_id"], row["repeat"])
        if key not in chosen or (chosen[key]["outcome"] == "failed" and row["outcome"] != "failed"):
            chosen[key] = row
    if not chosen:
        return 0
    # Without RETURNING, which would make one statement of many rows: too long for the driver to keep prepared.
    written = connection.execute(
        _kept_best(connection.dialect.name), list(chosen.values()), execution_options={"preserve_rowcount": True}
    )
    return int(written.rowcount)


@cache
def _kept_best(dialect: str) -> sqlite.Insert | postgresql.Insert:
    """The statement for one sample, put together once: that takes about a millisecond."""
    keys = ("fingerprint", "problem_id", "repeat")
    statement = _insert(Sample, dialect)
    proposed = statement.excluded
    return statement.on_conflict_do_update(
        index_elements=list(keys),
        set_={column.name: column for column in proposed if column.name not in keys},
        where=(Sample.outcome == "failed") & (proposed.outcome != "failed"),
    )


def regrade(connection: Connection, rows: Sequence[dict[str, Any]]) -> None:
    """Give stored generations new verdicts. A failed sample has no generation, so it keeps its outcome."""
    if not rows:
        return
    statement = (
        update(Sample.__table__)  # type: ignore[arg-type]  # the core table: many rows by any key, not the ORM's bulk
        .where(Sample.fingerprint == bindparam("of_fingerprint"))
        .where(Sample.problem_id == bindparam("of_problem_id"))
        .where(Sample.repeat == bindparam("of_repeat"))
        .values(
            outcome=case((Sample.outcome == "failed", "failed"), else_=bindparam("new_outcome")),
            extracted=bindparam("new_extracted"),
            score=bindparam("new_score"),
            grader=bindparam("new_grader"),
        )
    )
    connection.execute(
        statement,
        [
            {
                "of_fingerprint": row["fingerprint"],
                "of_problem_id": row["problem_id"],
                "of_repeat": row["repeat"],
                "new_outcome": row["outcome"],
                "new_extracted": row["extracted"],
                "new_score": row.get("score"),
                "new_grader": row.get("grader"),
            }
            for row in rows
        ],
    )


def count_up(connection: Connection) -> None:
    """Tell readers that something changed. Last in each transaction: it is the row that two writers would wait for."""
    connection.execute(
        upsert(connection, Revision)
        .values(id=1, number=1)
        .on_conflict_do_update(index_elements=["id"], set_={"number": Revision.number + 1})
    )
