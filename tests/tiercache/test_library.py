"""The package's front door: its names, `Engine.generate`, and the pages and scripts that show them."""

import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tiny import POLICIES, generate, loaded, prompts, requests

import tiercache
from tiercache import Engine, Limits, ModelSpec, load, parse_policy
from tiercache.errors import ModelError, PolicyError, RequestError

ROOT = Path(__file__).parents[2]


def blocks(page: str, language: str) -> list[str]:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.M | re.S)


def test_names_of_the_package_are_there_and_import_torch_only_when_used() -> None:
    code = (
        "import sys, tiercache\n"
        "assert set(tiercache.__all__) <= set(dir(tiercache))\n"
        "from tiercache import parse_policy, ModelSpec, Request\n"
        "assert 'torch' not in sys.modules\n"
        "for name in tiercache.__all__: assert callable(getattr(tiercache, name)), name\n"
        "assert 'torch' in sys.modules\n"
        "from tiercache import *\n"
        "assert tiercache.attach is attach and callable(attach)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    with pytest.raises(AttributeError, match="no attribute 'Engin'"):
        tiercache.Engin  # noqa: B018


def test_generate_is_run_in_the_prompts_order() -> None:
    texts = prompts(5, 40, 23)
    engine = Engine(loaded("llama"), Limits(max_batch=2))
    policy = POLICIES["random-head"]
    got = engine.generate(texts, policy, max_new_tokens=20, seed=9)
    assert [len(c.tokens) for c in got] == [20, 20, 20]
    assert [c.prompt_tokens for c in got] == [5, 40, 23]
    batch = [r.__class__(r.key, r.prompt, r.sampling, 9 + i) for i, r in enumerate(requests(texts, new=20))]
    assert [c.tokens for c in got] == [c.tokens for c in generate(loaded("llama"), batch, policy)]
    assert [c.tokens for c in engine.generate(texts, parse_policy(policy), max_new_tokens=20, seed=9)] == [
        c.tokens for c in got
    ]
    sampled = engine.generate([texts[0]] * 2, max_new_tokens=20, temperature=1.0, top_p=0.9)
    assert sampled[0].tokens != sampled[1].tokens, "each prompt has a seed of its own"
    assert engine.generate([]) == []


def test_generate_refuses_what_it_cant_run() -> None:
    engine = Engine(loaded("llama"))
    with pytest.raises(ModelError, match="without one; give token ids"):
        engine.generate("text")
    with pytest.raises(PolicyError, match="Did you mean 'h2o'"):
        engine.generate(prompts(5), "h20")
    with pytest.raises(RequestError, match="the prompt has no token"):
        engine.generate([[]])


def test_an_engine_whose_model_was_switched_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    model = loaded("mistral").model
    model.set_attn_implementation("sdpa")
    try:
        with pytest.raises(ModelError, match="attention is 'sdpa'"):
            Engine(loaded("mistral")).generate(prompts(5))
    finally:
        model.set_attn_implementation("tiercache")
    assert Engine(loaded("mistral")).generate(prompts(5), max_new_tokens=2)


@pytest.mark.parametrize(("page", "count"), [("library.md", 4), ("own_scorer.md", 2)])
def test_python_blocks_of_the_pages_run(page: str, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One after the other in one namespace, in a folder that holds the examples and nothing else."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    monkeypatch.chdir(tmp_path)
    found = blocks(page, "python")
    assert len(found) == count
    namespace: dict[str, object] = {}
    for block in found:
        exec(compile(block, page, "exec"), namespace)


@pytest.mark.parametrize("name", ["library.py", "attach.py"])
def test_example_scripts_run(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(ROOT / "examples" / name), run_name="__main__")
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) >= 2
    assert any("True" in line for line in lines)


def test_links_of_the_pages_exist() -> None:
    for page in ("library.md", "own_scorer.md"):
        for link in re.findall(r"\]\(([^)#:]+)\)", (ROOT / "docs" / page).read_text(encoding="utf-8")):
            assert (ROOT / "docs" / link).exists(), link


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"temperature": -1}, r"temperature: is a number, 0 \(greedy\) or more \(got -1\)"),
        ({"temperature": float("nan")}, "temperature"),
        ({"temperature": float("inf")}, "temperature"),
        ({"top_p": 0}, "top_p: is a number, above 0 and at most 1"),
        ({"max_new_tokens": 2.5}, r"max_new_tokens: is a whole number from 1 on \(got 2.5\)"),
        ({"max_new_tokens": 0}, "max_new_tokens"),
        ({"seed": "a"}, "seed: is a whole number"),
        ({"seed": 2**70}, "seed"),
        ({"prompts": [[1, 10**6]]}, "1000000 is no token of the model; allowed: whole numbers from 0 to 255"),
        ({"prompts": [[-1]]}, "-1 is no token"),
        ({"prompts": [[1.5]]}, "1.5 is no token"),
        ({"prompts": [[]]}, "the prompt has no token"),
    ],
    ids=str,
)
def test_what_cant_be_generated_is_refused(given: dict[str, object], words: str) -> None:
    arguments = {"prompts": [[1, 2, 3]], "max_new_tokens": 4, **given}
    with pytest.raises(RequestError, match=words):
        Engine(loaded("llama")).generate(arguments.pop("prompts"), "full", **arguments)


@pytest.mark.parametrize(
    "given",
    [{"max_batch": 0}, {"max_batch": 1.5}, {"prefill_chunk": 0}, {"hbm_kv_budget": "1GiB"}, {"max_batch": True}],
)
def test_limits_are_whole_numbers(given: dict[str, object]) -> None:
    with pytest.raises(RequestError, match=f"{next(iter(given))}: is a whole number from 1 on"):
        Limits(**given)  # type: ignore[arg-type]


def test_a_device_that_is_not_there_is_refused() -> None:
    if not torch.cuda.is_available():
        with pytest.raises(ModelError, match="device: 'cuda' is not available"):
            load(ModelSpec(id="reasoner"), "cuda")
