r"""Known answers for the graders; each line of the table is a way that someone's evaluation went wrong."""

import re
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs.grading import answer_part, find_boxed, find_hash, grade_digits, grade_number, number

BOXES = [
    (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
    (r"first \boxed{3}, wait, \boxed{7}", "7"),
    (r"\[ \boxed{42} \]", "42"),
    (r"\boxed 5", "5"),
    (r"\boxed 5.", "5"),
    (r"put it in \boxed{} and so on, so \boxed{12}", "12"),
    (r"so \boxed{12}, and never \boxed{}", "12"),
    (r"\boxed{\text{A}}", r"\text{A}"),
    (r"\boxed{\{1,2\}}", r"\{1,2\}"),
    (r"\boxed{\left\{ 1 \right.}", r"\left\{ 1 \right."),
    (r"\fbox{9}", "9"),
    (r"\boxed {8}", "8"),
    (r"\boxed{\boxed{6}}", "6"),
    (r"Mark your solution with \boxed ", None),
    (r"Mark your solution with \boxed and stop", None),
    (r"\boxedly{3}", None),
    (r"\boxed{12", None),
    (r"\boxed{3} but then \boxed{12", "3"),
    (r"\boxed{", None),
    ("\\boxed{a\\", None),
    ("\\\\boxed{5}", "5"),  # escaped twice
    (r"\boxed{\boxed{5} 6", "5"),
    (r"\boxed{\boxed{} 6}", r"\boxed{} 6"),
    (r"\boxed{5}} \boxed{6", "5"),
    (r"\boxed 1,000, \fbox{", "1,000"),
    (r"\boxed{5} \boxed B", "B"),
    (r"\boxed{5} \boxed Bee", "5"),
    ("", None),
]


@pytest.mark.parametrize(("text", "answer"), BOXES)
def test_last_complete_box(text: str, answer: str | None) -> None:
    found = find_boxed(text)
    assert (found.value if found else None) == answer


@given(st.text(alphabet="ab{}\\ 1", max_size=30), st.text(max_size=20).filter(lambda text: "\\" not in text))
def test_a_balanced_box_is_found_whole_whatever_precedes_it(inner: str, before: str) -> None:
    content = ("{" + inner.replace("\\", "").replace("{", "").replace("}", "") + "x}") * 2
    found = find_boxed(f"{before}\\boxed{{{content}}} .")
    assert found is not None
    assert found.value == content.strip()


def _boxes_one_by_one(text: str) -> str | None:
    """The definition, in quadratic time: for each box, from the last, the text up to the brace that closes it."""
    for start in reversed([match.end() for match in re.finditer(r"\\(?:boxed|fbox)(?![A-Za-z])\s*(?=\{)", text)]):
        depth, at = 0, start
        while at < len(text):
            depth += (text[at] == "{") - (text[at] == "}")
            if depth == 0:
                break
            at += 2 if text[at] == "\\" else 1
        if at < len(text) and text[start + 1 : at].strip():
            return text[start + 1 : at].strip()
    return None


PARTS = ["\\boxed{", "\\boxed", "\\fbox {", "\\boxedly{", "{", "}", "}", "\\", "\\\\", "a", " ", "\\{", "\\}", "\n"]


@settings(max_examples=500)
@given(st.lists(st.sampled_from(PARTS), max_size=14).map("".join))
def test_one_pass_finds_what_the_definition_says(text: str) -> None:
    found = find_boxed(text)
    assert (found.value if found else None) == _boxes_one_by_one(text)
    assert found is None or text[: found.end].endswith("}")


@given(st.text(alphabet="\\boxed{}# 123</think>$,.", max_size=60), st.sampled_from(["eos", "length", "error"]))
def test_graders_accept_any_text(text: str, reason: str) -> None:
    assert grade_number(text, "12", reason).outcome in {"correct", "wrong", "no_answer", "truncated", "failed"}
    grade = grade_digits(text, "0123", reason)
    assert (grade.outcome == "truncated") <= (reason == "length")


NUMBERS = [
    (r"3\text{ or }5", None),
    (r"1\text{ and }5", None),
    (r"\frac123", None),
    (r"\frac12", Fraction(1, 2)),
    (r"\frac{12}3", 4),
    ("1,000", 1000),
    ("$18.00", 18),
    (r"\$18", 18),
    (r"25\%", 25),
    ("-3.", -3),
    ("−3", -3),
    ("- 3", -3),
    ("007", 7),
    (".5", Fraction(1, 2)),
    ("1/2", Fraction(1, 2)),
    (r"\frac{1}{2}", Fraction(1, 2)),
    (r"-\dfrac{3}{4}", Fraction(-3, 4)),
    (r"\frac12", Fraction(1, 2)),
    (r"5\text{ dollars}", 5),
    (r"\text{42}", 42),
    (r"10{,}000", 10_000),
    (r"10\,000", 10_000),
    (r"90^\circ", 90),
    ("1,2", None),
    ("3 4", None),
    ("(1,2)", None),
    ("1/0", None),
    ("five", None),
    ("", None),
    ("9" * 200, None),
]


@pytest.mark.parametrize(("text", "value"), NUMBERS)
def test_numbers_are_exact(text: str, value: Fraction | int | None) -> None:
    assert number(text) == value


@given(st.integers(-(10**12), 10**12))
def test_any_integer_survives_its_spellings(value: int) -> None:
    for spelling in (str(value), f"{value:,}", f"${value}", f"{value}.", f"{value}.00"):
        assert number(spelling) == value
        assert grade_number(f"so\n#### {spelling}\n", str(value), "eos").outcome == "correct"


GSM = [
    ("… is 18.\n#### 18", "18", "eos", "correct", "hash"),
    ("#### 18", "18", "length", "truncated", "none"),  # may have been on its way to 180
    ("#### 18\n", "18", "length", "correct", "hash"),
    ("#### 18.", "18", "eos", "correct", "hash"),
    ("#### 1,018", "1018", "eos", "correct", "hash"),
    ("#### $18", "18", "eos", "correct", "hash"),
    ("#### **18**", "18", "eos", "correct", "hash"),
    ("#### -5", "-5", "eos", "correct", "hash"),
    ("#### 5", "-5", "eos", "wrong", "hash"),
    ("#### 3\nwait\n#### 18", "18", "eos", "correct", "hash"),
    (r"so \boxed{18}", "18", "eos", "correct", "boxed"),
    ("#### \\boxed{18}", "18", "eos", "correct", "boxed"),
    ("the answer is 18", "18", "eos", "no_answer", "none"),
    ("the answer is 18", "18", "length", "truncated", "none"),
    (r"so \boxed{18", "18", "length", "truncated", "none"),
    (r"so \boxed{18", "18", "eos", "no_answer", "none"),
    (r"<think>\boxed{18}</think> done", "18", "eos", "no_answer", "none"),
    (r"<think>\boxed{3}</think> #### 18", "18", "eos", "correct", "hash"),
    (r"\boxed{3}</think> so \boxed{18}", "18", "eos", "correct", "boxed"),
    ("<think> #### 18 and so on", "18", "length", "truncated", "none"),
    ("", "18", "eos", "no_answer", "none"),
    ("#### 18", "18", "error", "failed", "error"),
]


@pytest.mark.parametrize(("text", "reference", "reason", "outcome", "rule"), GSM)
def test_number_grader(text: str, reference: str, reason: str, outcome: str, rule: str) -> None:
    grade = grade_number(text, reference, reason)
    assert (grade.outcome, grade.rule) == (outcome, rule)


def test_the_last_number_is_taken_only_where_asked() -> None:
    assert grade_number("it is 17, no, 18 dollars", "18", "eos", last_number=True).outcome == "correct"
    assert grade_number("it is 17, no, 18 dollars", "18", "length", last_number=True).outcome == "truncated"


def test_a_prompt_that_opened_the_thinking_block() -> None:
    assert grade_number("#### 18\n", "18", "eos", thinking_open=True).outcome == "no_answer"
    assert grade_number("#### 3 </think> #### 18", "18", "eos", thinking_open=True).outcome == "correct"
    assert answer_part("a<think>b") == "a"


CHAINS = [
    ("… . #### 0365", "0365", "eos", "correct"),
    ("… . #### 365", "0365", "eos", "wrong"),
    ("… . #### 03651", "0365", "eos", "wrong"),
    ("… . #### 0365", "0365", "length", "correct"),
    ("… . #### 036", "0365", "length", "truncated"),
    ("… . ####", "0365", "length", "truncated"),
    ("x1 =4 .", "0365", "length", "truncated"),
    ("x1 =4 .", "0365", "eos", "no_answer"),
    ("#### 1111 … #### 0365", "0365", "eos", "correct"),
]


@pytest.mark.parametrize(("text", "reference", "reason", "outcome"), CHAINS)
def test_digit_grader_keeps_leading_zeros(text: str, reference: str, reason: str, outcome: str) -> None:
    assert grade_digits(text, reference, reason).outcome == outcome


def test_hash_takes_the_last() -> None:
    found = find_hash("#### 1\n#### 2,500 left")
    assert found is not None
    assert found.value == "2,500"
