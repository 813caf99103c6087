"""RULER as a benchmark of a sweep: bound to a model, since its length is in that model's tokens."""

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from jobs.benchmarks.base import Benchmark
from jobs.benchmarks.catalog import parse_benchmarks
from jobs.tokens import token_counter
from reasoner import WEIGHTS
from tiercache.errors import BenchmarkError
from tiercache.model_spec import EMBEDDED, ModelSpec

QUESTIONS = [
    {
        "title": f"T{i}",
        "context": f"The capital of land {i} is town {i}. {'It is old. ' * 5}",
        "question": f"What is the capital of land {i}?",
        "answers": {"text": [f"town {i}"]},
    }
    for i in range(60)
]


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> ModelSpec:
    """A model folder whose tokenizer makes a token of each byte."""
    folder = tmp_path_factory.mktemp("model")
    (folder / "config.json").write_text((WEIGHTS / "config.json").read_text())
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.save(str(folder / "tokenizer.json"))
    return ModelSpec(id=str(folder))


def of(data: Path | None = None, **options: Any) -> Benchmark:
    return parse_benchmarks([{"name": "ruler", "n": 4, **options}], data)[0]


@pytest.mark.parametrize("mode", ["raw", "chat"])
def test_length_is_in_the_models_own_tokens(mode: str, spec: ModelSpec) -> None:
    benchmark = of(task="niah_single_1", length=2048, prompt_mode=mode).for_model(spec)
    count = token_counter(spec, special=mode == "raw")
    room = 32 if mode == "chat" else 0
    for problem in benchmark.load():
        joined = problem.prompt + ("\n" if mode == "chat" else "") + problem.prefix
        total = count(joined) + room + benchmark.sampling.max_new_tokens
        assert 0.98 * 2048 <= total <= 2048


def test_identity_follows_content_and_not_n(spec: ModelSpec) -> None:
    few, many = of(n=2), of(n=5)
    assert few.for_model(spec).revision == many.for_model(spec).revision
    assert few.for_model(spec).load() == many.for_model(spec).load()[:2]
    assert few.for_model(spec).revision != of(n=2, seed=43).for_model(spec).revision


def test_without_a_model_there_is_nothing_to_load() -> None:
    assert not of().local
    with pytest.raises(BenchmarkError, match="for a model"):
        of().load()


def test_a_model_without_tokenizer_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text((WEIGHTS / "config.json").read_text())
    with pytest.raises(BenchmarkError, match=r"tokenizer can't be read.*tokenizer\.json"):
        of().for_model(ModelSpec(id=str(tmp_path))).load()


def test_a_model_without_words_is_refused() -> None:
    """The embedded reasoner makes one token of any text in words."""
    with pytest.raises(BenchmarkError, match=r"has no words.*natural language"):
        of().for_model(ModelSpec(id=EMBEDDED)).load()


def test_questions_from_a_file_or_a_folder(tmp_path: Path, spec: ModelSpec) -> None:
    path = tmp_path / "squad_v2.jsonl"
    path.write_text("\n".join(map(json.dumps, QUESTIONS)), encoding="utf-8")
    whole, folder = (of(place, task="qa_1", length=2048).for_model(spec) for place in (path, tmp_path))
    assert whole.revision == folder.revision
    problem = whole.load()[0]
    (answer,) = json.loads(problem.reference)
    assert whole.grade(problem.reference, f"It is {answer}.", "length").outcome == "correct"
    assert whole.grade(problem.reference, "It is elsewhere", "length").outcome == "wrong"
    with pytest.raises(BenchmarkError, match="61 asked for; qa_1 has 60"):
        of(path, task="qa_1", n=61).for_model(spec).load()


def test_prose_from_a_file(tmp_path: Path, spec: ModelSpec) -> None:
    path = tmp_path / "book.txt"
    path.write_text("Ships sailed by night. Nobody saw them leave. " * 40, encoding="utf-8")
    benchmark = of(task="niah_single_2", length=2048, prose=str(path)).for_model(spec)
    assert "Ships sailed by night." in benchmark.load()[0].prompt
    assert "prose" not in benchmark.config()
    with pytest.raises(BenchmarkError, match=r"ruler\.prose.*can't be read"):
        of(task="niah_single_2", prose=str(tmp_path / "none.txt")).for_model(spec).load()


def test_a_sweep_over_models_on_the_hub_is_planned_without_it() -> None:
    far = of(length=8192).for_model(ModelSpec(id="Qwen/Qwen2.5-7B-Instruct"))
    assert not far.local
    assert far.typical_prompt_tokens == 8192 - 128
