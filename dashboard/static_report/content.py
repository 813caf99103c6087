"""What the report says, read from the database: cells in groups that may be compared, and what they share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Engine

from dashboard.colours import Look, looks
from dashboard.drawing import FULL
from db import queries
from db.connection import masked
from db.errors import StorageError
from db.queries import CellSummary, DiagnosticSummary, PairedDelta, SweepInfo

DIFFERS = "differs by cell"


@dataclass(frozen=True, slots=True)
class Failure:
    """A reason for which samples failed, in how many samples of how many cells, and where for example."""

    reason: str
    samples: int
    cells: int
    example: str


@dataclass(frozen=True, slots=True)
class Group:
    """Cells of one model, benchmark and protocol: scores of different groups don't belong in one table."""

    key: str  # unique in the report, fit for an id
    cells: tuple[CellSummary, ...]
    full: CellSummary | None
    deltas: Mapping[str, PairedDelta]  # from the full cache, by fingerprint
    protocol: tuple[tuple[str, str], ...]  # setting, value
    configs: Mapping[str, Mapping[str, Any]]

    @property
    def title(self) -> str:
        return f"{self.cells[0].model} on {self.cells[0].benchmark}"

    @property
    def samples(self) -> int:
        return sum(cell.n for cell in self.cells)


@dataclass(frozen=True, slots=True)
class Content:
    """All that stands in the report."""

    sweep: SweepInfo
    groups: tuple[Group, ...]
    looks: Mapping[str, Look]
    diagnostics: Mapping[str, DiagnosticSummary]


def read(engine: Engine, sweep: SweepInfo) -> Content:
    """Read a sweep's results. Colours are those of the dashboard over the same database."""
    cells = queries.cell_summaries(engine, sweep.id)
    configs = {key: config for key, (_, config) in queries.cell_configs(engine, sweep.id).items()}
    parts: dict[tuple[str, str, str], list[CellSummary]] = {}
    for cell in cells:
        parts.setdefault((cell.model, cell.benchmark, cell.protocol), []).append(cell)
    groups = []
    for place, members in enumerate(parts.values(), 1):
        full = next((cell for cell in members if cell.policy_name == FULL), None)
        others = [cell.fingerprint for cell in members if cell is not full]
        own = {cell.fingerprint: configs.get(cell.fingerprint, {}) for cell in members}
        deltas = queries.paired_deltas(engine, full.fingerprint, others) if full and others else {}
        groups.append(Group(f"g{place}", tuple(members), full, deltas, _shared(list(own.values())), own))
    known = looks(queries.list_policies(engine))
    return Content(sweep, tuple(groups), known, queries.diagnostic_summaries(engine, sweep.id))


def _shared(configs: Sequence[Mapping[str, Any]]) -> tuple[tuple[str, str], ...]:
    """Return what cells have in common, setting by setting; the policy is what they differ in by design."""
    found: dict[str, list[str]] = {}
    for config in configs:
        for name, value in flat({key: value for key, value in config.items() if key != "policy"}):
            found.setdefault(name, []).append(value)
    alike = {name: set(values) if len(values) == len(configs) else {DIFFERS} for name, values in found.items()}
    return tuple((name, next(iter(values)) if len(values) == 1 else DIFFERS) for name, values in alike.items())


def flat(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Return nested settings as (dotted name, value); a list of plain values is one value."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from flat(inner, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list) and any(isinstance(each, Mapping | list) for each in value):
        for place, inner in enumerate(value):
            yield from flat(inner, f"{name}[{place}]")
    elif isinstance(value, list):
        yield name, ", ".join(map(str, value))
    else:
        yield name, "–" if value is None else str(value)


def without_password(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return a specification as it may be handed on: the database's URL can hold a password."""
    database = spec.get("database")
    if not isinstance(database, str):
        return dict(spec)
    try:
        return {**spec, "database": masked(database)}
    except StorageError:
        return {**spec, "database": None}
