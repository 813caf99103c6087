"""One coordinator's hold on its cells, and what it is told meanwhile. A database that is away changes neither."""

import logging
import os
import socket
import time
import uuid
from collections.abc import Iterable

from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError

from db.control import Control, told
from db.leases import acquire, leases, release, renew

log = logging.getLogger(__name__)

BEAT_S = 2.0


class Tenancy:
    """The leases of one run of a sweep."""

    def __init__(self, engine: Engine, sweep_id: str) -> None:
        self._engine, self._sweep_id = engine, sweep_id
        self.holder = ":".join((socket.gethostname(), _namespace(), str(os.getpid()), uuid.uuid4().hex[:6]))
        self._held: set[str] = set()
        self._beat = 0.0
        self._told: Control | None = None

    def take(self, fingerprints: Iterable[str]) -> set[str]:
        """Those of the cells that nobody else computes: they are this run's now."""
        names = set(fingerprints)
        for holder in self.others(names):
            if _gone(holder):
                log.info("cells of %s are free: that process has ended", holder)
                release(self._engine, holder)
        found = acquire(self._engine, names, self.holder, self._sweep_id)
        self._held |= found
        return found

    def others(self, fingerprints: Iterable[str]) -> list[str]:
        """Who computes these cells."""
        found = leases(self._engine, fingerprints).values()
        return sorted({lease.holder for lease in found if lease.holder != self.holder})

    def beat(self) -> set[str]:
        """Renews now and then; returns the cells that were lost: another took them while this one was silent."""
        if time.monotonic() - self._beat < BEAT_S:
            return set()
        self._beat = time.monotonic()
        try:
            kept = renew(self._engine, self.holder)
            self._told = told(self._engine, self._sweep_id)
        except DBAPIError:  # the writer says that the database is away
            return set()
        lost, self._held = self._held - kept, self._held & kept
        return lost

    @property
    def told(self) -> Control | None:
        """What the sweep was last told, as of the last beat."""
        return self._told

    def leave(self) -> None:
        """Gives all cells back. If the database is away they become free when the lease ends."""
        try:
            release(self._engine, self.holder)
        except DBAPIError:
            log.warning("the database is away: its leases end by themselves")
        self._held = set()


def _namespace() -> str:
    """Where process numbers mean the same; containers on one host may each have their own."""
    try:
        return os.readlink("/proc/self/ns/pid").rpartition("[")[2].rstrip("]")
    except OSError:
        return "-"


def _gone(holder: str) -> bool:
    """Whether a holder was a process of this machine that has ended: its leases need not run out first."""
    host, namespace, number, _ = [*holder.split(":"), "", "", ""][:4]
    if (host, namespace) != (socket.gethostname(), _namespace()) or not number.isdigit():
        return False
    try:
        os.kill(int(number), 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False
