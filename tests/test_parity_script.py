"""benchmarks/parity_kvpress.py where kvpress isn't installed: its cases are valid, and it says what it needs."""

import runpy
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from tiercache.policy import parse_policy

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "benchmarks" / "parity_kvpress.py"
PARITY = runpy.run_path(str(SCRIPT))


@pytest.fixture(scope="module")
def layers():  # type: ignore[no-untyped-def]
    return PARITY["make_layers"](0, torch.float64)


def test_every_case_is_a_policy() -> None:
    assert {parse_policy(case.policy).name for case in PARITY["CASES"]} == {
        "streaming", "snapkv", "tova", "keydiff", "lagkv", "expected_attention", "h2o", "pyramidkv", "adakv",
    }  # fmt: skip


@pytest.mark.parametrize("name", sorted({case.name for case in PARITY["CASES"] if not case.equal} | {"random"}))
def test_a_difference_is_explained_on_the_page_of_the_policy(name: str) -> None:
    """And what explains it is shown by another case, in which the same method's sets are equal."""
    assert "kvpress 0.5.5" in (ROOT / f"docs/policies/{name}.md").read_text(encoding="utf-8")
    assert name == "random" or any(case.equal for case in PARITY["CASES"] if case.name == name)


@pytest.mark.parametrize("case", PARITY["CASES"], ids=lambda case: f"{case.name}: {case.note}")
def test_our_side_of_each_case_keeps_its_budget(case, layers) -> None:  # type: ignore[no-untyped-def]
    kept = PARITY["ours"](case, layers)[0].sum(-1).double()
    policy = parse_policy(case.policy)
    budget = policy.placement.budget
    if budget is None:
        assert (kept == PARITY["LAGGED"]).all()
    else:
        assert kept.mean() == (budget.tokens or -(-PARITY["TOKENS"] // 2))
        assert policy.placement.ragged or kept.min() == kept.max()


def test_without_kvpress_it_says_how_to_install_it() -> None:
    if find_spec("kvpress") is not None:
        pytest.skip("kvpress is installed here")
    done = subprocess.run([sys.executable, SCRIPT], cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 1
    assert "kvpress isn't installed" in done.stderr
    steps = [line.split()[0] for line in done.stderr.splitlines() if line.startswith("    ")]
    assert steps == ["python", "/tmp/kvpress/bin/pip", "PYTHONPATH=."]
