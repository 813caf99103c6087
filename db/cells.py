"""What cells there are, without a look at their samples: what a page needs to ask which of them to show."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Engine, select

from db.schema import Cell, SweepCell


@dataclass(frozen=True, slots=True, kw_only=True)
class CellInfo:
    """A cell's name and place in the grid."""

    fingerprint: str
    model: str
    benchmark: str
    policy: str
    policy_name: str
    protocol: str


def list_cells(engine: Engine, sweep_id: str | None = None) -> list[CellInfo]:
    """Return the cells of one sweep in its order, or all by model, benchmark and policy."""
    statement = select(*(getattr(Cell, name) for name in CellInfo.__dataclass_fields__))
    if sweep_id is None:
        statement = statement.order_by(Cell.model, Cell.benchmark, Cell.policy)
    else:
        statement = (
            statement.join(SweepCell, SweepCell.fingerprint == Cell.fingerprint)
            .where(SweepCell.sweep_id == sweep_id)
            .order_by(SweepCell.position)
        )
    with engine.connect() as connection:
        return [CellInfo(**row._mapping) for row in connection.execute(statement)]
