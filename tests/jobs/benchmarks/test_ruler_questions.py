"""Questions on documents, from rows and files of SQuAD v2.0's and HotpotQA's forms."""

import json
import math
from pathlib import Path
from random import Random
from typing import Any

import pytest

from jobs.benchmarks.ruler import Question, Sources, make_samples, read_questions, read_rows
from jobs.benchmarks.ruler.texts import Filler, made_up_prose
from jobs.grading.matching import grade_match
from tiercache.errors import BenchmarkError


def quarters(text: str) -> int:
    return math.ceil(len(text) / 4)


def document(name: str, chars: int = 400) -> str:
    return " ".join([f"This is about {name}.", *Filler(made_up_prose(Random(name))).take(chars)])


def squad_row(article: int, paragraph: int, answers: list[str]) -> dict[str, Any]:
    name = f"a{article}p{paragraph}"
    return {
        "id": name,
        "title": f"article {article}",
        "context": f"{document(name)} The capital of {name} is {''.join(answers[:1]) or 'unknown'}.",
        "question": f"What is the capital of {name}? ",
        "answers": {"text": answers, "answer_start": [0] * len(answers)},
    }


SQUAD = [squad_row(a, p, [f"Town {a}-{p}", f"Town {a}-{p}", "Town"] if p else []) for a in range(30) for p in range(6)]


def hotpot_row(index: int) -> dict[str, Any]:
    titles = [f"T{index}-{number}" for number in range(10)]
    sentences = [[f"{title} starts.", f" {document(title, 300)}"] for title in titles]
    return {
        "question": f"Who is of {index}?",
        "answer": f"Person {index}",
        "supporting_facts": {"title": [titles[2], titles[7], titles[2]], "sent_id": [0, 1, 1]},
        "context": {"title": titles, "sentences": sentences},
    }


HOTPOT = [hotpot_row(index) for index in range(25)]


@pytest.mark.parametrize(("task", "rows"), [("qa_1", SQUAD), ("qa_2", HOTPOT)])
@pytest.mark.parametrize("length", [512, 1024, 4096, 16384])
def test_the_right_documents_are_there_once(task: str, rows: list[dict[str, Any]], length: int) -> None:
    questions = read_rows(rows, "made up")
    by_text = {question.text: question for question in questions}
    samples = make_samples(task, quarters, length, 5, 1, sources=Sources(questions=questions))
    assert samples[:3] == make_samples(task, quarters, length, 3, 1, sources=Sources(questions=questions))
    assert len({sample.answers for sample in samples}) == 5
    for sample in samples:
        asked = by_text[sample.prompt.rpartition("Question: ")[2]]
        assert 0.98 * length <= quarters(sample.text) + 32 <= length
        for gold, position in zip(asked.gold, sample.meta["positions"], strict=True):
            assert sample.prompt.count(gold) == 1
            assert f"Document {position}:\n{gold}" in sample.prompt
        shown = [doc for doc in Sources(questions=questions).documents() if doc in sample.prompt]
        assert sample.meta["documents"] - len(shown) in (0, 1)  # the one that is cut
        grade = grade_match(f"{sample.prefix} {', '.join(sample.answers)}", sample.answers, "stop", every=False)
        assert grade.score == 1.0
        assert grade_match(sample.answers[-1], sample.answers, "stop", every=False).score == 1.0


def test_positions_of_the_right_document_are_spread() -> None:
    samples = make_samples("qa_1", quarters, 4096, 40, 3, sources=Sources(questions=read_rows(SQUAD, "made up")))
    shares = [sample.meta["positions"][0] / sample.meta["documents"] for sample in samples]
    assert min(shares) < 0.2
    assert max(shares) > 0.8
    assert 0.3 < sum(shares) / 40 < 0.75


def test_documents_of_the_same_article_come_first() -> None:
    (sample,) = make_samples("qa_1", quarters, 600, 1, 0, sources=Sources(questions=read_rows(SQUAD, "made up")))
    article = sample.answers[0].split()[1].split("-")[0]
    shown = [part.split("This is about ")[1] for part in sample.prompt.split("\n\n") if "This is about " in part]
    assert len(shown) > 3
    assert all(part.startswith(f"a{article}p") for part in shown)


def test_a_document_that_contains_a_right_one_is_left_out() -> None:
    gold = document("gold")
    questions = [
        Question("Q?", ("gold",), (gold,), (gold, f"{gold} And more.", *(document(str(i)) for i in range(40))))
    ]
    (sample,) = make_samples("qa_1", quarters, 2048, 1, 0, sources=Sources(questions=questions))
    assert sample.prompt.count(gold) == 1


