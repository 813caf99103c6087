"""A scorer that an installed package offers through its entry points."""

import importlib
import shutil
from pathlib import Path

import pytest
from tiny import generate, loaded, prompts, requests

from jobs.grid import fingerprint
from jobs.spec import parse_sweep
from tiercache.errors import PolicyError
from tiercache.policy import parse_policy
from tiercache.scorers import make_scorer

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_scorer.py"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A distribution as an installer leaves it: a package and its metadata in a folder on the path."""
    folder = tmp_path / "site"
    (folder / "their_scorers").mkdir(parents=True)
    (folder / "their_scorers" / "__init__.py").write_text(EXAMPLE.read_text())
    info = folder / "their_scorers-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: their-scorers\nVersion: 1.2\n")
    (info / "entry_points.txt").write_text(
        "[tiercache.scorers]\nfading = their_scorers:FadingAttention\nbroken = their_scorers:Nothing\n"
        "attention = their_scorers:FadingAttention\n"
    )
    monkeypatch.syspath_prepend(folder)
    importlib.invalidate_caches()
    return info


def test_an_installed_package_offers_a_scorer(package: Path) -> None:
    entry = {"name": "h2o", "budget": 0.5, "scorer": "fading", "options": {"half_life": 8}}
    theirs = parse_policy(entry)
    assert theirs.label == "h2o scorer=fading budget=0.5 half_life=8"
    assert theirs.config()["scorer"]["package"] == "their-scorers==1.2"
    batch = requests(prompts(40), new=20)
    same = parse_policy({**entry, "scorer": f"{EXAMPLE}:FadingAttention"})
    assert generate(loaded("llama"), batch, theirs)[0].tokens == generate(loaded("llama"), batch, same)[0].tokens
    sweep = {"name": "t", "models": ["reasoner"], "benchmarks": ["chain"], "policies": [entry]}
    assert parse_sweep(sweep).resolved_policies() == [theirs]
    before = fingerprint(theirs.config())
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: their-scorers\nVersion: 1.3\n")
    assert fingerprint(parse_policy(entry).config()) != before


def test_a_package_that_isnt_there_or_is_broken_says_so(package: Path) -> None:
    facts = loaded("llama").facts
    with pytest.raises(PolicyError, match="'broken' can't be loaded: AttributeError"):
        make_scorer(parse_policy({"name": "h2o", "budget": 0.5, "scorer": "broken"}), facts)
    theirs = parse_policy({"name": "h2o", "budget": 0.5, "scorer": "fading"})
    shutil.rmtree(package)
    importlib.invalidate_caches()
    with pytest.raises(PolicyError, match="offers 'fading' is not installed on this machine"):
        make_scorer(theirs, facts)
    with pytest.raises(PolicyError, match="unknown scorer 'fading'"):
        parse_policy({"name": "h2o", "budget": 0.5, "scorer": "fading"})


def test_a_built_in_name_cant_be_taken(package: Path) -> None:
    built_in = parse_policy({"name": "h2o", "budget": 0.5, "scorer": "attention"})
    assert built_in.scorer.implementation.startswith("tiercache.scorers.attention:")
