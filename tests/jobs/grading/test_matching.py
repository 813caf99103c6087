"""Answers found as parts of a text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.grading.matching import grade_match
from tiercache.errors import GradingError

TWO = ("Alpha", "beta")
CASES = [
    # text, references, finish, every, outcome, score, extracted
    ("ALPHA and Beta.", TWO, "stop", True, "correct", 1.0, "Alpha, beta"),
    ("alphabeta", TWO, "length", True, "correct", 1.0, "Alpha, beta"),
    ("only beta", TWO, "stop", True, "wrong", 0.5, "beta"),
    ("only beta", TWO, "length", True, "wrong", 0.5, "beta"),
    ("only beta", TWO, "stop", False, "correct", 1.0, "beta"),
    ("gamma", TWO, "stop", True, "wrong", 0.0, "gamma"),
    ("gamma", TWO, "length", False, "truncated", 0.0, None),
    ("  \n", TWO, "stop", False, "no_answer", 0.0, None),
    ("", TWO, "length", False, "truncated", 0.0, None),
    ("alpha beta", TWO, "error", True, "failed", 0.0, None),
    ("alpha</think> gamma", TWO, "stop", False, "wrong", 0.0, "gamma"),
    ("gamma</think> alpha", TWO, "stop", False, "correct", 1.0, "Alpha"),
    ("Straße 5", ("STRASSE",), "stop", False, "correct", 1.0, "STRASSE"),
    ("x" * 500, TWO, "stop", False, "wrong", 0.0, "x" * 200),
]


@pytest.mark.parametrize(("text", "references", "finish", "every", "outcome", "score", "extracted"), CASES)
def test_known_verdicts(
    text: str, references: tuple[str, ...], finish: str, every: bool, outcome: str, score: float, extracted: str | None
) -> None:
    grade = grade_match(text, references, finish, every=every)
    assert (grade.outcome, grade.score, grade.extracted) == (outcome, score, extracted)


def test_an_open_thinking_block_has_no_answer() -> None:
    assert grade_match("alpha", TWO, "stop", every=False, thinking_open=True).outcome == "no_answer"
    assert grade_match("alpha", TWO, "length", every=False, thinking_open=True).outcome == "truncated"
    assert grade_match("so</think>alpha", TWO, "stop", every=False, thinking_open=True).outcome == "correct"


@given(st.text(), st.lists(st.text(min_size=1).filter(str.strip), min_size=1, max_size=4), st.booleans())
def test_the_score_is_the_share_found(text: str, references: list[str], every: bool) -> None:
    text = text.replace("<", "")
    grade = grade_match(text, references, "stop", every=every)
    found = [each.casefold() in text.strip().casefold() for each in references]
    assert grade.score == (sum(found) / len(found) if every else float(any(found)))
    assert (grade.outcome == "correct") == (grade.score == 1.0)


@pytest.mark.parametrize("references", [(), ("a", ""), (" ",)])
def test_empty_references_are_refused(references: tuple[str, ...]) -> None:
    with pytest.raises(GradingError, match="references"):
        grade_match("text", references, "stop", every=True)
