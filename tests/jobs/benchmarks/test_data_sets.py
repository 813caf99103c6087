"""Benchmarks over data sets: rows in the hub's columns become problems whose references get full marks."""

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from jobs.benchmarks.base import Benchmark
from jobs.benchmarks.catalog import parse_benchmarks, registry
from tiercache.errors import BenchmarkError
from tiercache.model_spec import ModelSpec

MATH = [
    {"problem": "What is $1/2 + 1/3$?", "answer": r"\frac{5}{6}", "level": 5, "unique_id": "test/algebra/1.json"},
    {"problem": "Solve $x^2 = 2$ for $x > 0$.", "solution": r"so \boxed{\sqrt{2}}", "level": "Level 5"},
]
AIME = [{"ID": "2024-I-1", "Problem": "Find $n$.", "Answer": 33}, {"id": "x", "problem": "p", "answer": "004"}]
ARC = [
    {
        "id": "a",
        "question": "What falls?",
        "choices": {"text": ["up", "rain", "light"], "label": ["A", "B", "C"]},
        "answerKey": "B",
    },
    {"question": "Which?", "choices": {"text": ["x", "y", "z", "w"], "label": ["1", "2", "3", "4"]}, "answerKey": "4"},
]
LONG = [{"context": "The {sky} is blue.", "input": "What colour?", "answers": ["blue", "azure"], "all_classes": None}]
ROWS: dict[str, list[dict[str, Any]]] = {
    "math500": MATH,
    "math_l5": MATH,
    "aime2024": AIME,
    "arc_challenge": ARC,
    "longbench": LONG,
    "jsonl": [{"prompt": "1+1=", "reference": 2}],
}


def of(tmp_path: Path, name: str, rows: list[Any], form: str = "jsonl", **options: Any) -> Benchmark:
    path = tmp_path / f"rows.{form}"
    if form == "parquet":
        pd.DataFrame(rows).to_parquet(path)
    else:
        text = "\n".join(map(json.dumps, rows)) if form == "jsonl" else json.dumps(rows)
        path.write_text(text, encoding="utf-8")
    return parse_benchmarks([{"name": name, **options}], path)[0]


@pytest.mark.parametrize("name", ROWS)
def test_rows_become_problems(tmp_path: Path, name: str) -> None:
    benchmark = of(tmp_path, name, ROWS[name])
    problems = benchmark.load()
    assert len(problems) == len(ROWS[name])
    assert [problem.id for problem in problems] == sorted(problem.id for problem in problems)
    for problem in problems:
        assert benchmark.grade(problem.reference, "no idea", "eos").score == 0.0
        assert benchmark.grade(problem.reference, "", "error").outcome == "failed"


@pytest.mark.parametrize("form", ["json", "parquet"])
@pytest.mark.parametrize("name", ["math500", "arc_challenge", "longbench"])
def test_the_form_of_a_file_changes_nothing(tmp_path: Path, name: str, form: str) -> None:
    rows = ROWS[name][:1]
    assert of(tmp_path, name, rows, form).revision == of(tmp_path, name, rows).revision


def test_letters_go_by_place(tmp_path: Path) -> None:
    first, second = of(tmp_path, "arc_challenge", ARC).load()
    assert (first.reference, second.reference) == ("B", "D")
    assert "\nD. w\n" in second.prompt


def test_numbers_up_to_999(tmp_path: Path) -> None:
    benchmark = of(tmp_path, "aime2024", AIME)
    reference = benchmark.load()[0].reference
    assert benchmark.grade(reference, r"\boxed{033}", "eos").outcome == "correct"
    assert benchmark.grade(reference, "#### 33", "eos").outcome == "no_answer"
    with pytest.raises(BenchmarkError, match="0 to 999"):
        of(tmp_path, "aime2024", [{"problem": "p", "answer": "1000"}]).load()


def test_only_level_5(tmp_path: Path) -> None:
    with pytest.raises(BenchmarkError, match=r"line 1: is of 3; math_l5"):
        of(tmp_path, "math_l5", [{**MATH[0], "level": 3}]).load()


def test_few_shot_and_code_are_put_raw(tmp_path: Path) -> None:
    modes = {task: of(tmp_path, "longbench", LONG, task=task).prompt_mode for task in ("qasper", "trec", "lcc")}
    assert modes == {"qasper": "chat", "trec": "raw", "lcc": "raw"}


