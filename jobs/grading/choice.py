r"""Answers to multiple-choice questions: one letter.

Forms in this order of trust: the last `\boxed{C}`; the last "the answer is (C)" or "Answer: C"; a last line that is
the letter alone; a text that begins with `C)` or `C.` and names no other choice. A letter in running prose ("A dog")
is no answer, and neither is one that isn't among the choices or is one of several ("A and C").
"""

import re
from collections.abc import Sequence

from jobs.grading.extraction import answer_part, find_boxed
from jobs.grading.outcome import FAILED, Grade, judged, without_answer
from tiercache.errors import GradingError

# Every repeat has an upper bound: no text takes more than linear time.
_OPEN = r"""(?:\\(?:text|textbf|textrm|mathrm|mathbf|boxed|fbox)\s?\{|[\s*_`$"'“(\[{]){0,12}"""
_LINE_END = r"[ \t]{0,9}(?:[\r\n]|\Z)"
_CLOSE = r"\s{0,3}[)\]}]|\*\*|(?<=[*_`$\"'“].)[*_`$\"'”]"
# What tells a letter from a word; not in A.M., A-frame, A dog.
_GOES_ON = r"\.(?![A-Za-z])|[:;,!?]|\s?[-–—]{1,2}\s|\s[(\[]|\s{1,3}(?:because|since|as|which)\b"
_LETTER = rf"{_OPEN}(?:([A-Z])(?={_LINE_END}|{_CLOSE}|{_GOES_ON})|([a-z])(?=\.?{_LINE_END}|{_CLOSE}))"
_PHRASE = (
    r"(?i:\b(?:(?<!wrong )(?<!incorrect )answer|(?:correct|right|best|final) (?:option|choice))(?: option| choice)?"
    r"[\s*_]{0,8}(?:[:=]|(?:is|would be|should be|must be)\b)[\s:*_]{0,8}"
    r"(?:(?:most likely|likely|clearly|indeed|definitely|therefore|thus|the|option|choice|letter)\s{1,3}){0,3})"
)

_FIRST = re.compile(_LETTER)
_STATED = re.compile(_PHRASE + _LETTER)
_ALONE = re.compile(rf"(?i:(?:final )?(?:answer|option|choice) )?{_OPEN}([A-Za-z])[\s)\].:*_`$\"'”}}]{{0,12}}")
_ANOTHER = re.compile(r"[\s)\]*.}$]{0,4}(?:[,/&+]|\band\b|\bor\b)\s{0,3}(?:and |or )?[(\[*]{0,3}[A-HJ-Z]\b(?!['’])")
_NAME = re.compile(r"(?<![\w'’-])([A-Z])(?![\w'’-])(?!(?<=A) [a-z])")  # a letter by itself, but not the article


def grade_choice(
    text: str, reference: str, finish_reason: str, *, choices: Sequence[str] = "ABCDE", thinking_open: bool = False
) -> Grade:
    """Grades the letter that the answer settles on; the rule is `boxed`, `stated`, `last-line` or `first-letter`.

    A generation that was cut counts by a box or a statement only, and not by a letter that touches the cut.
    Raises GradingError if the reference isn't among the choices, or they aren't single letters.
    """
    allowed = {choice.upper() for choice in choices}
    right = reference.strip().upper()
    if right not in allowed or not all(re.fullmatch("[A-Z]", choice) for choice in allowed):
        raise GradingError(
            f"reference: has to be one of the choices, and these have to be single letters (got {reference[:60]!r} and "
            f"{', '.join(map(repr, choices))})."
        )
    if finish_reason in FAILED:
        return Grade("failed", None, finish_reason)
    part = answer_part(text, thinking_open)
    cut = finish_reason == "length"
    found = {"boxed": _boxed(part, cut), "stated": _stated(part, cut)}
    if not cut:
        found |= {"last-line": _last_line(part), "first-letter": _first_letter(part, allowed)}
    for rule, letter in found.items():
        if letter in allowed:
            return judged(letter == right, letter, rule)
    return without_answer(finish_reason)


def _boxed(text: str, cut: bool) -> str:
    box = find_boxed(text)
    if box is None or (cut and box.end == len(text) and box.rule == "boxed-bare"):
        return ""
    match = _FIRST.match(box.value)
    return _single(match, box.value) if match else ""


def _stated(text: str, cut: bool) -> str:
    matches = list(_STATED.finditer(text))
    if not matches or (cut and matches[-1].end() == len(text)):
        return ""
    return _single(matches[-1], text)


def _last_line(text: str) -> str:
    match = _ALONE.fullmatch(text.rstrip().rpartition("\n")[2].strip())
    return _upper(match) if match else ""


def _first_letter(text: str, allowed: set[str]) -> str:
    text = text.lstrip()
    match = _FIRST.match(text)
    if match is None:
        return ""
    names = {name[1] for name in _NAME.finditer(text, match.end())}
    return _upper(match) if names.isdisjoint(allowed - {_upper(match)}) else ""


def _single(match: re.Match[str], text: str) -> str:
    """The letter, unless another one follows it as in "A and C"."""
    return "" if _ANOTHER.match(text, match.end()) else _upper(match)


def _upper(match: re.Match[str]) -> str:
    return next(letter for letter in match.groups() if letter).upper()
