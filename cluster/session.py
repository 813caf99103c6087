"""Joining a Ray cluster, or starting one on this machine for the length of a sweep."""

import logging
import os
import socket
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tiercache.errors import ResourceError

log = logging.getLogger(__name__)

CONNECT_S = 5.0
START_ATTEMPTS = 3
CLUSTERS = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"


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
    if "ray" in sys.modules and sys.modules["ray"].is_initialized():
        yield "existing session"  # somebody else's (a test's, a notebook's): use it and leave it
        return
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    found = _address(address)
    with _joined(found, quiet) if found else _local(quiet) as where:
        yield where


def starts_here(address: str | None) -> bool:
    """Whether `session` would start a Ray on this machine.

    Raises:
        ResourceError: the address was given and nobody answers there.
    """
    joined = "ray" in sys.modules and sys.modules["ray"].is_initialized()
    return not joined and _address(address) is None


def _address(given: str | None) -> str | None:
    """Of the cluster to join; None: start one.

    Raises:
        ResourceError: the address was given and nobody answers there.
    """
    given = given or os.environ.get("RAY_ADDRESS")
    if given == "local":
        return None
    if given and given != "auto":
        _answers(given)
    return given or _started_here()


def _started_here() -> str | None:
    """The address that `ray start` has left on this machine, if somebody listens there.

    Ray's own `auto` also finds the Ray that another sweep has begun for itself: that sweep's workers hold all of its
    CPUs, and it ends when they do.
    """
    folder = "/tmp" if sys.platform == "darwin" else tempfile.gettempdir()
    note = Path(os.environ.get("RAY_TMPDIR", folder)) / "ray" / "ray_current_cluster"
    try:
        address = note.read_text(encoding="utf-8").strip()
        _answers(address)
    except (OSError, ResourceError):
        return None
    return address


@contextmanager
def _joined(address: str, quiet: dict[str, Any]) -> Iterator[str]:
    import ray

    try:
        ray.init(address=address, **quiet)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise ResourceError(_nobody(address, str(error).splitlines()[0])) from None
    try:
        yield ray.get_runtime_context().gcs_address
    finally:
        ray.shutdown()


@contextmanager
def _local(quiet: dict[str, Any]) -> Iterator[str]:
    """A Ray on loopback. Ray gives its processes 30 s to come up, which a busy machine can miss: try again."""
    import ray

    with _on_loopback():
        for attempt in range(1, START_ATTEMPTS + 1):
            try:
                ray.init(address="local", include_dashboard=False, **quiet)
                break
            except Exception as error:  # Ray raises a bare Exception here
                ray.shutdown()
                log.warning("Ray did not start (attempt %d of %d): %s", attempt, START_ATTEMPTS, error)
                reason = str(error)
        else:
            raise ResourceError(f"a local Ray did not start in {START_ATTEMPTS} attempts; the last: {reason}")
        try:
            yield ray.get_runtime_context().gcs_address
        finally:
            ray.shutdown()


@contextmanager
def _on_loopback() -> Iterator[None]:
    """Ray takes the machine's outer address even if it is told 127.0.0.1, and listens on every interface.

    Only where it expects no cluster, as on a Mac, does it stay on loopback: this says so for what starts meanwhile.
    """
    from ray._private import ray_constants as constants  # has read the variable already

    before, known = os.environ.get(CLUSTERS), constants.ENABLE_RAY_CLUSTER
    os.environ[CLUSTERS], constants.ENABLE_RAY_CLUSTER = "0", False
    try:
        yield
    finally:
        os.environ.pop(CLUSTERS)
        if before is not None:
            os.environ[CLUSTERS] = before
        constants.ENABLE_RAY_CLUSTER = known


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
