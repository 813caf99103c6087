"""A search file: what it says, what is refused, and that nothing is tuned on the problems that are reported."""

import contextlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs.benchmarks.catalog import parse_benchmarks
from jobs.search.spec import load_benchmarks, load_search, parse_search
from tiercache.errors import BenchmarkError, TierCacheError

ROOT = Path(__file__).parents[3]


DATA: dict[str, Any] = {
    "name": "t",
    "model": {"id": "reasoner", "dtype": "float32"},
    "benchmark": {"name": "chain", "difficulty": "ledger"},
    "budget": {"bytes": 0.5},
    "trials": 9,
    "batch": 3,
    "seed": 3,
    "search": {"n": 12},
    "report": {"n": 20, "top": 2},
    "rivals": [{"name": "h2o", "budget": "fit"}],
    "space": {"scorer": ["attention"]},
    "sampling": {},
    "engine": {},
    "cluster": {},
    "database": None,
}


def with_(**changes: Any) -> dict[str, Any]:
    return {**DATA, **changes}


@pytest.mark.parametrize("path", sorted((ROOT / "sweeps" / "search").glob("*.yaml")), ids=lambda path: path.stem)
def test_the_files_that_are_shipped(path: Path) -> None:
    search = load_search(path)
    assert f"tiercache search sweeps/search/{path.name}" in path.read_text()
    assert not set(search.problems("search")) & set(search.problems("report"))


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 12), st.integers(0, 9), st.integers(1, 12), st.none() | st.integers(0, 40))
def test_no_problem_is_in_both_parts(n: int, skip: int, held_out: int, begin: int | None) -> None:
    report = {"n": held_out} if begin is None else {"n": held_out, "skip": begin}
    data = with_(search={"n": n, "skip": skip}, report=report)
    first, later = range(skip, skip + n), range(skip + n if begin is None else begin, 10**6)[:held_out]
    if set(first) & set(later):
        with pytest.raises(TierCacheError, match=r"report\.skip: the held-out problems"):
            parse_search(data)
        return
    parts = load_benchmarks(parse_search(data))
    ids = {part: [problem.id for problem in benchmark.load()] for part, benchmark in parts.items()}
    assert [int(name[-6:]) for name in ids["search"]] == list(first)
    assert [int(name[-6:]) for name in ids["report"]] == list(later)
    prompts = [problem.prompt for part in ("search", "report") for problem in parts[part].load()]
    assert len(set(prompts)) == len(prompts)


def test_equal_prompts_in_both_parts_are_refused(tmp_path: Path) -> None:
    rows = ['{"id": "%d", "prompt": "%s?", "reference": "1"}' % (i, "ab"[i % 2]) for i in range(4)]  # noqa: UP031
    (tmp_path / "own.jsonl").write_text("\n".join(rows))
    data = with_(benchmark={"name": "jsonl", "data": str(tmp_path / "own.jsonl")}, search={"n": 2}, report={"n": 2})
    with pytest.raises(BenchmarkError, match="2 of its prompts are among the search's"):
        load_benchmarks(parse_search(data))


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"budget": {"bytes": 0}}, "budget.bytes"),
        ({"budget": {"bytes": 0.5, "memory": "disk"}}, "budget.memory"),
        ({"budget": {"byte": 0.5}}, "budget.byte"),
        ({"trials": 0}, "trials"),
        ({"model": "mystery/model"}, "model.id"),
        ({"benchmark": {"name": "chane"}}, "benchmark.name"),
        ({"benchmark": {"name": "chain", "n": 5}}, "benchmark.n"),
        ({"benchmark": {"name": "chain", "skip": 5}}, "benchmark.skip"),
        ({"report": {"n": 5, "skip": 11}}, "report.skip"),
        ({"search": {"n": 5, "screen": 5}}, "search.screen"),
        ({"rivals": [{"name": "h2o", "budgt": "fit"}]}, "rivals"),
        ({"space": {"scorer": ["best"]}}, "space.scorer"),
        ({"trails": 4}, "trials"),
    ],
)
def test_what_is_refused(change: dict[str, Any], word: str) -> None:
    with pytest.raises(TierCacheError, match=word.replace(".", r"\.")):
        parse_search(with_(**change))


PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6) | st.just([]) | st.just({})


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(sorted(DATA)), PLAIN | st.lists(PLAIN, max_size=2) | st.dictionaries(st.text(max_size=5), PLAIN))
def test_no_value_gives_anything_but_our_own_error(field: str, value: Any) -> None:
    with contextlib.suppress(TierCacheError):
        parse_search(with_(**{field: value}))


def test_skipped_problems() -> None:
    """The option beneath it: the same problems as without, less the first ones, and another cell."""
    whole, later = (parse_benchmarks([{"name": "chain", "n": n, "skip": skip}])[0] for n, skip in ((9, 0), (5, 4)))
    assert later.load() == whole.load()[4:]
    assert whole.revision == later.revision
    assert whole.config() == parse_benchmarks([{"name": "chain", "n": 3}])[0].config()
    assert later.config() == {**whole.config(), "skip": 4}


def test_skipping_rows_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    path.write_text("\n".join('{"id": "p%d", "prompt": "%d?", "reference": "1"}' % (i, i) for i in range(6)))  # noqa: UP031

    def ids(**options: int) -> list[str]:
        return [each.id for each in parse_benchmarks([{"name": "jsonl", "data": str(path), **options}])[0].load()]

    assert ids(skip=2) == ["p2", "p3", "p4", "p5"]
    assert ids(skip=2, n=3) == ["p2", "p3", "p4"]
    with pytest.raises(BenchmarkError, match="allowed: 1 to 4"):
        ids(skip=2, n=5)
    with pytest.raises(BenchmarkError, match="skip: 6 problems skipped"):
        ids(skip=6)
