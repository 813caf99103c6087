"""Joining a cluster: an address where nobody answers is an error at once, not minutes of silence."""

import time

import pytest

from cluster.session import session
from tiercache.errors import ResourceError


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:1", "somewhere", "127.0.0.1:99999"])
def test_a_dead_or_malformed_address_is_refused_quickly(address: str) -> None:
    start = time.monotonic()
    with pytest.raises(ResourceError, match="address:"), session(address):
        pass
    assert time.monotonic() - start < 10
