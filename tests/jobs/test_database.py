"""Which database a command uses, above all where the working directory won't last."""

from pathlib import Path

import pytest

from db import Writer
from db.errors import DatabaseMissing, StorageError
from jobs.database import choose, dashboard_command, open_for_reading
from tiercache.errors import SpecError


@pytest.fixture(autouse=True)
def outside_ray(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("TIERCACHE_DB", raising=False)
    monkeypatch.delenv("RAY_JOB_ID", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def upload(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The working directory of a job that `ray job submit --working-dir` started."""
    folder = tmp_path / "session" / "runtime_resources" / "working_dir_files" / "_ray_pkg_1"
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder)
    return folder


def test_the_nearest_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose(None) == ("sqlite:///tiercache.db", None)
    monkeypatch.setenv("TIERCACHE_DB", "env.db")
    assert choose(None) == ("env.db", None)
    assert choose(None, "sweep.db") == ("sweep.db", None)
    assert choose("option.db", "sweep.db") == ("option.db", None)


@pytest.mark.parametrize("url", ["", " ", "mysql://x/y", "sqlite://"])
def test_malformed_ones_are_refused(url: str) -> None:
    with pytest.raises(StorageError):
        choose(url)


def test_a_ray_job_without_a_database_uses_the_home_directory(upload: Path, tmp_path: Path) -> None:
    url, remark = choose(None)
    assert url == f"sqlite:///{tmp_path / 'home' / 'tiercache.db'}"
    assert remark is not None
    assert "Ray job" in remark


def test_a_ray_job_is_known_by_its_environment_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RAY_JOB_ID", "01000000")
    assert choose(None)[0] == f"sqlite:///{tmp_path / 'home' / 'tiercache.db'}"
    assert choose("mine.db") == ("mine.db", None)


def test_a_ray_job_with_a_database_uses_it_and_says_if_it_will_be_lost(upload: Path, tmp_path: Path) -> None:
    assert choose(str(tmp_path / "r.db")) == (str(tmp_path / "r.db"), None)
    assert choose("postgresql://u:secret@h/d") == ("postgresql://u:secret@h/d", None)
    url, remark = choose(None, "r.db")
    assert url == "r.db"
    assert remark is not None
    assert "Ray deletes" in remark


def test_the_command_of_the_dashboard(monkeypatch: pytest.MonkeyPatch) -> None:
    assert dashboard_command("sqlite:///tiercache.db") == "tiercache dashboard"
    assert dashboard_command("my results.db") == "tiercache dashboard --db 'my results.db'"
    assert "secret" not in dashboard_command("postgresql://u:secret@h/d")
    monkeypatch.setenv("TIERCACHE_DB", "postgresql://u:secret@h/d")
    assert dashboard_command("postgresql://u:secret@h/d") == "tiercache dashboard"


def test_reading_a_missing_an_empty_and_a_ready_database(tmp_path: Path) -> None:
    with pytest.raises(DatabaseMissing, match="tiercache run"):
        open_for_reading("r.db")
    (tmp_path / "r.db").touch()
    with pytest.raises(SpecError, match="no results yet"):
        open_for_reading("r.db")
    Writer.open("r.db").close()
    open_for_reading("r.db").dispose()
