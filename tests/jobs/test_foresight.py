"""What must fail is refused before anything starts, and what may fail is said: no torch, no Ray, nothing written."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from cluster.fake import FakeWorker, Script
from cluster.pool import InlinePool, Pool, WorkerOptions
from jobs.benchmarks.catalog import parse_benchmarks
from jobs.coordinator import SweepResult, run_sweep
from jobs.foresight import foresee
from jobs.grid import Cell, expand
from jobs.plan import plan_sweep, sequence_bytes
from jobs.prompts import count_tokens, lacks_chat_template
from jobs.spec import Sweep, parse_sweep
from tiercache.errors import ResourceError, SpecError, TierCacheError
from tiercache.model_spec import ModelSpec
from tiercache.shapes import locate, shape_of

REASONER = ModelSpec(id="reasoner")
H2O = {"name": "h2o", "budget": 32}


def sweep(**more: Any) -> Sweep:
    benchmarks = [{"name": "chain", "n": 12}]
    return parse_sweep(
        {"name": "t", "models": ["reasoner"], "benchmarks": benchmarks, "policies": ["full", H2O], **more}
    )


def run(spec: Sweep, url: str, script: Script | None = None) -> SweepResult:
    def pools(_: Sweep, __: Sequence[Cell], ___: int) -> Pool:
        return InlinePool(WorkerOptions(model=None), worker=FakeWorker(script))  # type: ignore[arg-type]

    return run_sweep(spec, expand(spec), url, progress=False, pools=pools)


def lengths(spec: Sweep) -> list[int]:
    counts = count_tokens(locate(REASONER), [p.prompt for p in expand(spec)[0].benchmark.load()])
    assert counts is not None
    assert len(set(counts)) > 1
    return counts


def needs(spec: Sweep, prompt: int) -> dict[str, int]:
    shape = shape_of(REASONER)
    assert shape is not None
    return {
        cell.policy.name: sequence_bytes(cell.policy, shape, "auto", prompt, cell.sampling.max_new_tokens).device
        for cell in expand(spec)
    }


def test_a_budget_too_small_for_any_sequence_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    spec = sweep(engine={"hbm_kv_budget": 1000})
    with pytest.raises(SpecError) as caught:
        run(spec, f"sqlite:///{tmp_path / 'r.db'}")
    most = max(needs(spec, max(lengths(spec))).values())
    for words in (
        "engine.hbm_kv_budget: 1,000 bytes",
        "'full', 'h2o budget=32'",
        f"allowed: {most:,} or more",
        "Raise it",
    ):
        assert words in str(caught.value)
    assert list(tmp_path.iterdir()) == []
    assert foresee(expand(sweep(engine={"hbm_kv_budget": most}))) == []


def test_the_engine_refuses_the_same_sequences() -> None:
    pytest.importorskip("torch")
    from cluster.worker import EngineWorker
    from tiercache.requests import Request, Sampling

    shortest = min(lengths(sweep()))
    need = needs(sweep(), shortest)["full"]
    only = {"policies": ["full"]}
    with pytest.raises(SpecError):
        foresee(expand(sweep(**only, engine={"hbm_kv_budget": need - 1})))
    cell = expand(sweep(**only, engine={"hbm_kv_budget": need}))[0]
    assert len(foresee([cell])) == 1
    prompt = min((p.prompt for p in cell.benchmark.load()), key=lambda text: len(count_tokens_of(text)))
    for budget, fits in ((need, True), (need - 1, False)):
        engine = EngineWorker(REASONER, "cpu", 1, budget, 512, 1).engine
        ids = tuple(engine.loaded.encode(prompt)[1])
        assert len(ids) == shortest
        request = Request("r", ids, Sampling(**cell.sampling.model_dump()), 0)
        if fits:
            engine.check(request, cell.policy)
        else:
            with pytest.raises(ResourceError):
                engine.check(request, cell.policy)


def count_tokens_of(text: str) -> range:
    counts = count_tokens(locate(REASONER), [text])
    assert counts is not None
    return range(counts[0])


def test_new_tokens_beyond_the_context_are_refused() -> None:
    counts = lengths(sweep())
    with pytest.raises(SpecError) as caught:
        foresee(expand(sweep(sampling={"max_new_tokens": 4096})))
    for words in (
        "sampling.max_new_tokens: 4,096",
        "1,024 tokens that reasoner can take",
        f"{min(counts)} tokens or more",
    ):
        assert words in str(caught.value)
    assert f"allowed: at most {1024 - max(counts)}. Lower it" in str(caught.value)
    assert foresee(expand(sweep(sampling={"max_new_tokens": 1024 - max(counts)}))) == []


def test_where_some_samples_run_the_others_are_a_note(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    counts = lengths(sweep())
    spec = sweep(sampling={"max_new_tokens": 1024 - min(counts)})
    over = sum(count > min(counts) for count in counts)
    result = run(spec, f"sqlite:///{tmp_path / 'r.db'}")
    assert result.computed == 24
    err = capsys.readouterr().err
    assert err.count("note: ") == 1
    assert f"note: reasoner on chain: {over} of 12 prompts with max_new_tokens" in err
    budget = needs(sweep(), min(counts))["full"]
    notes = foresee(expand(sweep(engine={"hbm_kv_budget": budget})))
    assert len(notes) == 1
    assert "hbm_kv_budget under 'full'; such samples fail" in notes[0]


def test_a_finished_sweep_is_refused_nothing(tmp_path: Path) -> None:
    """A budget is no part of a cell's identity: what is stored needs none."""
    url = f"sqlite:///{tmp_path / 'r.db'}"
    run(sweep(), url)
    assert run(sweep(engine={"hbm_kv_budget": 1000}), url).reused == 24


