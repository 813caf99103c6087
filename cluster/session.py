"""Joining a Ray cluster, or starting one on this machine for the length of a sweep."""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tiercache.errors import ResourceError

log = logging.getLogger(__name__)


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

    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if address != "local":
        try:
            # With no address at all this would start a cluster by itself, on every network interface.
            ray.init(address=address or os.environ.get("RAY_ADDRESS") or "auto", **quiet)
            return
        except (ConnectionError, RuntimeError, ValueError) as error:
            given = address or os.environ.get("RAY_ADDRESS")
            if given:
                raise ResourceError(
                    f"address: no Ray cluster answers at '{given}' ({str(error).splitlines()[0]}). "
                    "Start one with `ray start --head`, or leave the address out to run on this machine alone."
                ) from None
    ray.init(address="local", include_dashboard=False, _node_ip_address="127.0.0.1", **quiet)
