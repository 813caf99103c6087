"""A user's own scorer from a file: refused early, carried along, identified by its text."""

import os
import pickle
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import generate, loaded, prompts, requests

from cluster.pool import InlinePool, Pool, WorkerOptions
from db.connection import open_engine
from db.queries import cell_summaries
from jobs.coordinator import run_sweep
from jobs.grid import expand, fingerprint
from jobs.spec import load_sweep
from tiercache.errors import PolicyError
from tiercache.policy import Policy, parse_policy
from tiercache.scorers import make_scorer

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "own_scorer.py"
PAGE = (ROOT / "docs" / "own_scorer.md").read_text(encoding="utf-8")
FADING = "own_scorer.py:FadingAttention"

Write = Callable[[str], Path]


@pytest.fixture
def file(tmp_path: Path) -> Write:
    def write(text: str) -> Path:
        path = tmp_path / "mine.py"
        path.write_text(textwrap.dedent(text))
        return path

    return write


def inline(_: Any, cells: Any, __: int) -> Pool:
    return InlinePool(WorkerOptions(model=cells[0].model, device="cpu", threads=1))


def policy(path: Path, name: str = "Mine", **more: Any) -> Policy:
    return parse_policy({"name": "h2o", "budget": 0.5, "scorer": f"{path}:{name}", **more})


OLDEST = """
    from dataclasses import dataclass, field
    from tiercache.scorers import Scorer

    @dataclass
    class Settings:
        sign: "float" = 1.0
        seen: list[int] = field(default_factory=list)

    class Mine(Scorer):
        shared = True

        def __init__(self, signal, facts, sign=1.0):
            super().__init__(signal, facts)
            self.settings = Settings(sign)

        def score(self, view):
            return self.settings.sign * view.pos
"""


def test_a_file_ranks_as_the_built_in_scorer_that_it_imitates(file: Write) -> None:
    """Attention mass, written once more by a user: the same tokens and books as the built-in one."""
    path = file("""
        from tiercache.scorers import Scorer

        class Mine(Scorer):
            needs_attention = True

            def fields(self):
                return {"mine": self.wide}

            def observe_prefill(self, seen):
                seen.fields["mine"].add_((seen.weights * seen.counted.view(1, 1, -1, 1)).sum((1, 2)))

            def observe(self, seen):
                for part in seen.parts:
                    part.fields["mine"].add_(part.weights.sum(2))

            def score(self, view):
                return view.fields["mine"]
    """)
    batch = requests(prompts(5, 40, 23), new=30)
    for more in ({}, {"hbm": 0.5, "every": 4}):
        expected = generate(loaded("llama"), batch, {"name": "h2o", "budget": 0.5, **more})
        got = generate(loaded("llama"), batch, policy(path, **more))
        assert [c.tokens for c in got] == [c.tokens for c in expected]
        assert [c.ledger for c in got] == [c.ledger for c in expected]


def test_options_reach_the_class(file: Write) -> None:
    path = file(OLDEST)
    batch = requests(prompts(40), new=30)
    newest = generate(loaded("llama"), batch, {"name": "h2o", "budget": 0.5, "scorer": "recency"})
    assert generate(loaded("llama"), batch, policy(path))[0].tokens == newest[0].tokens
    oldest = generate(loaded("llama"), batch, policy(path, options={"sign": -1.0}))
    assert oldest[0].tokens != newest[0].tokens
    with pytest.raises(PolicyError, match="unexpected keyword argument 'sgin'"):
        make_scorer(policy(path, options={"sgin": 1.0}), loaded("llama").facts)


