r"""Known answers for the choice grader; most lines are ways in which a letter is read where none was meant."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.grading.choice import grade_choice
from tiercache.errors import GradingError

FOUND = [
    (r"\boxed{C}", "C", "boxed"),
    (r"\boxed{\text{C}}", "C", "boxed"),
    (r"\boxed{\textbf{(C)}}", "C", "boxed"),
    (r"\boxed{(C)}", "C", "boxed"),
    (r"\boxed{C. some text}", "C", "boxed"),
    (r"\boxed{\text{C. some text}}", "C", "boxed"),
    (r"\boxed{C: \frac{1}{2}}", "C", "boxed"),
    (r"\boxed{c}", "C", "boxed"),
    (r"\boxed C", "C", "boxed"),
    (r"So $\boxed{B}$, no, $\boxed{\mathrm{D}}$.", "D", "boxed"),
    (r"\boxed{B}. Answer: C", "B", "boxed"),
    (r"The mass is \boxed{42}. Answer: C", "C", "stated"),
    ("The answer is indeed D. 98 F.", "D", "stated"),
    ("The answer is (C).", "C", "stated"),
    ("The answer is C", "C", "stated"),
    ("The answer is C because plants need light.", "C", "stated"),
    ("The answer is C, since plants need light.", "C", "stated"),
    ("The answer is C, I think.", "C", "stated"),
    ("The answer is C (sunlight).", "C", "stated"),
    ("The answer is C - sunlight.", "C", "stated"),
    ("the answer is (c) sunlight", "C", "stated"),
    ("answer: c", "C", "stated"),
    ("So the answer is c.", "C", "stated"),
    ("Answer: C", "C", "stated"),
    ("ANSWER: C", "C", "stated"),
    ("Answer: C. Sunlight", "C", "stated"),
    ("**Answer:** C", "C", "stated"),
    ("**Answer: C**", "C", "stated"),
    ("**Answer**: (C) sunlight", "C", "stated"),
    ("The correct answer is **C**.", "C", "stated"),
    ("The correct answer is:\n\n**C) Sunlight**", "C", "stated"),
    (r"Final answer: $\text{C}$", "C", "stated"),
    ("The best choice is option C.", "C", "stated"),
    ("The answer is therefore D.", "D", "stated"),
    ("The answer is (B). Wait. The answer is (D), finally.", "D", "stated"),
    ("The answer is D. It isn't A.\nB", "D", "stated"),
    ("The wrong answer is B. The answer is A.", "A", "stated"),
    ("Answer: A\nA dog barks.", "A", "stated"),
    ("C", "C", "last-line"),
    (" (C) \n", "C", "last-line"),
    ("C.", "C", "last-line"),
    ("**C**", "C", "last-line"),
    ("**(C)**", "C", "last-line"),
    ("(c)", "C", "last-line"),
    ("Plants need light, so A and B are out.\n\nC", "C", "last-line"),
    ("It has to be this one:\n**C.**", "C", "last-line"),
    ("Option C", "C", "last-line"),
    ("C) because plants need light", "C", "first-letter"),
    ("C. Sunlight", "C", "first-letter"),
    ("(C) Sunlight", "C", "first-letter"),
    ("**C** is what plants need.", "C", "first-letter"),
    ("**C. Sunlight** is what a plant needs.", "C", "first-letter"),
    ("C. A plant needs light.", "C", "first-letter"),
    ("C\nPlants need light.", "C", "first-letter"),
    ("(c) sunlight", "C", "first-letter"),
    ("<think>Is it A? Answer: A</think>\n\nAnswer: C", "C", "stated"),
]


@pytest.mark.parametrize(("text", "letter", "rule"), FOUND)
def test_letter_and_rule(text: str, letter: str, rule: str) -> None:
    grade = grade_choice(text, letter, "stop")
    assert (grade.outcome, grade.extracted, grade.rule, grade.score) == ("correct", letter, rule, 1.0)
    other = grade_choice(text, "E", "stop")
    assert (other.outcome, other.extracted, other.score) == ("wrong", letter, 0.0)


NOT_FOUND = [
    "",
    "A",  # replaced below by choices without it
    "A dog needs food.",
    "a dog needs food",
    "I think plants need light.",
    "Answer: A dog needs food.",
    "The answer is a dog.",
    "The answer is a matter of taste.",
    "**A dog** needs food.",
    "The answer is A-frame houses.",
    "The answer is A.M. radio.",
    "The answer is not C.",
    "The answer isn't C",
    "The answer is Clearly",
    "The answer is A and C.",
    "Answer: A, B, C or D",
    "The answer is A or B",
    r"\boxed{A, C}",
    r"\boxed{A dog}",
    r"\boxed{}",
    r"\boxed{F}",
    r"\boxed{42}",
    "The answer is F.",
    "Answer: 3",
    "C) is good, and B) is good too",
    "C. Or maybe D?",
    "a* search finds it",
    "A* search finds it",
    "Vitamin C",
    "Between B and C there is no difference",
    "The wrong answer is B.",
    "<think>The answer is C.",
    "<think>Answer: C</think> No idea.",
]


@pytest.mark.parametrize("text", NOT_FOUND)
def test_no_letter_is_guessed(text: str) -> None:
    choices = "BCD" if text == "A" else "ABCDE"
    grade = grade_choice(text, "C", "stop", choices=choices)
    assert (grade.outcome, grade.extracted, grade.score) == ("no_answer", None, 0.0)


CUT = [
    ("The answer is (C). To see why, ta", "correct"),
    (r"\boxed{C} is r", "correct"),
    (r"\boxed{C}", "correct"),
    ("Answer: C\n", "correct"),
    ("The answer is C", "truncated"),  # may be on its way to `Clear water`
    ("The answer is", "truncated"),
    (r"\boxed C", "truncated"),
    (r"\boxed{\text{C", "truncated"),
    ("C", "truncated"),
    ("C) because pla", "truncated"),
    ("", "truncated"),
    ("<think>The answer is (C). Wa", "truncated"),
]


@pytest.mark.parametrize(("text", "outcome"), CUT)
def test_a_cut_generation_counts_by_explicit_forms_only(text: str, outcome: str) -> None:
    assert grade_choice(text, "C", "length").outcome == outcome


def test_an_open_thinking_block_holds_no_answer() -> None:
    assert grade_choice("Answer: C", "C", "length", thinking_open=True).outcome == "truncated"
    assert grade_choice("Answer: C", "C", "stop", thinking_open=True).outcome == "no_answer"
    assert grade_choice("Answer: B</think>Answer: C", "C", "stop", thinking_open=True).correct


@pytest.mark.parametrize("reason", ["error", "failed"])
def test_a_generation_that_does_not_exist_is_failed(reason: str) -> None:
    assert grade_choice("C", "C", reason).outcome == "failed"


@pytest.mark.parametrize(("reference", "choices"), [("F", "ABCDE"), ("", "ABCD"), ("1", "1234"), ("AB", ["AB", "C"])])
def test_an_impossible_reference_is_refused(reference: str, choices: str) -> None:
    with pytest.raises(GradingError, match="has to be one of the choices"):
        grade_choice("C", reference, "stop", choices=choices)


def test_references_and_choices_may_be_lower_case() -> None:
    assert grade_choice("C", "c", "stop", choices=["a", "b", "c"]).correct


@given(st.text(alphabet="ABCF ().*\\boxed{}answer is:\n'</think>", max_size=80), st.sampled_from(["stop", "length"]))
def test_any_text_has_a_verdict(text: str, reason: str) -> None:
    grade = grade_choice(text, "C", reason, choices="ABC")
    assert grade.extracted is None or grade.extracted in "ABC"
    assert grade.correct == (grade.extracted == "C")
    assert (grade.outcome == "truncated") <= (reason == "length")


@given(st.text(max_size=40).filter(lambda text: "<" not in text), st.sampled_from("ABCDE"))
def test_a_statement_at_the_end_holds_whatever_precedes_it(before: str, letter: str) -> None:
    before = before.replace("\\", "")
    assert grade_choice(f"{before}\nThe answer is ({letter}).", letter, "stop").rule == "stated"


HOSTILE = [
    "\\boxed{",
    "\\boxed{\\text{",
    "answer is ",
    "answer: ((",
    "**",
    "A) ",
    "answer:" + " " * 50,
    "\n",
    "{",
    "\x00",
    "a",
]


@pytest.mark.parametrize("unit", HOSTILE)
def test_megabytes_take_linear_time(unit: str) -> None:
    start = time.process_time()
    grade_choice(unit * (1_000_000 // len(unit)), "C", "stop")
    assert time.process_time() - start < 10
