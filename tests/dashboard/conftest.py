"""Databases as a dashboard meets them, most of them odd."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from dashboard.colours import Look, looks
from db.connection import open_engine
from db.queries import CellSummary, cell_summaries

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
BENCHMARKS = ROOT / "benchmarks"


def load(name: str, folder: Path = HERE) -> ModuleType:
    """Import a helper that lies beside the tests, or a script (their folders are not packages)."""
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, folder / f"{name}.py")
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
def hostile() -> ModuleType:
    """Return the module of the hostile store."""
    return load("hostile")


@pytest.fixture(scope="session")
def browsing() -> ModuleType:
    """Return the module that serves the dashboard and opens it in Chromium, if there is one."""
    pytest.importorskip("playwright.sync_api")
    module = load("browsing", BENCHMARKS)
    if module.CHROMIUM is None:
        pytest.skip("Chromium is not installed")
    return module


@pytest.fixture(scope="module")
def browser(browsing: ModuleType) -> Iterator[Any]:
    """Return one Chromium for a file's tests. Not for all: an event loop runs in the main thread while it is open."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=browsing.CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture(scope="session")
def serve(
    browsing: ModuleType, database: Callable[[str], str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], Any]]:
    """Return a function from a kind of database, or a URL, to the server of its dashboard: one of each."""
    logs = tmp_path_factory.mktemp("servers")
    with ExitStack() as stack:
        started: dict[str, Any] = {}

        def begin(kind: str) -> Any:
            if kind not in started:
                url = kind if "/" in kind else database(kind)
                started[kind] = stack.enter_context(browsing.served(url, logs / f"{len(started)}.log"))
            return started[kind]

        yield begin


@pytest.fixture(scope="session")
def screenshots(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return where pictures are kept: TIERCACHE_SCREENSHOTS, else pytest's temporary folder."""
    folder = Path(os.environ.get("TIERCACHE_SCREENSHOTS") or tmp_path_factory.mktemp("screenshots"))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the URL of a database that holds the demo sweep itself, cut to a few problems and run in this process."""
    from cluster.pool import InlinePool, WorkerOptions
    from jobs.coordinator import run_sweep
    from jobs.grid import expand
    from jobs.spec import load_sweep

    sweep = load_sweep(ROOT / "sweeps" / "demo.yaml")
    sweep = sweep.model_copy(update={"benchmarks": [{**entry, "n": 3} for entry in sweep.benchmarks]})
    url = f"sqlite:///{tmp_path_factory.mktemp('demo') / 'demo.db'}"

    def pools(sweep: Any, cells: Any, samples: Any) -> InlinePool:
        return InlinePool(WorkerOptions(model=cells[0].model, device="cpu", threads=1))

    run_sweep(sweep, expand(sweep), url, progress=False, pools=pools)
    return url


@pytest.fixture(scope="session")
def big(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the URL of a made-up store of 2,000 cells and 200,000 samples, or of the one in TIERCACHE_BIG_STORE."""
    if ready := os.environ.get("TIERCACHE_BIG_STORE"):
        return ready
    sys.path.insert(0, str(BENCHMARKS))  # the script's own rows lie beside it
    url = f"sqlite:///{tmp_path_factory.mktemp('big') / 'big.db'}"
    load("big_store", BENCHMARKS).fill(url)
    return url


@pytest.fixture(scope="session")
def made_maps() -> ModuleType:
    """Return the module of made-up tier maps."""
    return load("made_maps")


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
            elif kind == "hostile":
                load("hostile").fill(made[kind], made_up)
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