def test_the_example_fades_as_it_says() -> None:
    """Against a loop over queries, in chunks and with a padded end."""
    mine = policy(EXAMPLE, "FadingAttention", options={"half_life": 3})
    scorer = make_scorer(mine, loaded("llama").facts)
    from tiercache.scorers import Observed, ObservedPrefill, Part

    weights = torch.rand(2, 2, 7, 7, dtype=torch.float64).tril()
    mass, expected = torch.zeros(2, 8, dtype=torch.float64), torch.zeros(2, 8, dtype=torch.float64)
    for start, stop, real in ((0, 4, 4), (4, 7, 2)):
        counted = torch.arange(start, stop) < start + real
        chunk = weights[:, :, start:stop, :stop]
        scorer.observe_prefill(ObservedPrefill(0, {"mass": mass[:, :stop]}, chunk, counted, start))
    step = torch.rand(2, 2, 8, dtype=torch.float64)
    part = Part({"mass": mass.unsqueeze(0)}, mass, mass, step.unsqueeze(0))
    scorer.observe(Observed(0, step, [part], torch.tensor([6]), {}, 1.0))
    for query in [*weights[:, :, :6].unbind(2), step]:
        expected *= 0.5 ** (1 / 3)
        expected[:, : query.shape[-1]] += query.sum(1)
    torch.testing.assert_close(mass, expected)
    assert len(EXAMPLE.read_text().splitlines()) <= 30


@pytest.mark.parametrize(
    ("text", "name", "words"),
    [
        ("class Mines: ...", "Mine", r"has no class 'Mine'\. Did you mean 'Mines'\? It has: Mines"),
        ("Mine = 3", "Mine", "It has none; write path/to/file.py:Class"),
        ("class Mine:\n  def f(:\n", "Mine", r"mine\.py', line 2 isn't Python: invalid syntax"),
        ("class Mine: ...\n\0", "Mine", "isn't Python"),
    ],
)
def test_a_wrong_file_is_refused_when_the_sweep_is_read(file: Write, text: str, name: str, words: str) -> None:
    with pytest.raises(PolicyError, match=words) as caught:
        policy(file(text), name)
    assert str(caught.value).startswith("policy.scorer: ")


def test_a_file_that_cant_be_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "latin.py").write_bytes(b"# \xe9\nclass Mine: ...")
    with pytest.raises(PolicyError, match=r"latin\.py' isn't UTF-8 text \(byte 2\)"):
        policy(tmp_path / "latin.py")
    with pytest.raises(PolicyError, match=r"can't read .*No such file"):
        policy(tmp_path / "none.py")
    (tmp_path / "folder.py").mkdir()
    with pytest.raises(PolicyError, match=r"can't read .*directory"):
        policy(tmp_path / "folder.py")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("class Mine: ...", "can't be loaded: TypeError"),
        ("class Mine:\n    def __init__(self, *_): ...", "not a subclass of tiercache.scorers.Scorer"),
        ("raise KeyError('missing')\nclass Mine: ...", r"can't be loaded: KeyError\('missing'\)"),
        ("import nowhere_to_be_found\nclass Mine: ...", "No module named 'nowhere_to_be_found'"),
    ],
)
def test_a_class_that_cant_be_loaded_says_why(file: Write, text: str, words: str) -> None:
    for _ in range(2):  # a module that failed halfway isn't taken for a finished one
        with pytest.raises(PolicyError, match=rf"scorer 'mine\.py:Mine'.*{words}"):
            make_scorer(policy(file(text)), loaded("llama").facts)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"source": "class Mine: ..."}, "source: unknown key"),
        ({"options": 3}, "options: input should be a valid dictionary"),
        ({"options": {"x": float("nan")}}, "finite numbers"),
        ({"option": {}}, "Did you mean 'options'"),
        ({"scope": "lyer"}, "scope"),
    ],
)
def test_wrong_knobs_are_refused(file: Write, more: dict[str, Any], words: str) -> None:
    with pytest.raises(PolicyError, match=words):
        policy(file(OLDEST), **more)


def test_a_scorer_is_its_text_and_not_its_place(file: Write, tmp_path: Path) -> None:
    path = file(OLDEST)
    first = policy(path)
    other = tmp_path / "elsewhere" / "deeper"
    other.mkdir(parents=True)
    moved = policy(Path(shutil.copy(path, other)))
    assert fingerprint(moved.config()) == fingerprint(first.config())
    assert (moved, hash(moved)) == (first, hash(first))
    path.write_text(path.read_text() + "# one more remark\n")
    changed = policy(path)
    assert fingerprint(changed.config()) != fingerprint(first.config())
    assert fingerprint(policy(path, options={"sign": 2.0}).config()) != fingerprint(changed.config())
    assert first.label == "h2o scorer=mine.py:Mine budget=0.5"
    more = policy(path, options={"sign": 2.0, "word": "a"})
    assert more.label == "h2o scorer=mine.py:Mine budget=0.5 sign=2.0 word=a"


