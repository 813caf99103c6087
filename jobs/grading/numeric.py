r"""Answers that are numbers, compared by exact value, and answers that are digits, compared as written."""

import re
from fractions import Fraction

from jobs.grading.extraction import answer_part, find_boxed, find_hash, find_last_number
from jobs.grading.outcome import FAILED, Grade, judged, without_answer

_NUMBER = re.compile(r"([-+]?)(\d*\.?\d+|\d+\.)(?:/(\d+))?")
_FRACTION = re.compile(r"([-+]?)\\[dt]?frac\s*(?:\{(\d+)\}|(\d))\s*(?:\{(\d+)\}|(\d))")
_THOUSANDS = re.compile(r"[-+]?\d{1,3}(?:,\d{3})+(?!\d)(?!,)")
_MAX_NUMBER_CHARS = 120


def number(text: str) -> Fraction | None:
    r"""The exact value of a written number, or None: `1,000`, `$18.00`, `25\%`, `-3.`, `\frac{1}{2}`, `5\text{ km}`."""
    text = re.sub(r"\\(?:text|mathrm|textbf|mathbf)\s*\{([^{}]*)\}", _keep_numeric, text)
    text = re.sub(r"\\left|\\right|\\[!,;:$%]|[$%]|\^?\{?\\circ\}?", "", text)
    text = text.replace("{,}", ",").replace("−", "-").strip().rstrip(".")
    text = re.sub(r"^([-+])\s+", r"\1", text)
    if len(text) > _MAX_NUMBER_CHARS:
        return None
    if _THOUSANDS.match(text):
        text = text.replace(",", "")  # `1,000` is a number, `1,2` isn't
    if match := _FRACTION.fullmatch(text):
        sign, above, below = match[1], match[2] or match[3], match[4] or match[5]
    elif match := _NUMBER.fullmatch(text):
        sign, above, below = match[1], match[2], match[3] or "1"
    else:
        return None
    if int(below) == 0:
        return None
    value = Fraction(above) / int(below)
    return -value if sign == "-" else value


def _keep_numeric(match: re.Match[str]) -> str:
    """`\\text{42}` is the number; `\\text{ dollars}` is a unit; and `3\\text{ or }5` is no number at all."""
    return match[1] if re.search(r"\d", match[1]) else " "


def grade_number(
    text: str, reference: str, finish_reason: str, *, last_number: bool = False, thinking_open: bool = False
) -> Grade:
    r"""Grades `#### n`, else `\boxed{n}`, by exact value; `last_number` also takes the last number anywhere.

    finish_reason: `length` if the generation was cut by its token limit, `error` if there is none; anything else is a
    normal end.
    """
    if finish_reason in FAILED:
        return Grade("failed", None, finish_reason)
    cut = finish_reason == "length"
    part = answer_part(text, thinking_open)
    found = find_hash(part)
    if found and cut and part[found.end :] in ("", ".", ","):
        found = None  # the number touches the cut: `#### 1` may have been on its way to `#### 18`
    found = found or find_boxed(part)
    if found is None and last_number and not cut:
        found = find_last_number(part)
    if found is None:
        return without_answer(finish_reason)
    value = number(found.value)
    return judged(value is not None and value == number(reference), found.value, found.rule)


def grade_digits(text: str, reference: str, finish_reason: str, *, thinking_open: bool = False) -> Grade:
    """Grades the digits after the last `####` as a string: a leading zero is part of the answer."""
    if finish_reason in FAILED:
        return Grade("failed", None, finish_reason)
    cut = finish_reason == "length"
    part = answer_part(text, thinking_open)
    matches = list(re.finditer(r"####[ \t]*(\d+)", part))
    if matches and cut and len(matches[-1][1]) < len(reference) and matches[-1].end() == len(part):
        return Grade("truncated", None, "none")
    if not matches:
        return without_answer(finish_reason)
    value = matches[-1][1]
    return judged(value == reference, value, "hash")
