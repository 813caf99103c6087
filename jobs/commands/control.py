"""`tiercache pause`, `resume` and `cancel`: from any machine that reaches the sweep's database."""

import time
from typing import TYPE_CHECKING

import typer

from jobs.commands.options import Database, database_url
from jobs.commands.results import Chosen
from tiercache.errors import SpecError

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from db.control import Control
    from db.queries import SweepInfo

HEARD_S = 15.0  # a coordinator looks every few seconds; one that has not heard by then is busy, or gone


def pause(sweep: Chosen, db: Database = None) -> None:
    """Let a running sweep finish what runs, then give its workers and GPUs up until `resume`."""
    url = database_url(db)
    _tell(url, sweep, "pause", ("running",))


def resume(sweep: Chosen, db: Database = None) -> None:
    """Let a paused sweep go on."""
    url = database_url(db)
    _tell(url, sweep, None, ("running", "paused"))


def cancel(sweep: Chosen, db: Database = None) -> None:
    """End a running or paused sweep. Finished samples stay; `tiercache run` goes on from there."""
    url = database_url(db)
    _tell(url, sweep, "cancel", ("running", "paused", "silent"))


def _tell(url: str, wanted: str, control: "Control | None", allowed: tuple[str, ...]) -> None:
    from db.connection import open_engine
    from db.control import tell
    from db.queries import list_sweeps
    from jobs.database import open_for_reading
    from jobs.export import pick_sweep

    sweep = pick_sweep(list_sweeps(open_for_reading(url)), wanted)
    state = sweep.live_state()
    if state not in allowed:
        raise SpecError(
            f"sweep {sweep.id} is {state}; allowed for this command: {', '.join(allowed)}. {_remedy(state)}"
        )
    engine = open_engine(url)
    try:
        tell(engine, sweep.id, control)
        if state == "silent":
            _end(engine, sweep)
            return
        typer.echo(_outcome(engine, sweep, control))
    finally:
        engine.dispose()


def _end(engine: "Engine", sweep: "SweepInfo") -> None:
    """Nobody is there to hear it: the sweep's state is set here, and its leases end by themselves."""
    from db.control import set_state

    set_state(engine, sweep.id, "cancelled")
    typer.echo(f"{sweep.id}: cancelled. Its coordinator was gone; its cells are free when their leases end.")


def _outcome(engine: "Engine", sweep: "SweepInfo", control: "Control | None") -> str:
    """Waits a little for the coordinator to act."""
    from db.queries import list_sweeps

    target = {"pause": "paused", "cancel": "cancelled", None: "running"}[control]
    until = time.monotonic() + HEARD_S
    while time.monotonic() < until:
        state = next(each for each in list_sweeps(engine) if each.id == sweep.id).live_state()
        if state == target:
            return f"{sweep.id}: {state}."
        time.sleep(0.5)
    return f"{sweep.id}: asked for, and not done yet; what runs is finished first. See `tiercache status`."


def _remedy(state: str) -> str:
    if state == "silent":
        return "Its coordinator is gone: issue `tiercache run` again to go on, or cancel it."
    return "`tiercache run` starts or continues a sweep."
