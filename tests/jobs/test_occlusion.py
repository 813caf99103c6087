"""Scorers against occlusion labels on stored chains: kept as an event, read back, and refused before any work."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from cluster.pool import InlinePool, WorkerOptions
from db.connection import open_engine
from db.occlusion import occlusion_checks
from db.queries import list_sweeps
from jobs.commands.occluding import occlusion
from jobs.coordinator import run_sweep
from jobs.grid import expand
from jobs.occlusion import _mention, model_of
from jobs.spec import parse_sweep


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Two chains of the full cache, run in this process."""
    address = f"sqlite:///{tmp_path_factory.mktemp('occlusion') / 'r.db'}"
    sweep = parse_sweep(
        {
            "name": "small",
            "models": ["reasoner"],
            "benchmarks": [{"name": "chain", "n": 2, "difficulty": "registers"}],
            "policies": ["full"],
        }
    )

    def pools(sweep: Any, cells: Any, samples: Any) -> InlinePool:
        return InlinePool(WorkerOptions(model=cells[0].model, device="cpu", threads=1))

    run_sweep(sweep, expand(sweep), address, progress=False, pools=pools)
    return address


@pytest.fixture
def command(url: str) -> Callable[..., Any]:
    app = typer.Typer()
    app.command()(occlusion)
    return lambda *arguments: CliRunner().invoke(app, ["latest", "--db", url, *arguments])


def test_correlations_are_stored_by_chain(url: str, command: Callable[..., Any]) -> None:
    done = command("--n", "1", "--scorer", "recency", "--scorer", "random", "--window", "64", "--stride", "64")
    assert done.exit_code == 0, done.output
    engine = open_engine(url, read_only=True)
    (check,) = occlusion_checks(engine, list_sweeps(engine)[0].id)
    assert set(check.values) == {"recency", "random"}
    assert (check.window, check.stride, len(check.chains)) == (64, 64, 1)
    (recency,) = check.values["recency"]
    (chance,) = check.values["random"]
    assert recency is not None
    assert chance is not None
    assert -1 <= recency <= 1
    assert abs(chance) < 0.4
    assert check.answer == "the first value that is read at the end"
    assert check.refused == {}


@pytest.mark.parametrize(
    ("arguments", "word"),
    [(("--scorer", "recensy"), "recency"), (("--window", "8", "--stride", "9"), "--stride")],
)
def test_nonsense_is_refused(command: Callable[..., Any], arguments: tuple[str, ...], word: str) -> None:
    assert word in str(command(*arguments).exception)


def test_the_answer_begins_at_its_last_mention() -> None:
    assert _mention(["It is ", "4", "2, so ", "4", "2", "."], "42") == 3
    assert _mention(["nothing"], "42") is None
    assert _mention(["nothing"], "") is None


def test_a_stored_model_is_loaded_as_it_was(tmp_path: Path) -> None:
    assert model_of({"model": {"id": "reasoner", "revision": "sha256:1", "dtype": "float32"}}).revision is None
    hub = model_of({"model": {"id": "Qwen/Qwen2.5-7B-Instruct", "revision": "abc", "dtype": "auto"}})
    assert hub.revision == "abc"
    assert model_of({"model": {"id": "Qwen/Qwen2.5-7B-Instruct", "revision": "unpinned"}}).revision is None
