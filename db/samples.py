"""Single samples: lists without the long texts, and one sample with them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Engine, Select, func, literal, or_, select, tuple_

from db.schema import Cell, Sample


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleInfo:
    """A sample without prompt and output. Units as in `db.rows.SampleRow`."""

    fingerprint: str
    problem_id: str
    repeat: int
    attempt: int
    seed: int
    outcome: str
    score: float | None
    grader: str | None
    finish_reason: str
    extracted: str | None
    reference: str
    error: str | None
    prompt_tokens: int | None
    output_tokens: int | None
    ttft_s: float | None
    wall_s: float | None
    hbm_tokens: int | None
    ddr_tokens: int | None
    packed_tokens: int | None
    evicted_tokens: int | None
    hbm_bytes_mean: float | None
    hbm_bytes_peak: int | None
    ddr_bytes_mean: float | None
    packed_bytes_mean: float | None
    evicted_bytes_end: int | None
    full_bytes_mean: float | None
    full_bytes_end: int | None
    metadata_bytes_peak: int | None
    shard_id: str | None
    finished_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleDetail(SampleInfo):
    """A sample with its texts. `output` is what a model wrote: never render it as markup."""

    prompt: str
    output: str


_SHORT = [getattr(Sample, name) for name in SampleInfo.__dataclass_fields__]
_FULL = [getattr(Sample, name) for name in SampleDetail.__dataclass_fields__]


def list_samples(
    engine: Engine,
    fingerprint: str,
    outcome: str | None = None,
    search: str | None = None,
    limit: int = 50,
    offset: int = 0,
) -> list[SampleInfo]:
    """Return one page of a cell's samples by problem and repeat. `search` looks into every text, ignoring case."""
    statement = (
        filtered(select(*_SHORT), fingerprint, outcome, search)
        .order_by(Sample.problem_id, Sample.repeat)
        .limit(limit)
        .offset(offset)
    )
    with engine.connect() as connection:
        return [SampleInfo(**row._mapping) for row in connection.execute(statement)]


def count_samples(engine: Engine, fingerprint: str, outcome: str | None = None, search: str | None = None) -> int:
    """Return how many samples `list_samples` would page through."""
    statement = filtered(select(func.count()).select_from(Sample), fingerprint, outcome, search)
    with engine.connect() as connection:
        return int(connection.execute(statement).scalar_one())


def get_sample(engine: Engine, fingerprint: str, problem_id: str, repeat: int) -> SampleDetail | None:
    """Return one sample with its texts, or None if it isn't there."""
    statement = select(*_FULL).where(
        Sample.fingerprint == fingerprint, Sample.problem_id == problem_id, Sample.repeat == repeat
    )
    with engine.connect() as connection:
        row = connection.execute(statement).one_or_none()
    return None if row is None else SampleDetail(**row._mapping)


def same_problem(engine: Engine, fingerprint: str, problem_id: str, repeat: int) -> list[tuple[str, SampleInfo]]:
    """Return (policy label, sample) of the other cells that met this problem under the same protocol.

    Same model and benchmark as well: only then does a difference say something about the policy.
    """
    own = select(Cell.model, Cell.benchmark, Cell.protocol).where(Cell.fingerprint == fingerprint).subquery()
    statement = (
        select(Cell.policy, *_SHORT)
        .join(Sample, Sample.fingerprint == Cell.fingerprint)
        .join(
            own,
            (own.c.model == Cell.model) & (own.c.benchmark == Cell.benchmark) & (own.c.protocol == Cell.protocol),
        )
        .where(Sample.problem_id == problem_id, Sample.repeat == repeat, Cell.fingerprint != fingerprint)
        .order_by(Cell.policy)
    )
    with engine.connect() as connection:
        return [
            (row.policy, SampleInfo(**{key: value for key, value in row._mapping.items() if key != "policy"}))
            for row in connection.execute(statement)
        ]


def filtered(
    statement: Select[*tuple[Any, ...]], fingerprint: str, outcome: str | None, search: str | None
) -> Select[*tuple[Any, ...]]:
    """Return the statement with the conditions of `list_samples`."""
    statement = statement.where(Sample.fingerprint == fingerprint)
    if outcome:
        statement = statement.where(Sample.outcome == outcome)
    if search:
        texts = (Sample.problem_id, Sample.prompt, Sample.output, Sample.extracted, Sample.reference, Sample.error)
        statement = statement.where(or_(*(text.icontains(search, autoescape=True) for text in texts)))
    return statement


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """What a grader needs of a sample, and its verdict so far."""

    problem_id: str
    repeat: int
    outcome: str
    finish_reason: str
    reference: str
    prompt: str
    output: str


def stored_generations(engine: Engine, fingerprint: str, batch: int = 200) -> Iterator[Generation]:
    """Yield every generation of a cell, those that failed left out, without holding more than `batch` in memory."""
    names = [getattr(Sample, name) for name in Generation.__dataclass_fields__]
    last: tuple[str, int] | None = None
    while True:
        statement = (
            select(*names)
            .where(Sample.fingerprint == fingerprint, Sample.outcome != "failed")
            .order_by(Sample.problem_id, Sample.repeat)
            .limit(batch)
        )
        if last is not None:  # by key, not by offset: no read stays open while the caller writes
            statement = statement.where(tuple_(Sample.problem_id, Sample.repeat) > tuple_(*map(literal, last)))
        with engine.connect() as connection:
            found = [Generation(**row._mapping) for row in connection.execute(statement)]
        yield from found
        if len(found) < batch:
            return
        last = found[-1].problem_id, found[-1].repeat