def test_the_failed_rest_of_a_sweep_is_tried_again(tmp_path: Path) -> None:
    """All that is missing may be what can't run; the cell as a whole can, so the command isn't refused."""
    url, counts = f"sqlite:///{tmp_path / 'r.db'}", lengths(sweep())
    spec = sweep(sampling={"max_new_tokens": 1024 - min(counts)})
    problems = expand(spec)[0].benchmark.load()
    long = frozenset(f"{p.id}#0" for p, count in zip(problems, counts, strict=True) if count > min(counts))
    first, second = (run(spec, url, Script(refuses=long)) for _ in range(2))
    assert first.failed == second.failed == 2 * len(long)


def test_without_a_tokenizer_only_what_is_certain_is_refused(sweep_data: dict[str, Any], model_folder: Path) -> None:
    def cells(new: int, budget: int | None = None) -> list[Cell]:
        more = {"sampling": {"max_new_tokens": new}, "engine": {"hbm_kv_budget": budget}}
        return expand(parse_sweep({**sweep_data, "policies": ["full"], **more}))

    with pytest.raises(SpecError, match="with any prompt of chain exceeds the 2,048"):
        foresee(cells(2048))
    assert "by estimate" in foresee(cells(2000))[0]
    with pytest.raises(SpecError, match="hbm_kv_budget: "):
        foresee(cells(100, 100 * 512 - 1))
    assert len(foresee(cells(100, 100 * 512))) == 1
    config = json.loads((model_folder / "config.json").read_text())
    (model_folder / "config.json").write_text(json.dumps({**config, "torch_dtype": None}))
    assert len(foresee(cells(100, 100 * 256))) == 1, "its weights may be in half precision"


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    path = tmp_path / "g.jsonl"
    path.write_text('{"question": "1+1", "answer": "#### 2"}\n')
    return path


def chat_cells(folder: Path, questions: Path, mode: str = "chat") -> list[Cell]:
    entry = {"name": "gsm8k", "data": str(questions), "prompt_mode": mode}
    return expand(parse_sweep({"name": "t", "models": [str(folder)], "benchmarks": [entry], "policies": ["full"]}))


def test_a_chat_without_a_template_is_refused(model_folder: Path, questions: Path) -> None:
    (model_folder / "tokenizer_config.json").write_text('{"bos_token": "<s>"}')
    with pytest.raises(TierCacheError) as caught:
        foresee(chat_cells(model_folder, questions))
    for words in ("gsm8k.prompt_mode: 'chat'", "tiny-model has none", "{name: gsm8k, prompt_mode: raw}"):
        assert words in str(caught.value)
    foresee(chat_cells(model_folder, questions, "raw"))
    spec = parse_sweep(
        {
            "name": "t",
            "models": [str(model_folder)],
            "benchmarks": [{"name": "gsm8k", "data": str(questions)}],
            "policies": ["full"],
        }
    )
    assert any("prompt_mode: raw" in note for note in plan_sweep(spec, parse_benchmarks(spec.benchmarks)).notes)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("tokenizer_config.json", '{"chat_template": "{{ messages }}"}'),
        ("chat_template.jinja", "{{ messages }}"),
        ("tekken.json", "{}"),
        ("tokenizer_config.json", "not JSON"),
    ],
)
def test_what_may_have_a_template_is_not_refused(model_folder: Path, name: str, content: str) -> None:
    spec = ModelSpec(id=str(model_folder))
    assert lacks_chat_template(spec, model_folder)
    (model_folder / name).write_text(content)
    assert not lacks_chat_template(spec, model_folder)
    assert not lacks_chat_template(ModelSpec(id="org/name"), None)
