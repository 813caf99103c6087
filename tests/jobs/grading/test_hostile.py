"""Model output is hostile text: every grade ends in time, none ends the grader, and the next is as good as ever."""

import math
import re
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jobs.grading import OUTCOMES, find_boxed, find_hash, grade_number
from jobs.grading.mathematics import equivalent, grade_math
from jobs.grading.pool import Judges

SPARE_S = 15.0  # for a busy machine, and to start the next process
DEEP = 100_000

BOMBS = {
    "tower": r"9^{9^{9^{9}}}",
    "tower of factorials": "((((9!)!)!)!)!",
    "factorial": "99999999999!",
    "exponent": "1e999999999",
    "scientific": r"1.5\times 10^{999999999999}",
    "long digits": "7" * 1900,
    "megabytes of digits": "7" * 3_000_000,
    "open braces": r"\frac{" * DEEP,
    "nested fractions": r"\frac{1}{1+" * 150 + "1" + "}" * 150,
    "nested roots": r"\sqrt{" * 280 + "2" + "}" * 280,
    "deeply nested roots": r"\sqrt{" * DEEP + "2" + "}" * DEEP,
    "parentheses": "(" * 990 + "1" + ")" * 990,
    "open parentheses": "(" * 1900,
    "brackets": "[" * 900 + "]" * 900,
    "sets": r"\{" * 400 + r"\}" * 400,
    "bars": "|" * 1900,
    "carets": "2^" * 900 + "2",
    "minus": "-" * 1900 + "1",
    "sum": r"\sum_{k=1}^{10^{12}} \frac{k!}{k^k+\sin k}",
    "sums": r"\sum_{a=1}^{99999}\sum_{b=1}^{99999}\sum_{c=1}^{99999} \sin(abc)",
    "product": r"\prod_{k=1}^{10^{9}} (k^2+1)",
    "integral": r"\int_0^{\infty} \frac{\sin(x^7+e^x)}{x^{11}+\ln(x+3)+1} dx",
    "limit": r"\lim_{n\to\infty} \frac{(n!)^{n!}}{n^{n^n}}",
    "power of a sum": r"(a+b+c+d+e+f+g+h)^{5000}",
    "binomial": r"\binom{10^{12}}{10^{11}}",
    "matrix power": r"\begin{pmatrix}1&1\\1&0\end{pmatrix}^{10^{15}}",
    "union": r"\cup".join(["(1,2)"] * 200),
    "list": ",".join(["x"] * 900),
    "surrogate": "5\ud800",
    "surrogates": "\udfff\ud800" * 500,
    "NUL": "5\x00\x005",
    "control characters": "".join(map(chr, range(32))) + "\x7f\x85\u2028\u2029",
    "newline": "4\n+1\n\n",
    "lines of the protocol": 'true\n["1","1",1]\ntrue\r\n{"ready": true}',
    "quotes": "\"'\\\\\"'`",
    "bidirectional": "\u202e5\u202c",
    "emoji": "🙂" * 900,
    "dollars": "$" * 1900,
    "percent": "%" * 1900,
    "backslashes": "\\" * 1900,
    "texts": r"\text{" * 380,
    "spaces": "1" + " " * 1900 + "2",
    "code": "__import__('os').system('exit 1')",
    "attribute": r"().__class__.__bases__[0].__subclasses__()",
}


# Each of these keeps a process busy until it is killed, and stands for no other way to do so than one that isn't here.
SLOW = {
    "tower of factorials",
    "nested fractions",
    "parentheses",
    "open parentheses",
    "brackets",
    "sets",
    "bars",
    "minus",
}
SLOW |= {"carets", "sums", "product", "limit", "binomial"}


@pytest.fixture
def short_limit(monkeypatch: pytest.MonkeyPatch) -> float:
    """What keeps a process busy does so for ever, so that half a second shows it as well as five."""
    assert equivalent("x+1", "1+x") is True  # starting a process takes no part in the limit
    monkeypatch.setattr(Judges.ask, "__defaults__", (0.5,))
    return 0.5


