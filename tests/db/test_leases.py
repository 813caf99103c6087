"""A cell has one holder at a time; one that is gone loses it by itself."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest

from db.connection import open_engine
from db.control import tell, told
from db.errors import StorageError
from db.leases import acquire, leases, release, renew

GONE = timedelta(seconds=-1)


@pytest.fixture
def engine(writer, make_cell):
    writer.register_sweep("s", "s", {}, {}, [make_cell(name) for name in "abc"])
    return writer.engine


def test_one_holder_at_a_time(engine):
    assert acquire(engine, "ab", "x", "s") == {"a", "b"}
    assert acquire(engine, "abc", "y", "s") == {"c"}
    assert acquire(engine, "ab", "x", "s") == {"a", "b"}
    assert {name: info.holder for name, info in leases(engine, "abc").items()} == {"a": "x", "b": "x", "c": "y"}


def test_a_lease_that_isnt_renewed_is_free(engine):
    acquire(engine, "a", "x", "s", GONE)
    assert leases(engine, "a") == {}
    assert acquire(engine, "a", "y", "t") == {"a"}
    assert renew(engine, "x") == set(), "the first holder learns that it has lost the cell"
    assert leases(engine, "a")["a"].sweep_id == "t"


def test_renewing_keeps_and_releasing_frees(engine):
    acquire(engine, "abc", "x", "s", GONE)
    assert renew(engine, "x") == set("abc")
    assert acquire(engine, "abc", "y", "s") == set()
    release(engine, "x", ["a"])
    release(engine, "y")
    assert acquire(engine, "abc", "y", "s") == {"a"}
    release(engine, "x")
    assert acquire(engine, "abc", "y", "s") == set("abc")


def test_many_at_once_share_without_overlap(writer, make_cell, url):
    names = [f"c{i:04d}" for i in range(1200)]
    writer.register_sweep("s", "s", {}, {}, [make_cell(name) for name in names])

    def take(holder):
        engine = open_engine(url)
        try:
            return acquire(engine, names, holder, "s")
        finally:
            engine.dispose()

    with ThreadPoolExecutor(4) as threads:
        taken = list(threads.map(take, "wxyz"))
    assert sum(map(len, taken)) == len(set().union(*taken)) == len(names)


def test_control_goes_with_a_new_run(engine, writer, make_cell):
    assert told(engine, "s") is None
    tell(engine, "s", "pause")
    assert told(engine, "s") == "pause"
    writer.register_sweep("s", "s", {}, {}, [make_cell("a")])
    assert told(engine, "s") is None
    with pytest.raises(StorageError, match="allowed: pause, cancel"):
        tell(engine, "s", "stop")
