"""`tiercache db`: each command says what it did, refuses what would lose results, and makes nothing by itself."""

import sqlite3
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
import typer

from db.connection import open_engine
from db.maintenance import revisions
from db.migrate import current, head
from db.migrate import upgrade as migrate
from db.queries import count_samples
from db.rows import CellRow, SampleRow, utc_now
from db.writer import Writer
from jobs import cli
from jobs.commands import database as db_commands

Run = Callable[..., tuple[int, str, str]]
EARLIER = list(revisions())[:-1]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    """Runs `tiercache db` in this process, in an empty folder: (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TIERCACHE_DB", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    app = typer.Typer()
    app.add_typer(db_commands.app)
    monkeypatch.setattr(cli, "app", app)

    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["tiercache", "db", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        out, err = capsys.readouterr()
        code = ended.value.code
        return (code if isinstance(code, int) else 0), out, err

    return call


def fill(path: str = "tiercache.db", state: str = "finished") -> None:
    cell = CellRow(
        fingerprint="a",
        model="m",
        benchmark="b",
        policy="p",
        policy_name="full",
        config={},
        protocol="x",
        kv_bytes_per_token=1,
        expected_samples=300,
    )
    with Writer.open(path) as writer:
        writer.register_sweep("id", "a sweep", {}, {}, [cell])
        writer.record(
            [
                SampleRow(
                    fingerprint="a",
                    problem_id=str(i),
                    repeat=0,
                    seed=1,
                    outcome="correct",
                    score=1.0,
                    finish_reason="eos",
                    prompt="p",
                    output="o" * 3000,
                    reference="r",
                )
                for i in range(300)
            ]
        )
        if state == "finished":
            writer.set_state("id", "finished")


def revision_of(path: str = "tiercache.db") -> str | None:
    engine = open_engine(path, read_only=True)
    found = current(engine)
    engine.dispose()
    return found


@pytest.mark.parametrize("command", ["upgrade", "check", "vacuum"])
def test_nothing_is_made_where_nothing_is(run: Run, tmp_path: Path, command: str) -> None:
    code, out, err = run(command)
    assert (code, out) == (2, "")
    assert "tiercache.db" in err
    assert list(tmp_path.iterdir()) == []


def test_upgrade_makes_tables_only_when_told(run: Run, tmp_path: Path) -> None:
    sqlite3.connect("tiercache.db").execute("CREATE TABLE theirs (x)")
    code, _, err = run("upgrade")
    assert code == 2
    assert "--create" in err
    code, out, _ = run("upgrade", "--create", "--db", "new.db")
    assert (code, "revision none → " + head() in out) == (0, True)
    assert revision_of("new.db") == head()


@pytest.mark.parametrize("revision", EARLIER)
def test_upgrade_says_from_where_to_where(run: Run, revision: str) -> None:
    engine = open_engine("tiercache.db")
    migrate(engine, revision)
    engine.dispose()
    code, out, _ = run("upgrade")
    assert code == 0
    assert f"revision {revision} → {head()}" in out
    assert revision_of() == head()
    code, out, _ = run("upgrade")
    assert (code, "already" in out) == (0, True)


def test_going_back_asks_first_and_keeps_the_samples(run: Run) -> None:
    fill()
    code, out, err = run("upgrade", "--to", EARLIER[0])
    assert (code, out) == (2, "")
    assert all(word in err for word in ("drops", "--yes", "0004: A score beside each outcome"))
    assert revision_of() == head()
    code, out, _ = run("upgrade", "--to", EARLIER[0], "--yes")
    assert code == 0
    assert f"{head()} → {EARLIER[0]}" in out
    code, out, _ = run("upgrade", "--to", EARLIER[2])
    assert f"{EARLIER[0]} → {EARLIER[2]}" in out
    assert run("upgrade")[0] == 0
    engine = open_engine("tiercache.db", read_only=True)
    assert count_samples(engine, "a", outcome="correct") == 300
    engine.dispose()


def test_going_back_waits_for_the_sweep(run: Run) -> None:
    fill(state="running")
    code, _, err = run("upgrade", "--to", EARLIER[0], "--yes")
    assert code == 2
    assert "a sweep (id) is running" in err
    assert revision_of() == head()


def test_revisions_that_nobody_knows(run: Run) -> None:
    fill()
    code, _, err = run("upgrade", "--to", "12")
    assert code == 2
    assert "allowed: head, 0001" in err
    assert run("upgrade", "--to", "base", "--yes")[0] == 2
    with sqlite3.connect("tiercache.db") as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    code, _, err = run("upgrade")
    assert code == 2
    assert "upgrade tiercache-eval" in err
    assert run("upgrade", "--to", EARLIER[0], "--yes")[0] == 2


def test_check_of_a_sound_database(run: Run) -> None:
    fill()
    code, out, _ = run("check")
    assert code == 0
    assert "Nothing is wrong." in out
    assert [line.split() for line in out.splitlines() if "rows of samples" in line] == [
        ["rows", "of", "samples", "300"]
    ]
    assert "WAL" in out


def test_check_finds_and_says_what_to_do(run: Run) -> None:
    fill()
    with sqlite3.connect("tiercache.db") as connection:
        connection.execute(
            "UPDATE sweeps SET state = 'running', name = 'esc\x1b[31m', heartbeat_at = ?",
            ((utc_now() - timedelta(hours=1)).replace(tzinfo=None).isoformat(" "),),
        )
        connection.execute("DROP INDEX ix_shards_fingerprint")
    code, out, _ = run("check")
    assert code == 1
    assert "\x1b" not in out
    assert "found: sweep esc\\x1b[31m (id) says that it runs" in out
    assert "remedy: run its sweep file again" in out
    assert "remedy: CREATE INDEX ix_shards_fingerprint ON shards (fingerprint)" in out
    assert "Nothing is wrong" not in out


def test_vacuum_says_bytes_and_leaves_running_sweeps(run: Run) -> None:
    fill(state="running")
    code, out, err = run("vacuum")
    assert (code, out) == (2, "")
    assert "is running" in err
    with sqlite3.connect("tiercache.db") as connection:
        connection.execute("DELETE FROM samples WHERE problem_id <> '1'")
    code, out, _ = run("vacuum", "--force")
    assert code == 0
    assert "MiB before" in out
    assert "KiB after" in out
