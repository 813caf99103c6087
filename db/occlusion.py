"""Stored checks of scorers against occlusion labels: events of a kind of their own, so that no table is needed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Engine, select

from db.schema import Cell, Event

KIND = "occlusion"


@dataclass(frozen=True, slots=True, kw_only=True)
class OcclusionCheck:
    """One run of `tiercache occlusion`. Correlations are Spearman's, by chain in the order of `chains`."""

    sweep_id: str
    at: datetime
    fingerprint: str  # of the full cache's cell that the chains are from
    model: str
    benchmark: str
    window: int
    stride: int
    answer: str  # where the answer begins, in words
    chains: tuple[str, ...]
    values: Mapping[str, tuple[float | None, ...]]  # by scorer; None: it tells no token of that chain apart
    refused: Mapping[str, str]  # by scorer: why it can't work with this model


def occlusion_checks(engine: Engine, sweep_id: str) -> list[OcclusionCheck]:
    """Return a sweep's checks, the newest first."""
    statement = (
        select(Event.sweep_id, Event.at, Event.fingerprint, Event.data, Cell.model, Cell.benchmark)
        .join(Cell, Cell.fingerprint == Event.fingerprint)
        .where(Event.sweep_id == sweep_id, Event.kind == KIND)
        .order_by(Event.id.desc())
    )
    with engine.connect() as connection:
        return [
            _check(row.data, sweep_id=row.sweep_id, at=row.at, fingerprint=row.fingerprint, model=row.model,
                   benchmark=row.benchmark)
            for row in connection.execute(statement)
        ]  # fmt: skip


def _check(data: Mapping[str, Any], **known: Any) -> OcclusionCheck:
    return OcclusionCheck(
        **known,
        window=data["window"],
        stride=data["stride"],
        answer=data["answer"],
        chains=tuple(data["chains"]),
        values={name: tuple(values) for name, values in data["values"].items()},
        refused=dict(data["refused"]),
    )
