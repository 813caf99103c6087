"""Opening databases: every wrong way says what is wrong and never shows a password."""

import builtins

import pytest
import sqlalchemy as sa

from db import connection
from db.connection import default_url, masked, open_engine, parse_url
from db.errors import DatabaseMissing, StorageError
from db.network_fs import network_filesystem
from db.writer import Writer


def test_default_url(monkeypatch):
    monkeypatch.delenv("TIERCACHE_DB", raising=False)
    assert default_url() == "sqlite:///tiercache.db"
    monkeypatch.setenv("TIERCACHE_DB", "elsewhere.db")
    assert default_url() == "elsewhere.db"


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("", "empty"),
        ("sqlite://", "in one connection's memory"),
        ("sqlite:///:memory:", "in one connection's memory"),
        ("mysql://root:hunter2@host/db", "mysql"),
        ("postgresql+asyncpg://me:hunter2@host/db", "asyncpg"),
        ("postgresql://me:hunter2@host:port/db", "can't be read"),
    ],
)
def test_bad_urls(url, words):
    with pytest.raises(StorageError, match=words) as caught:
        open_engine(url)
    assert "hunter2" not in str(caught.value)
    assert "allowed: a file path" in str(caught.value)


def test_an_unreachable_server_is_named_without_its_password():
    with pytest.raises(StorageError, match="doesn't answer") as caught:
        open_engine("postgresql://me:hunter2@127.0.0.1:1/results")
    assert "me:***@127.0.0.1:1/results" in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_passwords_are_masked():
    assert masked("postgres://me:hunter2@host/db") == "postgresql+psycopg://me:***@host/db"


def test_a_missing_driver_names_the_extra(monkeypatch):
    original = builtins.__import__

    def without_psycopg(name, *rest, **more):
        if name.split(".")[0] == "psycopg":
            raise ModuleNotFoundError("No module named 'psycopg'", name="psycopg")
        return original(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without_psycopg)
    with pytest.raises(StorageError, match=r"pip install 'tiercache-eval\[postgres\]'"):
        open_engine("postgresql://me@127.0.0.1:1/results")


def test_read_only_never_creates_a_file(tmp_path):
    for name in (str(tmp_path / "no.db"), f"sqlite:///{tmp_path}/no.db", str(tmp_path / "no folder" / "no.db")):
        with pytest.raises(DatabaseMissing, match="tiercache run"):
            open_engine(name, read_only=True)
    assert list(tmp_path.iterdir()) == []


def test_read_only_cannot_write(writer, url):
    engine = open_engine(url, read_only=True)
    with pytest.raises(sa.exc.DBAPIError, match=r"readonly|read-only"), engine.begin() as handle:
        handle.exec_driver_sql("DELETE FROM sweeps")
    engine.dispose()


def test_odd_paths(tmp_path):
    path = tmp_path / "a b?mode=memory&#%41.db"
    Writer.open(str(path)).close()
    assert path.exists()
    open_engine(str(path), read_only=True).dispose()
    with pytest.raises(StorageError, match="is a directory"):
        open_engine(str(tmp_path))
    with pytest.raises(StorageError, match="doesn't exist; make it"):
        open_engine(str(tmp_path / "missing" / "x.db"))


def test_a_file_that_is_no_database(tmp_path):
    (tmp_path / "x.db").write_text("certainly not a database " * 100)
    with pytest.raises(StorageError, match="not a database"):
        Writer.open(str(tmp_path / "x.db"))


def test_sqlite_settings(tmp_path):
    engine = open_engine(str(tmp_path / "x.db"))
    with engine.connect() as handle:
        values = [handle.exec_driver_sql(f"PRAGMA {name}").scalar() for name in ("journal_mode", "foreign_keys")]
        assert values == ["wal", 1]
        assert handle.exec_driver_sql("PRAGMA busy_timeout").scalar() == 1000 * connection.BUSY_TIMEOUT_S
    engine.dispose()


def test_relative_paths_are_taken_from_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert parse_url("sqlite:///x.db").database == str(tmp_path / "x.db")
    assert parse_url("x.db") == parse_url(f"sqlite:///{tmp_path}/x.db")


def test_network_file_systems_are_noticed(tmp_path):
    mounts = tmp_path / "mounts"
    mounts.write_text(
        "/dev/sda / ext4 rw 0 0\nhost:/x /big\\040data nfs4 rw 0 0\n/dev/sdb /big\\040data/local xfs rw 0 0\n"
    )
    from pathlib import Path

    assert network_filesystem(Path("/big data/r.db"), mounts) == "nfs4"
    assert network_filesystem(Path("/big data/local/r.db"), mounts) is None
    assert network_filesystem(Path("/home/r.db"), mounts) is None
    assert network_filesystem(Path("/home/r.db"), tmp_path / "absent") is None
