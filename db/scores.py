"""Every verdict of a sweep, without its texts: what statistics over problems and repeats are computed from."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from sqlalchemy import Engine, select

from db.counted import samples_of
from db.paired import score_of


@dataclass(frozen=True, slots=True)
class Verdict:
    """One sample's score and the answer that was found."""

    score: float
    extracted: str | None


def verdicts(
    engine: Engine, sweep_id: str, fingerprints: Collection[str] | None = None
) -> dict[str, dict[str, dict[int, Verdict]]]:
    """Return fingerprint -> problem -> repeat -> verdict of a sweep's samples, those that failed left out.

    `fingerprints`: of these cells alone.
    """
    source = samples_of(sweep_id, ("fingerprint", "problem_id", "repeat", "outcome", "score", "extracted"))
    columns = source.c
    statement = (
        select(columns.fingerprint, columns.problem_id, columns.repeat, score_of(columns), columns.extracted)
        .where(columns.outcome != "failed")
        .order_by(columns.fingerprint, columns.problem_id, columns.repeat)
    )
    if fingerprints is not None:
        statement = statement.where(columns.fingerprint.in_(fingerprints))
    found: dict[str, dict[str, dict[int, Verdict]]] = {}
    with engine.connect() as connection:
        for fingerprint, problem, repeat, score, extracted in connection.execute(statement):
            found.setdefault(fingerprint, {}).setdefault(problem, {})[repeat] = Verdict(float(score), extracted)
    return found
