"""Which samples count: for one sweep, for all, or for the cells of one model and benchmark among them.

A sweep shows its cells' samples whichever sweep made them, but of each cell only as many as it expects: the first
problems of each repeat, an order that is the same for every policy and knows nothing of outcomes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import ScalarSelect, Select, Subquery, case, func, select

from db.schema import Cell, Sample, Sweep, SweepCell


def samples_of(
    sweep_id: str | None, names: Sequence[str], *, model: str | None = None, benchmark: str | None = None
) -> Subquery:
    """Columns of the samples that count for a sweep, or of all; of one model and one benchmark, if these are given."""
    statement = select(*(getattr(Sample, name) for name in names))
    if sweep_id is None:
        chosen = cells_of(model, benchmark)
        return (statement if chosen is None else statement.where(Sample.fingerprint.in_(chosen))).subquery()
    # By IN, not by a join: with a join SQLite may well decide to read all samples there are.
    asked = select(SweepCell.fingerprint).where(SweepCell.sweep_id == sweep_id)
    if model is not None or benchmark is not None:
        asked = _narrowed(asked.join(Cell, Cell.fingerprint == SweepCell.fingerprint), model, benchmark)
    last = _last_problems(sweep_id, asked)
    return (
        statement.outerjoin(last, (last.c.fingerprint == Sample.fingerprint) & (last.c.repeat == Sample.repeat))
        .where(Sample.fingerprint.in_(asked), Sample.repeat < _repeats(sweep_id))
        .where(last.c.fingerprint.is_(None) | (Sample.problem_id <= last.c.problem_id))
        .subquery()
    )


def cells_of(model: str | None, benchmark: str | None) -> Select[str] | None:
    """Fingerprints of the cells of a model and a benchmark; None where that means all."""
    if model is None and benchmark is None:
        return None
    return _narrowed(select(Cell.fingerprint), model, benchmark)


def _narrowed(statement: Select[str], model: str | None, benchmark: str | None) -> Select[str]:
    if model is not None:
        statement = statement.where(Cell.model == model)
    return statement if benchmark is None else statement.where(Cell.benchmark == benchmark)


def _repeats(sweep_id: str) -> ScalarSelect[Any]:
    """A subquery, so that the sweep's file is parsed once and not for each sample."""
    return select(func.coalesce(Sweep.spec["repeats"].as_integer(), 1)).where(Sweep.id == sweep_id).scalar_subquery()


def _last_problems(sweep_id: str, asked: Select[str]) -> Subquery:
    """The last problem that counts, of each cell and repeat that has more of them than the sweep expects.

    Few have, and only these are put in order: numbering all rows of a large sweep takes longer than adding them up.
    """
    repeats = _repeats(sweep_id)
    present = (
        select(Sample.fingerprint, Sample.repeat, func.count().label("present"))
        .where(Sample.fingerprint.in_(asked))
        .group_by(Sample.fingerprint, Sample.repeat)
        .subquery("present")
    )
    crowded = (
        select(present.c.fingerprint, present.c.repeat, SweepCell.expected_samples)
        .join(SweepCell, SweepCell.fingerprint == present.c.fingerprint)
        .where(SweepCell.sweep_id == sweep_id, present.c.present * repeats > SweepCell.expected_samples)
        .subquery("crowded")
    )
    # Ids sort in the benchmark's own order.
    rank = func.row_number().over(partition_by=(Sample.fingerprint, Sample.repeat), order_by=Sample.problem_id)
    counts = (rank * repeats <= crowded.c.expected_samples).label("counts")
    ranked = (
        select(Sample.fingerprint, Sample.repeat, Sample.problem_id, counts)
        .join(crowded, (crowded.c.fingerprint == Sample.fingerprint) & (crowded.c.repeat == Sample.repeat))
        .subquery("ranked")
    )
    last = func.max(case((ranked.c.counts, ranked.c.problem_id))).label("problem_id")
    return (
        select(ranked.c.fingerprint, ranked.c.repeat, last)
        .group_by(ranked.c.fingerprint, ranked.c.repeat)
        .subquery("last")
    )
