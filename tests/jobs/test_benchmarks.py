"""Benchmarks: their data are checked on loading, and every reference passes its own grader."""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from jobs.benchmarks.base import Benchmark
from jobs.benchmarks.catalog import parse_benchmarks, registry
from tiercache.errors import BenchmarkError

ROWS = [
    {"question": "Two hens lay 3 eggs each. How many?", "answer": "2*3=<<2*3=6>>6\n#### 6"},
    {"question": "A bike for $1,000 gains 5%. New price?", "answer": "…\n#### 1,050"},
    {"question": "From 2 take 5.", "answer": "…\n#### -3"},
]
Jsonl = Callable[[list[Any]], Path]


@pytest.fixture
def jsonl(tmp_path: Path) -> Jsonl:
    def to_file(rows: list[Any]) -> Path:
        path = tmp_path / "gsm8k_test.jsonl"
        path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
        return path

    return to_file


def one(data: Path | None = None, **options: Any) -> Benchmark:
    return parse_benchmarks([{"name": "gsm8k", **options}], data)[0]


def test_every_benchmark_has_defaults_and_a_summary() -> None:
    for name, kind in registry().items():
        assert kind().name == name
        assert kind.summary
        assert kind().sampling.max_new_tokens > 0


@pytest.mark.parametrize("difficulty", ["registers", "ledger"])
def test_chain_problems_are_reproducible_and_gradable(difficulty: str) -> None:
    def load(n: int) -> Benchmark:
        return parse_benchmarks([{"name": "chain", "n": n, "difficulty": difficulty}])[0]

    small, large = load(3), load(50)
    assert small.load() == large.load()[:3]
    assert small.revision == large.revision
    assert small.config() == large.config()
    assert [problem.id for problem in large.load()] == sorted(problem.id for problem in large.load())
    for problem in large.load():
        assert len(problem.reference) == 4
        assert large.grade(problem.reference, problem.meta["chain"], "eos").outcome == "correct"
        wrong = f"#### {(int(problem.reference) + 1) % 10_000:04d}"
        assert large.grade(problem.reference, wrong, "eos").outcome == "wrong"


def test_longest_chains_fit_the_default_limit() -> None:
    chain = parse_benchmarks([{"name": "chain", "n": 20, "difficulty": "ledger", "entries": 60, "leaves": 4}])[0]
    tokens = max(len(problem.meta["chain"].split()) + 4 for problem in chain.load())
    assert tokens < chain.sampling.max_new_tokens


def test_gsm8k_from_a_file_a_folder_and_an_option(jsonl: Jsonl) -> None:
    path = jsonl(ROWS)
    loaded = [one(path), one(path.parent), parse_benchmarks([{"name": "gsm8k", "data": str(path)}])[0]]
    assert len({benchmark.revision for benchmark in loaded}) == 1
    assert [problem.reference for problem in loaded[0].load()] == ["6", "1,050", "-3"]
    assert len(one(path, n=2).load()) == 2
    assert one(path, n=2).config() == one(path).config()


def test_gsm8k_prompt_modes(jsonl: Jsonl) -> None:
    chat, raw = one(jsonl(ROWS)), one(jsonl(ROWS), prompt_mode="raw")
    assert (chat.prompt_mode, raw.prompt_mode) == ("chat", "raw")
    assert chat.load()[0].prompt.startswith(ROWS[0]["question"])
    assert "####" in chat.load()[0].prompt
    assert raw.load()[0].prompt.endswith("Answer:")
    assert chat.revision != raw.revision


def test_own_schema(jsonl: Jsonl) -> None:
    benchmark = one(jsonl([{"id": "a", "prompt": "1+1?", "reference": "2"}, {"id": 7, "prompt": "p", "reference": 3}]))
    assert [(p.prompt, p.reference) for p in benchmark.load()] == [("1+1?", "2"), ("p", "3")]


def own_rows(ids: Iterable[object]) -> list[Any]:
    return [{"id": name, "prompt": "p", "reference": 5} for name in ids]


def test_ids_sort_in_the_order_of_the_data(jsonl: Jsonl) -> None:
    """The database tells a sweep's first n problems by their ids."""
    assert [p.id for p in one(jsonl(own_rows("abc"))).load()] == ["a", "b", "c"]
    ids = [p.id for p in one(jsonl(own_rows(range(12)))).load()]
    assert ids == sorted(ids)
    assert (ids[0], ids[2], ids[11]) == ("00-0", "02-2", "11-11")
    long = [p.id for p in one(jsonl(ROWS * 3400)).load()]
    assert len(long) == 10_200
    assert long == sorted(long)


def test_the_first_n_keep_their_ids(jsonl: Jsonl) -> None:
    path = jsonl(own_rows(range(12)))
    assert one(path, n=3).load() == one(path).load()[:3]


BAD = [
    ([{"question": "q", "answer": "no mark"}], "line 1"),
    ([ROWS[0], {"question": "q", "answer": "#### five"}], "line 2"),
    ([{"question": "", "answer": "#### 5"}], "question has to be text"),
    ([{"question": 3, "answer": "#### 5"}], "question has to be text"),
    ([{"problem": "q"}], "it has problem"),
    ([{"id": "a", "prompt": "p", "reference": "five"}], "fails its own grader"),
    ([{"id": "a", "prompt": "p", "reference": "5"}] * 2, "share an id"),
    (["{not json"], "line 1: isn't a JSON object"),
    (["[1]"], "line 1: isn't a JSON object"),
    ([], "no rows"),
]


@pytest.mark.parametrize(("rows", "message"), BAD, ids=[message for _, message in BAD])
def test_malformed_data_refuse_to_start(jsonl: Jsonl, rows: list[Any], message: str) -> None:
    with pytest.raises(BenchmarkError, match=message):
        one(jsonl(rows)).load()


def test_asking_for_more_than_there_is(jsonl: Jsonl) -> None:
    with pytest.raises(BenchmarkError, match="4 problems asked for; allowed: 1 to 3"):
        one(jsonl(ROWS), n=4).load()


def test_folder_without_data_and_binary_file(tmp_path: Path) -> None:
    with pytest.raises(BenchmarkError, match=r"none of gsm8k_test\.jsonl"):
        one(tmp_path).load()
    (tmp_path / "x").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BenchmarkError, match="UTF-8"):
        one(tmp_path / "x").load()


def test_an_unreachable_hub_names_the_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import datasets

    monkeypatch.setenv("TIERCACHE_DATA", str(tmp_path))

    def refuse(*args: object, **keywords: object) -> None:
        raise ConnectionError("no route")

    monkeypatch.setattr(datasets, "load_dataset", refuse)
    with pytest.raises(BenchmarkError, match=r"(?s)no route.*tiercache prepare gsm8k.*--data"):
        one().load()
