"""Joining a Ray cluster, or starting one on this machine for the length of a sweep."""

import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tiercache.errors import ResourceError

log = logging.getLogger(__name__)

CONNECT_S = 5.0
START_ATTEMPTS = 3


@contextmanager
def session(address: str | None = None) -> Iterator[str]:
    """Yields a description of the cluster.

    Args:
        address: of a running cluster, `auto`, or `local` to start one in any case. None: RAY_ADDRESS where it is set
            (as inside `ray job submit`), else the cluster that `ray start` began on this machine, else a new one that
            listens on loopback only and ends with this process.

    Raises:
        ResourceError: the address was given and nobody answers there.
    """
    import ray

    if ray.is_initialized():  # somebody else's session (a test's, a notebook's): use it and leave it
        yield "existing session"
        return
    _join(address)
    try:
        yield ray.get_runtime_context().gcs_address
    finally:
        ray.shutdown()


def _join(address: str | None) -> None:
    import ray

    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    given = address or os.environ.get("RAY_ADDRESS")
    if address != "local":
        if given and given != "auto":
            _answers(given)
        try:
            # With no address at all this would start a cluster by itself, on every network interface.
            ray.init(address=given or "auto", **quiet)
            return
        except (ConnectionError, RuntimeError, ValueError) as error:
            if given:
                raise ResourceError(_nobody(given, str(error).splitlines()[0])) from None
    _start_local(quiet)


def _start_local(quiet: dict[str, Any]) -> None:
    """Starts a Ray on loopback. Ray gives its processes 30 s to come up, which a busy machine can miss: try again."""
    import ray

    for attempt in range(1, START_ATTEMPTS + 1):
        try:
            ray.init(address="local", include_dashboard=False, _node_ip_address="127.0.0.1", **quiet)
            return
        except Exception as error:  # Ray raises a bare Exception here
            ray.shutdown()
            log.warning("Ray did not start (attempt %d of %d): %s", attempt, START_ATTEMPTS, error)
            reason = str(error)
    raise ResourceError(f"a local Ray did not start in {START_ATTEMPTS} attempts; the last: {reason}")


def _answers(address: str) -> None:
    """Refuses an address where nothing listens: Ray itself would retry for minutes without a word."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not port.isdigit():
        raise ResourceError(f"address: '{address}' is not HOST:PORT, `auto` or `local`.")
    try:
        socket.create_connection((host.strip("[]") or "127.0.0.1", int(port)), timeout=CONNECT_S).close()
    except (OSError, OverflowError) as error:
        raise ResourceError(_nobody(address, str(error))) from None


def _nobody(address: str, reason: str) -> str:
    return (
        f"address: no Ray cluster answers at '{address}' ({reason}). Start one with `ray start --head`, or leave the "
        "address out to run on this machine alone."
    )
