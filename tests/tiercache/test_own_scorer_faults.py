"""A user's own scorer that fails: where it did, and that nothing is tried again in vain."""

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from tiny import generate, loaded, prompts, requests

from cluster.pool import InlinePool, Pool, WorkerOptions
from db.connection import open_engine
from jobs.coordinator import run_sweep
from jobs.grid import expand
from jobs.spec import load_sweep
from tiercache.errors import PolicyError

HEAD = "import torch\nfrom tiercache.scorers import Scorer\nclass Mine(Scorer):\n"


def written(folder: Path, body: str) -> Path:
    path = folder / "mine.py"
    path.write_text(HEAD + body)
    return path


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (
            "    def score(self, view):\n        return view.fields['mass']",
            r"score raised KeyError\('mass'\) in line 5",
        ),
        (
            "    def score(self, view): return view.pos.sum(-1)",
            r"score returned shape \(2, 1, 2\); it must broadcast to \(2, 1",
        ),
        ("    def score(self, view): return view.pos.float() * float('nan')", "score returned NaN"),
        ("    def score(self, view): return 3", "score returned int; it must return a tensor"),
        ("    def score(self, view): pass", "score returned NoneType"),
        (
            "    needs_attention = True\n    def observe_prefill(self, seen): seen.parts[7]",
            "observe_prefill raised AttributeError.* in line 5",
        ),
        ("    def fields(self): 1 / 0", "fields raised ZeroDivisionError"),
        ("    def fields(self): return ['mass']", "fields returned .*; it must map names to torch types"),
        ("    def fields(self): return {'m': 'float32'}", "fields returned .*; it must map names to torch types"),
        ("    def fields(self): return {'pos': torch.int32}", "fields can't be called pos"),
        ("    def state(self): return {'a': torch.float32}", "state returned .*; it must map names to"),
        (
            "    remembers = True\n    def remember(self, view): return {'q': view.pos}",
            "remember returned 'q', which fields.. doesn't name",
        ),
        ("    remembers = True\n    def remember(self, view): pass", "remember returned NoneType; it must map"),
        (
            "    hidden_layers = (1,)\n    def fields(self): return {'m': torch.float32}\n"
            "    def observe_hidden(self, hidden, state): return {'m': hidden[1]}",
            "observe_hidden returned .* for 'm'; it must be a tensor of shape",
        ),
        ("    hidden_layers = (99,)", "hidden_layers is a tuple of layers from 0 to 1"),
        ("    hidden_layers = 1", "hidden_layers is a tuple of layers"),
        ("    query_window = -1", "query_window is a whole number from 0 on"),
        ("    retains = 0.5", "retains is of what accumulates names, which names nothing"),
        ("    accumulates = 'mass'\n    retains = 2", "retains is a share from 0 to 1"),
        ("    accumulates = 'mass'", "accumulates adds up attention; set needs_attention = True"),
        (
            "    needs_attention = True\n    accumulates = 'mass'",
            "accumulates is None or names a field of type torch.float64",
        ),
        (
            "    needs_attention = True\n    accumulates = 'm'\n    def fields(self): return {'m': torch.float16}",
            "accumulates is None or names a field of type torch.float64",
        ),
        (
            "    needs_attention = True\n    accumulates = 'm'\n    def fields(self): return {'m': self.wide}\n"
            "    def observe(self, seen): pass",
            "accumulates says that kernels may add to 'm' instead of calling observe",
        ),
        ("    ordered = 'yes'", "ordered is true or false"),
        ("    def score(self, view): return view.pos * 1j", "score returned complex numbers"),
        ("    def score(self, view): raise SystemExit", "score raised SystemExit.* in line 4"),
    ],
)
def test_what_fails_inside_says_where(tmp_path: Path, body: str, words: str) -> None:
    with pytest.raises(PolicyError, match=rf"scorer 'mine\.py:Mine': {words}"):
        generate(
            loaded("llama"),
            requests(prompts(9), new=8),
            {"name": "h2o", "budget": 0.5, "scorer": f"{written(tmp_path, body)}:Mine"},
        )


def test_what_fails_inside_is_not_tried_again(tmp_path: Path) -> None:
    path = written(tmp_path, "    def score(self, view): 1 / 0")
    (tmp_path / "sweep.yaml").write_text(
        "name: failing\nmodels: [reasoner]\nbenchmarks: [{name: chain, n: 2, entries: [20, 20]}]\n"
        f"policies: [{{name: h2o, budget: 0.5, scorer: '{path}:Mine'}}]\n"
    )
    sweep = load_sweep(tmp_path / "sweep.yaml")
    url = f"sqlite:///{tmp_path / 'results.db'}"

    def inline(_: Any, cells: Any, __: int) -> Pool:
        return InlinePool(WorkerOptions(model=cells[0].model, device="cpu", threads=1))

    result = run_sweep(sweep, expand(sweep), url, progress=False, pools=inline)
    assert (result.computed, result.failed) == (0, 2)
    with open_engine(url, read_only=True).connect() as connection:
        rows = connection.execute(text("select error, attempt from samples")).all()
    assert [tuple(row) for row in rows] == [
        ("scorer 'mine.py:Mine': score raised ZeroDivisionError('division by zero') in line 4.", 1)
    ] * 2
