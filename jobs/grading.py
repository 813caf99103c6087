r"""From a generated text to an answer, and from an answer to an outcome.

Grading never guesses: an answer has to be in the form that the prompt asks for, complete, and outside the thinking
block. A generation that was cut before it got there is `truncated`, which is another finding than `wrong`. Policies
that lose the thread make chains longer, so taking the last number in the text would flatter and blame at random; that
fallback exists and is off by default.
"""

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

Outcome = Literal["correct", "wrong", "no_answer", "truncated", "failed"]
OUTCOMES: tuple[Outcome, ...] = ("correct", "wrong", "no_answer", "truncated", "failed")

FAILED = ("error", "failed")  # finish reasons of a generation that doesn't exist

_BOX = re.compile(r"\\(?:boxed|fbox)(?![A-Za-z])\s*")
_BARE = re.compile(r"-?\d[\d,]*(?:\.\d+)?(?:/\d+)?|[A-Z](?![A-Za-z])")
_HASH = re.compile(r"####[ \t*]*(\\?\$?[ \t]*[-+−]?[ \t]*\\?\$?(?:\d[\d,]*(?:\.\d+)?(?:/\d+)?|\.\d+)%?)")
_NUMBER = re.compile(r"([-+]?)(\d*\.?\d+|\d+\.)(?:/(\d+))?")
_FRACTION = re.compile(r"([-+]?)\\[dt]?frac\{?(\d+)\}?\{?(\d+)\}?")
_THOUSANDS = re.compile(r"[-+]?\d{1,3}(?:,\d{3})+(?!\d)(?!,)")
_ANY_NUMBER = re.compile(r"[-−]?\$?\d[\d,]*(?:\.\d+)?")
_MAX_NUMBER_CHARS = 120


@dataclass(frozen=True)
class Extracted:
    """An answer found in a text: its value as written, the rule that found it, where it ends in the text."""

    value: str
    rule: str
    end: int


@dataclass(frozen=True)
class Grade:
    """The verdict on one generation. `extracted` is None where no answer was found; `rule` says how it was found."""

    outcome: Outcome
    extracted: str | None
    rule: str

    @property
    def correct(self) -> bool:
        return self.outcome == "correct"


def answer_part(text: str, thinking_open: bool = False) -> str:
    """The text outside the thinking block.

    `thinking_open`: the prompt itself ended in `<think>`, so the text begins inside the block. A block that never
    closes leaves nothing.
    """
    _, closed, tail = text.rpartition("</think>")
    if closed:
        text = tail
    elif thinking_open:
        return ""
    return text.partition("<think>")[0]


def find_boxed(text: str) -> Extracted | None:
    r"""The last complete `\boxed{…}` or `\fbox{…}`, braces balanced, empty ones skipped; also bare `\boxed 5`."""
    for match in reversed(list(_BOX.finditer(text))):
        start = match.end()
        if text[start : start + 1] == "{":
            stop = _closing_brace(text, start)
            content = text[start + 1 : stop].strip() if stop is not None else ""
            if content and stop is not None:
                return Extracted(content, "boxed", stop + 1)
        elif bare := _BARE.match(text, start):
            return Extracted(bare[0].rstrip(","), "boxed-bare", bare.end())
    return None


def _closing_brace(text: str, start: int) -> int | None:
    """Index of the brace that closes the one at `start`; escaped braces are characters, not structure."""
    depth, index = 0, start
    while index < len(text):
        char = text[index]
        if char == "\\":
            index += 2
            continue
        depth += (char == "{") - (char == "}")
        if depth == 0:
            return index
        index += 1
    return None


def find_hash(text: str) -> Extracted | None:
    """The last `#### <number>`, as GSM8K's own solutions end."""
    last = _last(_HASH, text)
    return Extracted(last[1].strip().rstrip(","), "hash", last.end()) if last else None


def find_last_number(text: str) -> Extracted | None:
    """The last number anywhere. A guess: use it only where the protocol says so."""
    last = _last(_ANY_NUMBER, text)
    return Extracted(last[0].rstrip(","), "last-number", last.end()) if last else None


def _last(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    found = list(pattern.finditer(text))
    return found[-1] if found else None


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
        sign, above, below = match[1], match[2], match[3]
    elif match := _NUMBER.fullmatch(text):
        sign, above, below = match[1], match[2], match[3] or "1"
    else:
        return None
    if int(below) == 0:
        return None
    value = Fraction(above) / int(below)
    return -value if sign == "-" else value


def _keep_numeric(match: re.Match[str]) -> str:
    """`\\text{42}` is the number; `\\text{ dollars}` is a unit."""
    return match[1] if re.search(r"\d", match[1]) else ""


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
        return Grade("truncated" if cut else "no_answer", None, "none")
    value = number(found.value)
    right = value is not None and value == number(reference)
    return Grade("correct" if right else "wrong", found.value, found.rule)


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
        return Grade("truncated" if cut else "no_answer", None, "none")
    value = matches[-1][1]
    return Grade("correct" if value == reference else "wrong", value, "hash")