def test_two_files_of_one_name_dont_replace_each_other(file: Write) -> None:
    first = policy(file(OLDEST))
    second = policy(file(OLDEST.replace("sign * view", "sign * -view")))
    facts = loaded("llama").facts
    made = [type(make_scorer(each, facts)) for each in (first, second, first)]
    assert made[0] is made[2] is not made[1]
    assert pickle.loads(pickle.dumps(made[0])) is made[0]


def test_a_policy_travels_to_a_process_that_has_no_such_file(file: Write, tmp_path: Path) -> None:
    path = file(OLDEST)
    mine = policy(path, options={"sign": -1.0})
    path.unlink()
    code = (
        "import pickle, sys, torch\n"
        "from tiercache.scorers import Facts, make_scorer\n"
        "from tiercache.store import Geometry\n"
        "policy = pickle.load(sys.stdin.buffer)\n"
        "print(policy.label, make_scorer(policy, Facts(Geometry(1, 1, 1, 4, torch.float32))).settings.sign)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, input=pickle.dumps(mine), cwd=tmp_path, env=environment, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout.decode().split() == [*mine.label.split(), "-1.0"]


LINES = "name: t\nmodels: [reasoner]\nbenchmarks: [chain]\npolicies: [{name: h2o, budget: 0.5, scorer: %s}]\n"


def test_a_relative_path_is_beside_the_sweep_file_first(
    file: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = file(OLDEST)
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    sweep = tmp_path / "sweep.yaml"
    for written in ("mine.py:Mine", "[recency, mine.py:Mine]", "../mine.py:Mine", f"{path}:Mine"):
        sweep.write_text(LINES % written)
        assert load_sweep(sweep).resolved_policies()[-1].config() == policy(path).config(), written
    (here / "mine.py").write_text(path.read_text() + "# another\n")
    sweep.write_text(LINES % "mine.py:Mine")
    assert load_sweep("../sweep.yaml").resolved_policies()[0].config() == policy(path).config()
    path.unlink()
    assert load_sweep(sweep).resolved_policies()[0].config() == policy(here / "mine.py").config()
    (here / "mine.py").unlink()
    with pytest.raises(PolicyError, match=r"sweep\.yaml: policies\[0\]\.scorer: can't read 'mine\.py'"):
        load_sweep(sweep)


def test_the_page_shows_the_example() -> None:
    shown = re.findall(r"^```python\n(.*?)^```", PAGE, re.M | re.S)[0]
    assert shown == EXAMPLE.read_text(encoding="utf-8")
    shipped = load_sweep(ROOT / "examples" / "own_scorer.yaml").resolved_policies()
    assert [policy.label for policy in shipped][2:] == [
        f"h2o scorer={FADING} budget=0.8 pin_prompt half_life={half_life}" for half_life in (8, 64)
    ]


def test_the_pages_sweep_runs_from_file_to_database(tmp_path: Path) -> None:
    """The page's own YAML and Python, in a folder outside the repository, through a real sweep."""
    (tmp_path / "examples").mkdir()
    shown = re.findall(r"^```python\n(.*?)^```", PAGE, re.M | re.S)[0]
    (tmp_path / "examples" / "own_scorer.py").write_text(shown)
    text = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.M | re.S)[0]
    (tmp_path / "sweep.yaml").write_text(text.replace("n: 20", "n: 2, entries: [20, 20]"))
    sweep = load_sweep(tmp_path / "sweep.yaml")
    cells = expand(sweep)
    (tmp_path / "examples" / "own_scorer.py").unlink()  # the text has been taken along
    url = f"sqlite:///{tmp_path / 'results.db'}"

    result = run_sweep(sweep, cells, url, progress=False, pools=inline)
    assert (result.computed, result.failed) == (8, 0)
    summaries = cell_summaries(open_engine(url, read_only=True), result.sweep_id)
    assert [summary.n for summary in summaries] == [2] * 4
    mine = [summary for summary in summaries if FADING in summary.policy]
    assert {"half_life=8", "half_life=64"} <= {word for summary in mine for word in summary.policy.split()}
