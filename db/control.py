"""What a running sweep is told to do, from any machine that reaches its database."""

from __future__ import annotations

from typing import Literal, get_args

from sqlalchemy import Engine, select, update

from db.rows import SWEEP_STATES, SweepState, require_member
from db.schema import Sweep
from db.store import count_up

Control = Literal["pause", "cancel"]


def tell(engine: Engine, sweep_id: str, control: Control | None) -> None:
    """Ask a sweep's coordinator to pause or to end; None lets it go on. It looks every few seconds."""
    if control is not None:
        require_member("control", control, get_args(Control))
    with engine.begin() as connection:
        connection.execute(update(Sweep).where(Sweep.id == sweep_id).values(control=control))
        count_up(connection)


def set_state(engine: Engine, sweep_id: str, state: SweepState) -> None:
    """Write the state of a sweep whose coordinator is gone."""
    require_member("state", state, SWEEP_STATES)
    with engine.begin() as connection:
        connection.execute(update(Sweep).where(Sweep.id == sweep_id).values(state=state, control=None))
        count_up(connection)


def told(engine: Engine, sweep_id: str) -> Control | None:
    """Return what the sweep was last told."""
    with engine.connect() as connection:
        found = connection.execute(select(Sweep.control).where(Sweep.id == sweep_id)).scalar()
    return found if found in get_args(Control) else None  # type: ignore[return-value]
