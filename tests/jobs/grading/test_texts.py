"""Known values of LongBench's metrics, worked out by hand, and properties that hold for any text."""

import json
import sys
import time
from collections.abc import Callable
from typing import get_args

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from jobs.benchmarks.longbench.tasks import TASKS
from jobs.grading import texts
from jobs.grading.texts import (
    Metric,
    classification,
    count,
    decode_reference,
    edit_similarity,
    encode_reference,
    grade_text,
    qa_f1,
    qa_f1_zh,
    retrieval,
    retrieval_zh,
    rouge_l_zh,
)
from tiercache.errors import GradingError

KNOWN: list[tuple[Callable[[str, str], float], str, str, float]] = [
    # 2 × common words / (words + words)
    (qa_f1, "Paris", "Paris", 1.0),
    (qa_f1, "paris.", "Paris", 1.0),
    (qa_f1, "The city of Paris", "Paris", 0.5),
    (qa_f1, "the cat", "a cat", 1.0),
    (qa_f1, "Theatre", "atre", 0.0),
    (qa_f1, "cat cat dog", "cat dog dog", 2 / 3),
    (qa_f1, "cat cat cat", "cat", 0.5),
    (qa_f1, "in the year 1998", "1998", 0.5),
    (qa_f1, "well-known", "wellknown", 1.0),
    (qa_f1, "Mr. Smith's dog", "mr smiths dog", 1.0),
    (qa_f1, " yes \n", "yes", 1.0),
    (qa_f1, "no", "yes", 0.0),
    (qa_f1, "", "yes", 0.0),
    (qa_f1, "the a an", "yes", 0.0),
    (qa_f1, "...", "the", 0.0),
    (qa_f1, "red green blue", "red", 0.5),
    (qa_f1, "一 b", "b", 2 / 3),
    (qa_f1_zh, "北京", "北京", 1.0),
    (qa_f1_zh, "北京。", "北京", 1.0),
    (qa_f1_zh, "《北京》！", "北京", 1.0),
    (qa_f1_zh, "北京 上海", "北京", 2 / 3),
    (qa_f1_zh, "北京，上海", "上海、北京", 1.0),
    (qa_f1_zh, "北京北京", "北京", 2 / 3),
    (qa_f1_zh, "ABC", "abc", 1.0),
    (qa_f1_zh, "，。", "北京", 0.0),
    (qa_f1_zh, "", "北京", 0.0),
    (qa_f1_zh, "上海", "北京", 0.0),
    (qa_f1_zh, "￥3", "3", 2 / 3),
    (rouge_l_zh, "北京", "北京", 1.0),
    (rouge_l_zh, "北京 上海", "北京", 2 / 3),
    (rouge_l_zh, "", "北京", 0.0),
    (retrieval, "Paragraph 12", "Paragraph 12", 1.0),
    (retrieval, "12", "Paragraph 12", 1.0),
    (retrieval, "Paragraph 1", "Paragraph 12", 0.0),
    (retrieval, "Paragraph 12 or 3", "Paragraph 12", 0.5),
    (retrieval, "12, 12 and 4", "Paragraph 12", 2 / 3),
    (retrieval, "012", "Paragraph 12", 0.0),
    (retrieval, "none", "Paragraph 12", 0.0),
    (retrieval_zh, "段落7", "段落7", 1.0),
    (retrieval_zh, "第7段，不是第8段", "段落7", 0.5),
    (retrieval_zh, "没有", "段落7", 0.0),
    (count, "17", "17", 1.0),
    (count, "There are 17 of 30.", "17", 0.5),
    (count, "17 17 17 1", "17", 0.75),
    (count, "seventeen", "17", 0.0),
    (count, "1 7", "17", 0.0),
    # 1 - (insertions + deletions) / (characters + characters)
    (edit_similarity, "return x", "return x", 1.0),
    (edit_similarity, "abcd", "abce", 0.75),
    (edit_similarity, "ab", "abcd", 2 / 3),
    (edit_similarity, "xyz", "abc", 0.0),
    (edit_similarity, "\n\nreturn x\nreturn y", "return x", 1.0),
    (edit_similarity, "```python\nreturn x\n```", "return x", 1.0),
    (edit_similarity, "# sum\n// sum\nreturn x", "return x", 1.0),
    (edit_similarity, "return x\r\nreturn y", "return x", 1.0),
    (edit_similarity, "# only a comment", "return x", 0.0),
    (edit_similarity, "", "return x", 0.0),
]