def test_too_few_questions_or_documents_are_refused() -> None:
    questions = read_rows(SQUAD[:6], "made up")
    with pytest.raises(BenchmarkError, match=r"6 samples of qa_1 asked for; allowed: 1 to 5"):
        make_samples("qa_1", quarters, 1024, 6, 0, sources=Sources(questions=questions))
    with pytest.raises(BenchmarkError, match=r"8192 tokens are more than the documents of qa_1 fill.*up to \d+"):
        make_samples("qa_1", quarters, 8192, 1, 0, sources=Sources(questions=questions))
    with pytest.raises(BenchmarkError, match="qa_1 doesn't fit into 100 tokens"):
        make_samples("qa_1", quarters, 100, 1, 0, sources=Sources(questions=questions))


def squad_file() -> dict[str, Any]:
    articles: dict[str, list[dict[str, Any]]] = {}
    for row in SQUAD:
        answers = [{"text": text, "answer_start": 0} for text in row["answers"]["text"]]
        question = {"question": row["question"], "id": row["id"], "is_impossible": not answers, "answers": answers}
        articles.setdefault(row["title"], []).append({"context": row["context"], "qas": [question]})
    return {"version": "v2.0", "data": [{"title": title, "paragraphs": each} for title, each in articles.items()]}


def hotpot_file() -> list[dict[str, Any]]:
    return [
        {
            **row,
            "_id": "x",
            "supporting_facts": [[title, 0] for title in row["supporting_facts"]["title"]],
            "context": [list(pair) for pair in zip(*row["context"].values(), strict=True)],
        }
        for row in HOTPOT
    ]


@pytest.mark.parametrize(("data", "rows"), [(squad_file(), SQUAD), (hotpot_file(), HOTPOT)], ids=["squad", "hotpot"])
def test_a_file_and_rows_give_the_same_questions(data: Any, rows: list[dict[str, Any]], tmp_path: Path) -> None:
    whole, lines = tmp_path / "dev.json", tmp_path / "dev.jsonl"
    whole.write_text(json.dumps(data))
    lines.write_text("\n".join(map(json.dumps, rows)))
    assert read_questions(whole) == read_questions(lines) == read_rows(rows, "rows")


def test_questions_without_an_answer_give_documents_only() -> None:
    questions = read_rows(SQUAD, "made up")
    assert len(questions) == 150
    assert questions[0] == Question(
        "What is the capital of a0p1?",
        ("Town 0-1", "Town"),
        (SQUAD[1]["context"],),
        tuple(row["context"] for row in SQUAD[:6]),
    )
    first = read_rows(HOTPOT, "made up")[0]
    assert [gold.split("\n")[0] for gold in first.gold] == ["T0-2", "T0-7"]
    assert first.gold[0].startswith("T0-2\nT0-2 starts. This is about T0-2.")
    assert len(first.near) == 10


BAD_FILES = [
    ("dev.json", "{", "isn't JSON"),
    ("dev.json", "[" * 100_000, "isn't JSON"),
    ("dev.json", '"text"', "neither SQuAD"),
    ("dev.json", "3", "neither SQuAD"),
    ("dev.json", "{}", "neither SQuAD"),
    ("dev.json", '{"data": [{"title": "t", "paragraphs": 3}]}', "neither SQuAD"),
    ("dev.json", '[{"question": "q"}]', "neither SQuAD"),
    ("dev.json", '[{"question": "q", "answer": "a", "context": [], "supporting_facts": []}]', "neither SQuAD"),
    ("dev.json", "[]", "has no questions"),
    ("dev.json", '{"data": []}', "has no questions"),
    ("dev.jsonl", '{"question": "q"}', "question 0: title: field required.*title, context, question, answers"),
    ("dev.jsonl", "3", "question 0: row"),
    ("dev.jsonl", json.dumps({**SQUAD[1], "answers": {"text": [1]}}), "question 0: answers.text.0"),
    ("dev.jsonl", json.dumps(SQUAD[0]), "no question with an answer"),
]


@pytest.mark.parametrize(("name", "content", "message"), BAD_FILES)
def test_other_files_are_refused(name: str, content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(BenchmarkError, match=message):
        read_questions(tmp_path / name)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BenchmarkError, match="can't be read"):
        read_questions(tmp_path / "none.json")
