"""What means of diagnostics hide: how many samples each number is of, and its values by layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Engine, and_, case, func, select

from db.counted import samples_of
from db.diagnosed import KEY, MEANS
from db.schema import Diagnostic

SAMPLES = 100  # of a cell whose layers are averaged: their values lie in JSON


@dataclass(frozen=True, slots=True)
class LayerMeans:
    """Means by layer over the first samples of a cell; None for a layer that no sample has a value of."""

    samples: int
    layers: dict[str, tuple[float | None, ...]]


def measured_counts(engine: Engine, sweep_id: str | None, fingerprints: Sequence[str]) -> dict[str, dict[str, int]]:
    """Return by cell how many of the samples that count for the sweep have each number; `lir`: an eligible episode."""
    source = samples_of(sweep_id, KEY)
    statement = (
        select(
            Diagnostic.fingerprint,
            *(func.count(getattr(Diagnostic, name)).label(name) for name in MEANS),
            func.sum(case((Diagnostic.lir_eligible > 0, 1), else_=0)).label("lir"),
        )
        .join(source, and_(*(source.c[name] == getattr(Diagnostic, name) for name in KEY)))
        .where(Diagnostic.fingerprint.in_(fingerprints))
        .group_by(Diagnostic.fingerprint)
    )
    with engine.connect() as connection:
        return {
            row.fingerprint: {name: int(row._mapping[name]) for name in (*MEANS, "lir")}
            for row in connection.execute(statement)
        }


def layer_means(engine: Engine, fingerprints: Sequence[str], samples: int = SAMPLES) -> dict[str, LayerMeans]:
    """Return the means by layer of each cell's first `samples` diagnosed samples; cells without any are left out."""
    found = {}
    with engine.connect() as connection:
        for fingerprint in fingerprints:
            statement = (
                select(Diagnostic.detail)
                .where(Diagnostic.fingerprint == fingerprint)
                .order_by(Diagnostic.problem_id, Diagnostic.repeat)
                .limit(samples)
            )
            details = [detail.get("layers") or {} for detail in connection.scalars(statement)]
            if any(details):
                found[fingerprint] = LayerMeans(len(details), _means(details))
    return found


def _means(details: Sequence[dict[str, Any]]) -> dict[str, tuple[float | None, ...]]:
    names = dict.fromkeys(name for each in details for name in each)
    return {name: _mean([each[name] for each in details if each.get(name)]) for name in names}


def _mean(rows: Sequence[Sequence[float | None]]) -> tuple[float | None, ...]:
    means: list[float | None] = []
    for layer in range(max(map(len, rows), default=0)):
        known = [value for row in rows if layer < len(row) and (value := row[layer]) is not None]
        means.append(sum(known) / len(known) if known else None)
    return tuple(means)