@pytest.mark.parametrize(
    "bomb", [pytest.param(bomb, id=name, marks=[pytest.mark.slow] * (name in SLOW)) for name, bomb in BOMBS.items()]
)
def test_a_bomb_is_judged_in_time_and_the_next_answer_as_ever(
    bomb: str, short_limit: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = time.monotonic()
    grade = grade_math(rf"So \boxed{{{bomb}}}.", "1", "eos")
    assert time.monotonic() - start < short_limit + SPARE_S
    assert grade.outcome in {"wrong", "no_answer"}
    monkeypatch.undo()  # on a busy machine an easy answer can take half a second too
    assert grade_math("\\boxed{4\n+1}", "5", "eos").outcome == "correct"


def test_an_undecided_answer_says_so(short_limit: float) -> None:
    assert grade_math(r"\boxed{9^{9^{9^{9}}}}", "1", "eos").rule == "boxed, undecided in 5 s"


@pytest.mark.parametrize("bomb", BOMBS.values(), ids=BOMBS)
def test_number_graders_take_bombs(bomb: str) -> None:
    for text in (rf"\boxed{{{bomb}}}", f"#### {bomb}"):
        assert grade_number(text, "12", "eos").outcome in {"wrong", "no_answer"}


REPEATED = [
    r"\boxed{",
    r"\boxed{}",
    r"\boxed{1}",
    r"\boxed 1",
    r"\boxed",
    "\\",
    "{",
    "}",
    "#### ",
    "####\t*",
    "<think>",
]


@pytest.mark.parametrize("piece", REPEATED)
@pytest.mark.parametrize("find", [find_boxed, find_hash])
def test_extraction_takes_time_in_proportion(find, piece: str) -> None:  # type: ignore[no-untyped-def]
    """Eight times the text in far less than 64 times the time; the best of three, as others use the machine."""

    def seconds(count: int) -> float:
        text, times = piece * count + "x" + "}" * count, []
        for _ in range(3):
            start = time.process_time()
            find(text)
            times.append(time.process_time() - start)
        return min(times)

    assert seconds(40_000) < 32 * seconds(5_000) + 0.02


SPACES = "####" + " " * DEEP


@pytest.mark.parametrize("text", [SPACES, SPACES + "x", "####" + "\t *" * DEEP, r"\boxed" + " " * DEEP + "x"])
def test_spaces_after_a_marker(text: str) -> None:
    start = time.process_time()
    assert find_hash(text) is None
    assert find_boxed(text) is None
    assert time.process_time() - start < 2


PIECES = re.split(
    " (?!$)",
    r"\boxed{ \boxed{ \boxed \fbox{ { } } } \{ \} \frac{ \frac \sqrt{ \text{ \left( \right) \\ \% % $ \$ ^ _ , ; . = <"
    r" > ( ) [ ] <think> </think> #### 1 12 5 x i -3 0.5 1/2 π √ ٥ ５ ² ° − and or cm \pi \infty \overline{3} ' "
    '" 🙂 \n \t \x00 \ud800 \u2028 \u202e \x1b[0m  ',
)
OUTPUTS = st.binary(max_size=16).map(lambda draw: "".join(PIECES[each % len(PIECES)] for each in draw))
REFERENCES = ["5", r"\frac{1}{2}", "(1,2)", r"\text{C}", "x+1"]


@settings(max_examples=9500, deadline=None, suppress_health_check=list(HealthCheck))
@given(OUTPUTS, st.sampled_from(REFERENCES), st.sampled_from(["eos", "length", "error"]), st.booleans())
def test_any_text_gets_an_outcome(text: str, reference: str, reason: str, thinking_open: bool) -> None:
    grade = grade_math(text, reference, reason, thinking_open=thinking_open)
    assert grade.outcome in OUTCOMES
    assert (grade.outcome == "failed") == (reason == "error")
    assert (grade.outcome == "truncated") <= (reason == "length")
    assert (grade.outcome == "no_answer") <= (reason == "eos")
    assert grade.score == (grade.outcome == "correct")
    assert (grade.extracted is None) == (grade.outcome in {"failed", "truncated", "no_answer"})


@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.text(max_size=40), st.sampled_from(["eos", "length"]))
def test_so_does_any_unicode(text: str, reason: str) -> None:
    assert grade_math(text, "5", reason).outcome in OUTCOMES
    assert grade_math(rf"\boxed{{{text}}}", "5", reason).outcome in OUTCOMES


@settings(max_examples=600, deadline=None, suppress_health_check=list(HealthCheck))
@given(OUTPUTS, st.sampled_from(REFERENCES))
def test_any_answer_in_a_box_gets_a_verdict(answer: str, reference: str) -> None:
    assert equivalent(reference, answer) in {True, False, None}
    assert equivalent(answer, answer) is (answer != "")


@pytest.mark.parametrize("reference", ["5", r"\frac{1}{2}", "(1,2)", r"\text{Evelyn}", "x^2-1"])
def test_after_all_that_right_is_right(reference: str) -> None:
    assert grade_math(rf"\boxed{{{reference}}}", reference, "eos").correct
    assert math.isclose(grade_math(r"\boxed{(1-x)(-1-x)}", "x^2-1", "eos").score, 1.0)
