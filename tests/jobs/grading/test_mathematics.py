r"""Known verdicts on mathematical answers; many lines are a way that someone's evaluation went wrong.

A table line is `reference == answer ;; answer ;; …`.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.grading.mathematics import GRADER_VERSION, MAX_CHARS, equivalent, grade_math

RIGHT = r"""
\frac{1}{2} == \frac12 ;; \frac 12 ;; \dfrac{1}{2} ;; \tfrac12 ;; 1/2 ;; 0.5 ;; .5 ;; 0.50 ;; \frac{2}{4}
\frac{1}{2} == $\frac{1}{2}$ ;; \left(\frac12\right)
0.5 == \frac{1}{2} ;; 1/2 ;; \cfrac{1}{2}.
-\frac{1}{2} == \frac{-1}{2} ;; \frac{1}{-2} ;; -0.5 ;; −0.5 ;; -1/2
\frac{3}{2} == 1\frac{1}{2} ;; 1\frac12 ;; 1 1/2 ;; 1.5
-1\frac{1}{2} == -1.5 ;; -\frac{3}{2}
\frac13 == 0.\overline{3} ;; 0.\bar{3} ;; \frac{2}{6}
0.1\overline{6} == \frac16
\sqrt{3} == \sqrt3 ;; \sqrt 3 ;; √3 ;; sqrt(3) ;; \frac{3}{\sqrt{3}}
2\sqrt{3} == \sqrt{12} ;; 2\sqrt3 ;; 2\sqrt{3}\text{ cm} ;; 2\sqrt{3} units ;; 2.0\sqrt{3}
\frac{\sqrt{2}}{2} == \frac{1}{\sqrt2}
\sqrt{2}+\sqrt{3} == \sqrt{5+2\sqrt{6}}
\pi == π ;; 1.0\pi ;; \frac{2\pi}{2}
12\pi == 12π ;; 12 \pi\text{ square inches} ;; 12\pi \text{ cm}^2 ;; 12\pi cm^2
10000 == 10{,}000 ;; 10,000 ;; 10\,000 ;; 10 000 ;; 10^4 ;; 10,\!000
1200 == 1.2\times 10^3 ;; 1.2·10^{3}
5 == \$5 ;; \$5.00 ;; 5. ;; +5 ;; 5.0 ;; x=5 ;; 2+3=5 ;; {5} ;; \text{5} ;; \mathbf{5} ;; \(5\) ;; 4+1 ;; |-5| ;; 5\\
5 == 5\text{ cm} ;; 5 cm ;; 5\text{ cm}^2 ;; 5\mbox{ inches} ;; 5\,\mathrm{m/s} ;; 5 apples ;; \text{5 apples} 
5 == 5 cm² ;; 5^\circ ;; 5°
5\text{ cm} == 5 ;; 5\text{ centimeters} ;; 5\textrm{ cm} ;; 5cm
90^\circ == 90 ;; 90^{\circ} ;; 90\text{ degrees} ;; 90°
50 == 50\% ;; 50% ;; 50\text{ percent} ;; 50 percent ;; 50\text{\%}
50\% == 50 ;; 0.5 ;; \frac12
0.5 == 50\%
12.5\% == \frac{1}{8} ;; 12.5
5 == ٥ ;; ５ ;; ५ ;; ５．
1024 == 2^{10} ;; 1,024
120 == 5! ;; \frac{6!}{6}
10 == \binom{5}{2} ;; \log_2 1024 ;; \boxed{10} ;; \sum_{k=1}^{4} k
2^{100} == 1267650600228229401496703205376
x^2+1 == 1+x^2 ;; x^{2} + 1 ;; x²+1
x^2-5x+6 == (x-2)(x-3) ;; (2-x)(3-x)
\frac{n(n+1)}{2} == \frac{n^2+n}{2} ;; n(n+1)/2
\frac{x+2}{7} == \frac{x}{7}+\frac27
2^{n+1} == 2\cdot 2^n
|x| == \sqrt{x^2}
x == x+0 ;; \frac{2x}{2}
1 == \sin^2 x+\cos^2 x
\tan x == \frac{\sin x}{\cos x}
\frac{1}{x} == x^{-1}
y=2x+3 == 2x+3 ;; y = 3+2x ;; y-2x=3
2x+3 == y=2x+3 ;; f(x)=2x+3
x^2+y^2=1 == x^2+y^2-1=0
-1 == i^2 ;; e^{i\pi}
6-5i == -5i+6 ;; 6 - 5\mathrm{i}
\frac12+\frac{i}{2} == \frac{1+i}{2}
1,2,3 == 3,1,2 ;; \{3,2,1\} ;; 1, 2, 3 ;; 1,2\text{ and }3
\{1,2\} == 2,1 ;; \left\{2, 1\right\}
3,5 == x=3, x=5 ;; x=5\text{ or }x=3 ;; 5 or 3
1+\sqrt{19},1-\sqrt{19} == 1\pm\sqrt{19} ;; 1 - \sqrt{19}, 1 + \sqrt{19}
(1,2) == (1, 2) ;; \left( 1 , 2 \right) ;; (x,y)=(1,2) ;; \langle 1,2\rangle ;; (1.0,\frac{4}{2}) ;; 1,2
(3,\frac{\pi}{2}) == \left(3,\pi/2\right)
(1,2),(3,4) == (3,4),(1,2) ;; \{(3,4),(1,2)\}
[0,1) == \left[0,1\right) ;; [0,1.0) ;; 0\le x<1
(-\infty,2)\cup(3,\infty) == (3,\infty)\cup(-\infty,2) ;; (-∞,2)∪(3,∞)
x \ge 5 == 5 \le x ;; [5,\infty) ;; x≥5
[-2,7] == x\in[-2,7] ;; -2\le x\le 7
\begin{pmatrix}1&2\\3&4\end{pmatrix} == \begin{bmatrix} 1 & 2 \\ 3 & 4 \end{bmatrix}
\begin{pmatrix}0.5\\2\end{pmatrix} == \begin{pmatrix} \frac12 \\ 2 \end{pmatrix}
\emptyset == \varnothing ;; \{\}
2516_8 == 2516_{8} ;; 2516
\text{Evelyn} == Evelyn ;; \text{evelyn} ;; \textbf{Evelyn} ;; \mathrm{Evelyn} ;; \text{Evelyn}.
\text{no solution} == no solution ;; \text{No solution}
\text{(C)} == C ;; (C) ;; \text{C} ;; \textbf{(C)} ;; \mathrm{C}
\text{C} == (C) ;; c
\text{June 20} == \text{June  20}
"""

WRONG = r"""
\frac13 == 0.33 ;; 0.333333 ;; 0.3333333333333333 ;; 0.\overline{2} ;; 3 ;; -\frac13
\frac{243}{625} == \frac{243}{626}
0.3 == 0.30000000000000004
0 == 0.\overline{3} ;; 10^{-20} ;; \emptyset
\pi == 3.14 ;; 3.141592653589793 ;; \frac{22}{7}
\sqrt{2} == 1.41421356237 ;; \sqrt3 ;; \sqrt{2}+10^{-9}
1.6\times 10^{-19} == 3.2\times 10^{-19}
2^{100} == 1267650600228229401496703205377
11/2 == 1 1/2
12 == 1, 2 ;; 1 2 ;; \text{twelve} ;; 12,000 ;; 12x ;; 12+C
15 == 1\text{ or }5 ;; 1\text{ and }5
5 == y=6 ;; 5, 6 ;; 5 or 6 ;; 5x ;; -5 ;; 5\text{ million} ;; 5 thousand ;; 5\text{ or more} ;; 5 + \epsilon
5, 6 == 5 ;; 5, 7 ;; 5, 6, 7
2 == 2ab ;; 2x ;; x
3t == 3 ;; 3h ;; 3t+1
2m+3t == 2m+3
5\text{ m} == 5\text{ cm} ;; 6\text{ m}
5\text{ cm}^2 == 5\text{ cm}^3
10\text{ a.m.} == 10\text{ p.m.}
0.5\% == 50 ;; 0.05 ;; 5\%
50 == 0.5\% ;; 0.5 ;; 5\%
2516_8 == 2517_8 ;; 2516_9 ;; 1358
x^2+1 == x^2-1 ;; y^2+1 ;; x^2
\frac{n(n+1)}{2} == \frac{n(n-1)}{2}
(x+1)^{10} == x^{10}+1
\frac{a}{b} == \frac{b}{a}
a-b == b-a
x == \sqrt{x^2} ;; x_1
x_1 == x_2
x=5 == y=5 ;; x=6
y=2x == y=3x
2x+3y=6 == 2x+3y=7
6-5i == 6+5i
(1,2) == (2,1) ;; 2,1 ;; [1,2] ;; \{1,2\} ;; (1,3) ;; (1,2,3) ;; \langle 2,1\rangle
(2,1) == (1,2)
(1,2,3) == (3,2,1)
(1,2),(3,4) == (1,2),(4,3) ;; (2,1),(3,4)
\{1,2\} == (1,2) ;; (2,1) ;; \{1,3\}
(0,1) == [0,1] ;; [0,1) ;; (0,1]
[0,1] == (0,1) ;; \{0,1\}
x \ge 5 == x > 5 ;; x \le 5
(-\infty,2)\cup(3,\infty) == (-\infty,2]\cup(3,\infty)
-1, 2 == 1, -2
\begin{pmatrix}1\\2\end{pmatrix} == \begin{pmatrix}2\\1\end{pmatrix} ;; \begin{pmatrix}1&2\end{pmatrix} ;; (1,2)
\begin{pmatrix}1/3\\2\end{pmatrix} == \begin{pmatrix}0.333333\\2\end{pmatrix}
\infty == -\infty
\frac{1}{0} == \frac{2}{0}
\ln 2 == \log 2
\text{Evelyn} == \text{Briana} ;; Evely ;; 5
\text{east} == \text{west} ;; seat
\text{(C)} == D ;; \text{B} ;; CD
\text{Yes} == \text{No}
\text{June 20} == \text{June 21} ;; 20 ;; \text{July 20}
\mathbb{Z} == \mathbb{R}
"""

# What happens, not what should: each is left as it is because mending it would cost more than it is worth.
KNOWN_LIMITS = [
    (r"\text{ellipse}", r"\text{an ellipse}", False),  # words are compared whole
    (r"\text{no solution}", r"\emptyset", False),
    (r"\text{A, B}", r"\text{B, A}", False),  # a list inside one \text has an order
    (r"\frac{\pi}{6}", r"30^\circ", False),  # degrees aren't converted
    (r"\sin 30^\circ", r"\frac12", False),
    ("1200", "1.2e3", False),  # could be 1.2 times e times 3
    ("5", r"\text{The answer is }5", False),
    ("5", "6=5", True),  # the right-hand side of an equation counts
    ("1,1,2", "1,2", True),  # a list is a set: a double root may be named once
    ("1,2", "(2,1)", True),  # a reference without brackets has no order
    ("x", "X", True),  # as a choice may be given in either case
    ("east", "seat", True),  # without \text a word is a product of letters
    ("7:30", "14:60", True),  # and a time is a ratio
]


def _pairs(table: str) -> list[tuple[str, str]]:
    lines = (line.split(" == ") for line in table.strip().splitlines())
    return [(reference, answer) for reference, answers in lines for answer in answers.split(" ;; ")]


def test_the_table_is_large_and_a_third_of_it_is_negative() -> None:
    right, wrong = len(_pairs(RIGHT)), len(_pairs(WRONG))
    assert right + wrong >= 250
    assert wrong >= (right + wrong) / 3


@pytest.mark.parametrize(("reference", "answer"), _pairs(RIGHT))
def test_the_same_mathematics(reference: str, answer: str) -> None:
    assert grade_math(rf"so \boxed{{{answer}}}.", reference, "eos").outcome == "correct"


@pytest.mark.parametrize(("reference", "answer"), _pairs(WRONG))
def test_other_mathematics(reference: str, answer: str) -> None:
    grade = grade_math(rf"so \boxed{{{answer}}}.", reference, "eos")
    assert (grade.outcome, grade.score, grade.rule) == ("wrong", 0.0, "boxed")


@pytest.mark.parametrize(("reference", "answer", "verdict"), KNOWN_LIMITS)
def test_known_limits(reference: str, answer: str, verdict: bool) -> None:
    assert equivalent(reference, answer) is verdict


HALF = r"\frac{1}{2}"
TEXTS = [
    (rf"so \boxed{{{HALF}}}", HALF, "eos", "correct", "boxed"),
    (r"\boxed{\frac{1}{\frac{4}{2}}}", HALF, "eos", "correct", "boxed"),
    (r"\boxed{7}, wait, \boxed{\frac12}", HALF, "eos", "correct", "boxed"),
    (r"\boxed{\frac12}, wait, \boxed{7}", HALF, "eos", "wrong", "boxed"),
    (r"\boxed{\boxed{0.5}}", HALF, "eos", "correct", "boxed"),
    (r"\fbox{0.5}", HALF, "eos", "correct", "boxed"),
    (r"\boxed 5", "5", "eos", "correct", "boxed-bare"),
    (r"\boxed 5", "5", "length", "truncated", "none"),  # may have been on its way to 50
    (r"\boxed 5.", "5", "length", "correct", "boxed-bare"),
    (r"\boxed{5}", "5", "length", "correct", "boxed"),
    (r"\boxed{5", "5", "length", "truncated", "none"),
    (r"\boxed{5", "5", "eos", "no_answer", "none"),
    (r"\boxed{\frac{1}{2}", HALF, "length", "truncated", "none"),
    (r"\boxed{5}, so \boxed{", "5", "length", "correct", "boxed"),
    (r"\boxed{}", "5", "eos", "no_answer", "none"),
    (r"\boxed{ }", "", "eos", "no_answer", "none"),
    (r"\boxed{$$}", "5", "eos", "wrong", "boxed"),
    (r"\boxed{\,}", r"\,", "eos", "correct", "boxed"),
    (r"\boxed{5} or \boxed{}", "5", "eos", "correct", "boxed"),
    ("the answer is 5", "5", "eos", "no_answer", "none"),
    ("the answer is 5", "5", "length", "truncated", "none"),
    ("", "5", "eos", "no_answer", "none"),
    (r"<think>\boxed{5}</think> done", "5", "eos", "no_answer", "none"),
    (r"<think>\boxed{3}</think> \boxed{5}", "5", "eos", "correct", "boxed"),
    (r"\boxed{3}</think> \boxed{5}", "5", "eos", "correct", "boxed"),
    (r"\boxed{5}<think> \boxed{3}", "5", "length", "correct", "boxed"),
    (r"<think>\boxed{5} and", "5", "length", "truncated", "none"),
    (r"\boxed{5}", "5", "error", "failed", "error"),
    (r"\boxed{\text{(C)} }", "C", "eos", "correct", "boxed"),
    ("\\boxed{1,\n2}", "2,1", "eos", "correct", "boxed"),
    ("\\\\boxed{5}", "5", "eos", "correct", "boxed"),
    (rf"\boxed{{{'5' * (MAX_CHARS + 1)}}}", "5", "eos", "wrong", "boxed, over 2,000 characters"),
    (rf"\boxed{{{'5' * (MAX_CHARS + 1)}}}", "5" * (MAX_CHARS + 1), "eos", "correct", "boxed"),
]


@pytest.mark.parametrize(("text", "reference", "reason", "outcome", "rule"), TEXTS)
def test_from_text_to_verdict(text: str, reference: str, reason: str, outcome: str, rule: str) -> None:
    grade = grade_math(text, reference, reason)
    assert (grade.outcome, grade.rule) == (outcome, rule)
    assert (grade.extracted is None) == (outcome in {"no_answer", "truncated", "failed"})


def test_a_prompt_that_opened_the_thinking_block() -> None:
    assert grade_math(r"\boxed{5}", "5", "eos", thinking_open=True).outcome == "no_answer"
    assert grade_math(r"\boxed{3}</think>\boxed{5}", "5", "eos", thinking_open=True).outcome == "correct"


@given(st.integers(-(10**9), 10**9), st.integers(1, 10**4))
def test_a_fraction_is_its_spellings_and_no_other(above: int, below: int) -> None:
    fraction = rf"\frac{{{above}}}{{{below}}}"
    assert equivalent(fraction, f"{above}/{below}") is True
    assert equivalent(f"{above}/{below}", rf"\dfrac{{{above}}} {{{below}}}") is True
    assert equivalent(f"{above + 1}/{below}", f"{above}/{below}") is False


def test_the_version_names_the_library() -> None:
    assert "math-verify 0" in GRADER_VERSION
