"""How long generations were, for planning sweeps that will make more of them."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Engine, func, select

from db.schema import Cell, Sample


@dataclass(frozen=True, slots=True)
class GenerationLength:
    """Mean generated tokens of one policy's stored samples under one token limit; failed samples don't count."""

    model: str
    benchmark: str
    policy: str
    max_new_tokens: int
    samples: int
    mean_tokens: float


def generation_lengths(engine: Engine) -> list[GenerationLength]:
    """Return what is stored, for each model, benchmark, policy and token limit."""
    limit = Cell.config["sampling"]["max_new_tokens"].as_integer()
    cells = select(Cell.fingerprint, Cell.model, Cell.benchmark, Cell.policy, limit.label("most")).subquery()
    keys = (cells.c.model, cells.c.benchmark, cells.c.policy, cells.c.most)
    statement = (
        select(*keys, func.count(), func.avg(Sample.output_tokens))
        .join(Sample, Sample.fingerprint == cells.c.fingerprint)
        .where(Sample.outcome != "failed", Sample.output_tokens.is_not(None), cells.c.most.is_not(None))
        .group_by(*keys)
        .order_by(*keys)
    )
    with engine.connect() as connection:
        rows = connection.execute(statement).all()
    return [
        GenerationLength(model, benchmark, policy, int(most), int(samples), float(mean))
        for model, benchmark, policy, most, samples, mean in rows
    ]