@pytest.mark.parametrize(("metric", "prediction", "answer", "score"), KNOWN)
def test_known_score(metric: Callable[[str, str], float], prediction: str, answer: str, score: float) -> None:
    assert metric(prediction, answer) == pytest.approx(score, abs=1e-12)


CLASSES = ["Number", "Number of people", "City", "City in a state", "Date"]


@pytest.mark.parametrize(
    ("prediction", "answer", "score"),
    [
        ("Date", "Date", 1.0),
        ("It's a Date.", "Date", 1.0),
        ("date", "Date", 0.0),
        ("Date or City", "Date", 0.5),
        ("City in a state", "City in a state", 1.0),  # names `City` too, which is part of the right name
        ("City in a state", "City", 0.5),
        ("City", "City in a state", 0.0),
        ("Number of people, City, Date", "Number of people", 1 / 3),
        ("", "Date", 0.0),
        ("no idea", "Date", 0.0),
    ],
)
def test_classification(prediction: str, answer: str, score: float) -> None:
    assert classification(prediction, answer, CLASSES) == pytest.approx(score)


LATIN = st.lists(st.sampled_from(["cat", "dog", "sat", "ran", "b", "c.", "d,", "x"]), min_size=1, max_size=12).map(
    " ".join
)
CHINESE = st.lists(st.sampled_from(["北京", "上海", "会议", "讨论", "经济", "，", "。"]), min_size=1, max_size=8).map(
    "".join
)


@given(LATIN, LATIN)
def test_f1_and_edit_similarity_are_symmetric(left: str, right: str) -> None:
    assert qa_f1(left, right) == qa_f1(right, left)
    assert edit_similarity(left, right) == pytest.approx(edit_similarity(right, left))
    assert 0 <= qa_f1(left, right) <= 1


@given(CHINESE, CHINESE)
def test_chinese_f1_is_symmetric(left: str, right: str) -> None:
    assert qa_f1_zh(left, right) == qa_f1_zh(right, left)
    assert 0 <= rouge_l_zh(left, right) <= 1


GOLD = {
    "count": st.integers(0, 99).map(str),
    "retrieval": st.integers(1, 30).map(lambda number: f"Paragraph {number}"),
    "retrieval_zh": st.integers(1, 30).map(lambda number: f"段落{number}"),
    "classification": st.sampled_from(CLASSES),
    "qa_f1_zh": CHINESE.map(lambda text: f"北{text}"),
    "rouge_l_zh": CHINESE,
}


@pytest.mark.parametrize("name", TASKS)
@settings(max_examples=30)
@given(data=st.data())
def test_the_right_answer_is_correct_whatever_the_task(name: str, data: st.DataObject) -> None:
    task = TASKS[name]
    gold = data.draw(GOLD.get(task.metric, LATIN))
    reference = encode_reference(["something else 0" if task.metric == "qa_f1" else gold, gold], CLASSES)
    for reason, text in (("stop", gold), ("length", gold), ("stop", f"<think>x</think>\n\n{gold}")):
        grade = grade_text(text, reference, reason, metric=task.metric, first_line=task.first_line)
        assert (grade.outcome, grade.score, grade.rule) == ("correct", 1.0, task.metric)
    assert grade_text("<think>" + gold, reference, "length", metric=task.metric).outcome == "truncated"
    assert grade_text(gold, reference, "length", metric=task.metric, thinking_open=True).outcome == "truncated"


@pytest.mark.parametrize(
    ("text", "reason", "thinking_open", "outcome"),
    [
        ("Paris", "stop", False, "correct"),
        ("Paris", "length", False, "correct"),
        ("Paris, France", "length", False, "wrong"),
        ("", "stop", False, "no_answer"),
        (" \n\t", "stop", False, "no_answer"),
        ("", "length", False, "no_answer"),
        ("Paris", "stop", True, "no_answer"),
        ("Paris", "length", True, "truncated"),
        ("</think>", "length", True, "no_answer"),
        ("</think>Paris", "length", True, "correct"),
        ("<think>Paris", "stop", False, "no_answer"),
        ("Paris <think>or", "length", False, "truncated"),
        ("Paris", "error", False, "failed"),
    ],
)
def test_outcomes(text: str, reason: str, thinking_open: bool, outcome: str) -> None:
    reference = encode_reference(["Paris"])
    assert grade_text(text, reference, reason, metric="qa_f1", thinking_open=thinking_open).outcome == outcome