def test_long_prompts_lose_their_middle(tmp_path: Path) -> None:
    general = of(tmp_path, "longbench", LONG)
    assert general.rendering.limit is None
    fitted = general.for_model(ModelSpec(id="Qwen/Qwen2.5-7B-Instruct"))
    assert fitted.rendering.limit == 32_768 - 128 - 64
    assert fitted.config()["limit"] == fitted.rendering.limit
    own = of(tmp_path, "longbench", LONG, limit=1000).for_model(ModelSpec(id="Qwen/Qwen2.5-7B-Instruct"))
    assert own.rendering.limit == 1000


def test_own_templates(tmp_path: Path) -> None:
    path = tmp_path / "templates.json"
    path.write_text(json.dumps({"qasper": "{context} Q: {input}"}), encoding="utf-8")
    assert of(tmp_path, "longbench", LONG, templates=str(path)).load()[0].prompt == "The {sky} is blue. Q: What colour?"
    with pytest.raises(BenchmarkError, match="has none for lcc"):
        of(tmp_path, "longbench", LONG, task="lcc", templates=str(path)).load()


@pytest.mark.parametrize(
    ("grader", "reference", "right", "score"),
    [
        ("number", "12", "#### 12", 1),
        ("digits", "0012", "#### 12", 0),
        ("math", r"\frac12", r"\boxed{0.5}", 1),
        ("choice", "C", "The answer is (C).", 1),
        ("exact", "yes", " yes\n", 1),
        ("contains_all", ["red", "blue"], "Red it is.", 0.5),
        ("contains_any", ["red", "blue"], "Red it is.", 1),
        ("f1", "the red house", "a red door", 0.5),
        ("rouge_l", ["one two", "nine"], "one two", 1),
        ("edit_similarity", "x = 1", "x = 2", 0.8),
    ],
)
def test_graders_by_name(tmp_path: Path, grader: str, reference: Any, right: str, score: float) -> None:
    benchmark = of(tmp_path, "jsonl", [{"prompt": "p", "reference": reference}], grader=grader, title="mine")
    assert benchmark.label == "jsonl/mine"
    problem = benchmark.load()[0]
    assert benchmark.grade(problem.reference, right, "eos").score == pytest.approx(score)


BAD: list[tuple[str, dict[str, Any], list[dict[str, Any]], str]] = [
    ("jsonl", {}, [{"prompt": "p"}], "reference is None"),
    ("jsonl", {"grader": "exact"}, [{"prompt": "p", "reference": ["a", "b"]}], "takes the whole answer as a text"),
    ("jsonl", {}, [{"reference": "2"}], "needs the column prompt"),
    ("jsonl", {"grader": "choice"}, [{"prompt": "p", "reference": "maybe"}], "one of the choices"),
    ("math500", {}, [{"problem": "p"}], "needs the column solution"),
    ("math500", {}, [{"problem": "p", "solution": "none"}], "no boxed answer"),
    ("math500", {}, [{"problem": " ", "answer": "1"}], "problem has to be text"),
    ("arc_challenge", {}, [{**ARC[0], "answerKey": "E"}], "answerKey 'E'"),
    ("arc_challenge", {}, [{**ARC[0], "choices": ["A"]}], "choices has to be"),
    ("longbench", {}, [{**LONG[0], "answers": "blue"}], "answers has to be a list"),
    ("longbench", {"task": "lcc"}, [{**LONG[0], "answers": ["# a comment"]}], "fails its own grader.*unscorable: drop"),
]


@pytest.mark.parametrize(("name", "options", "rows", "message"), BAD, ids=[f"{b[0]}: {b[3]}" for b in BAD])
def test_malformed_rows_refuse_to_start(
    tmp_path: Path, name: str, options: dict[str, Any], rows: list[dict[str, Any]], message: str
) -> None:
    with pytest.raises(BenchmarkError, match=message):
        of(tmp_path, name, rows, **options).load()


def test_rows_that_nobody_can_answer_may_be_left_out(tmp_path: Path) -> None:
    rows = [{**LONG[0], "answers": ["# a comment"]}, {**LONG[0], "answers": ["x = 1"]}]
    assert len(of(tmp_path, "longbench", rows, task="lcc", unscorable="drop").load()) == 1


def test_where_rows_lie_is_no_part_of_a_cell(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    configs = [of(tmp_path / place, "math500", MATH, revision=place).config() for place in ("a", "b")]
    assert configs[0] == configs[1]


def test_every_benchmark_says_where_it_comes_from() -> None:
    for name, kind in registry().items():
        benchmark = kind()
        assert benchmark.paper, name
        assert benchmark.metric, name
        assert benchmark.grader, name
        assert benchmark.label.startswith(name)
