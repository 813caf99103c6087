"""Databases as a dashboard meets them, most of them odd."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from dashboard.colours import Look, looks
from db.connection import open_engine
from db.queries import CellSummary, cell_summaries

HERE = Path(__file__).parent


def load(name: str) -> ModuleType:
    """Import a helper that lies beside the tests (test folders are not packages)."""
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, HERE / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    return sys.modules[name]


@pytest.fixture(scope="session")
def made_up() -> ModuleType:
    """Return the module of made-up databases."""
    return load("made_up")


@pytest.fixture(scope="session")
def database(made_up: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """Return a function from a kind of database to its URL; each is made once."""
    folder = tmp_path_factory.mktemp("databases")
    made: dict[str, str] = {}

    def of_kind(kind: str) -> str:
        if kind not in made:
            path = folder / f"{kind}.db"
            made[kind] = f"sqlite:///{path}"
            if kind == "zero_bytes":
                path.touch()
            elif kind == "no_database":
                path.write_text("this is not a database " * 50)
            elif kind == "bad_url":
                made[kind] = "mysql://me:hunter2@host/db"
            elif kind != "missing":
                getattr(made_up, kind)(made[kind])
        return made[kind]

    return of_kind


@pytest.fixture(scope="session")
def cells(database: Callable[[str], str]) -> list[CellSummary]:
    """Return the summaries of the made-up sweep."""
    return summaries(database("fill"))


@pytest.fixture(scope="session")
def look(cells: list[CellSummary]) -> dict[str, Look]:
    return looks((cell.policy, cell.policy_name) for cell in cells)


def summaries(url: str) -> list[CellSummary]:
    engine = open_engine(url, read_only=True)
    try:
        return cell_summaries(engine, "sweep-1")
    finally:
        engine.dispose()