def test_the_best_reference_answer_counts_and_part_marks_are_kept() -> None:
    grade = grade_text("the city of Paris", encode_reference(["Rome", "Paris"]), "stop", metric="qa_f1")
    assert (grade.outcome, grade.score, grade.extracted, grade.rule) == ("wrong", 0.5, "the city of Paris", "qa_f1")


def test_only_the_first_line_is_graded_where_asked() -> None:
    reference = encode_reference(["Paris"])
    assert grade_text("\n\nParis\nQuestion: next", reference, "length", metric="qa_f1", first_line=True).correct
    assert grade_text("\n\nParis\nQuestion: next", reference, "length", metric="qa_f1").score == 0.5


def test_what_was_graded_is_kept_up_to_a_length() -> None:
    reference = encode_reference(["return x"])
    line = grade_text("```\n  return x\n```", reference, "stop", metric="edit_similarity")
    assert line.extracted == "return x"
    assert line.score == pytest.approx(1 - 2 / 18)  # indentation counts
    assert grade_text("```", reference, "stop", metric="edit_similarity").outcome == "no_answer"
    assert grade_text("x" * 1000, reference, "stop", metric="qa_f1").extracted == "x" * 300


@given(st.lists(st.text(), min_size=1).filter(lambda answers: any(map(str.strip, answers))), st.lists(st.text()))
def test_references_survive_the_round_trip(answers: list[str], classes: list[str]) -> None:
    assume(not classes or any(map(str.strip, classes)))
    known = decode_reference(encode_reference(answers, classes))
    assert known == texts.TextReference(tuple(answers), tuple(classes))


@pytest.mark.parametrize("answers", [[], [""], [" "], "Paris", [3], [None], None, {"a": 1}])
def test_answers_that_are_no_list_of_text_are_refused(answers: object) -> None:
    with pytest.raises(GradingError, match="answers has to be a list of text"):
        encode_reference(answers)  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["", "Paris", "[]", "{}", '{"answers": ["a"]}', "[" * 100_000])
def test_a_reference_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(GradingError, match="JSON object of answers and classes"):
        decode_reference(text)


@pytest.mark.parametrize(
    ("metric", "message"),
    [
        ("retrieval", "`Paragraph 7`"),
        ("retrieval_zh", "`段落7`"),
        ("count", "whole number"),
        ("classification", "names of all classes"),
        ("bleu", "allowed are qa_f1"),
    ],
)
def test_a_reference_that_does_not_fit_its_metric_is_refused(metric: Metric, message: str) -> None:
    with pytest.raises(GradingError, match=message):
        grade_text("Paris", encode_reference(["Paris"]), "stop", metric=metric)


def test_without_jieba_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    texts._jieba.cache_clear()
    monkeypatch.setitem(sys.modules, "jieba", None)
    with pytest.raises(GradingError, match=r"tiercache-eval\[chinese\]"):
        qa_f1_zh("北京", "北京")
    texts._jieba.cache_clear()


LONG = "word " * 2_000
HOSTILE = {
    "one word": "a" * 3_000_000,
    "words": "a b. " * 600_000,
    "stops": ". " * 1_000_000,
    "braces": "{" * 1_000_000,
    "NULs": "\0" * 1_000_000,
    "numbers": " ".join(map(str, range(100_000))),
    "digits": "1" * 1_000_000,
    "lines": "\n#" * 500_000,
    "Chinese": "会议讨论" * 300_000,
    "surrogates": "\ud800" * 500_000,
    "thinking": "<think>" * 100_000,
    "blank": " " * 2_000_000 + "x",
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_texts_are_graded_in_short_time(kind: str) -> None:
    for metric in get_args(Metric):
        gold = {"count": "7", "retrieval": "Paragraph 7", "retrieval_zh": "段落7"}.get(metric, LONG)
        reference = json.dumps({"answers": [gold], "classes": CLASSES})
        start = time.process_time()
        assert 0 <= grade_text(HOSTILE[kind], reference, "stop", metric=metric).score <= 1
        assert time.process_time() - start < 5, metric
