r"""Mathematical answers: the last `\boxed{…}` against a reference in LaTeX.

Most verdicts are reached here, by text, by words or by exact value, in steps that are safe on any text; only the rest
goes to a computer algebra system, in a process that can be killed.

Conventions, those of MATH (2103.03874) where it has one:

percent   a percent sign may be left out or added (`50\%` for 50), and is a hundredth otherwise (`50\%` for 0.5)
units     ignored, unless both answers have one that is well known and they differ (`5\text{ cm}` isn't `5\text{ m}`)
degrees   the sign is ignored
bases     may be left out (`2516` for `2516_8`); if both answers have one it has to be the same
decimals  exact: 0.333333 isn't a third, and 3.14 isn't pi
digits    of any script are digits: `٥` is 5
brackets  a pair is ordered, also without its brackets, a list without brackets isn't; `(1,2)` is no set
"""

import re
from fractions import Fraction
from importlib.metadata import PackageNotFoundError, version
from unicodedata import decimal

from jobs.grading.extraction import answer_part, find_boxed
from jobs.grading.numeric import number
from jobs.grading.outcome import FAILED, Grade, judged, without_answer
from jobs.grading.pool import LIMIT_S, shared

MAX_CHARS = 2000


def _installed(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "missing"


GRADER_VERSION = f"mathematics 1, math-verify {_installed('math-verify')}, sympy {_installed('sympy')}"

_SIGNS = str.maketrans(
    {"°": "", "²": "^2", "³": "^3", "\u200b": "", "\u2060": "", "\ufeff": ""}
    | dict(zip("−–，（）％．", "--,()%.", strict=True))
    | {"π": r"\pi ", "∞": r"\infty ", "·": r"\cdot ", "×": r"\times ", "÷": r"\div ", "±": r"\pm "}
    | {"≤": r"\le ", "≥": r"\ge ", "≠": r"\ne ", "∪": r"\cup ", "∩": r"\cap ", "∈": r"\in "}
)
# In order; whitespace last, but for what needs to know where it was.
_STEPS = [
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"[\x00-\x1f\x7f]", " "),
        (r"\\?\$|(?<!\\)\\(?:[()\[\]!]|(?:displaystyle|bf|rm)(?![A-Za-z]))", ""),  # delimiters of mathematics, currency
        (r"\\(?:left|right)(?![A-Za-z])\s*\.?|\\[Bb]igg?[lrm]?(?![A-Za-z])", ""),
        (r"(?<!\\)\\[,;:> ]|~|\\q?quad(?![A-Za-z])", " "),
        (r"\\[dtc]frac(?![A-Za-z])", r"\\frac"),
        (r"\\langle(?![A-Za-z])", "("),
        (r"\\rangle(?![A-Za-z])", ")"),
        (r"\\varnothing(?![A-Za-z])", r"\\emptyset"),
        (r"\\mathrm\s*\{([die])\}", r"\1"),
        (r"\\(?:text(?:bf|it|rm|sf|tt|up|normal)?|mbox|mathrm)\s*\{", r"\\text{"),
        (r"\\text\{\s*(?:percent|\\?%)\s*\}|(?<=\d)\s+percent(?![a-z])|(?<!\\)%", r"\\%"),
        (r"\^\s*(?:\\circ(?![A-Za-z])|\{\s*\\circ\s*\})|\\degree(?![A-Za-z])", ""),
        (r"(?<=\d)\{,\}(?=\d{3})", ""),
        (r"(?:√|\\?sqrt)\s*\(([^()]*)\)", r"\\sqrt{\1}"),
        (r"√\s*(\d+|\w)|\\sqrt\s*(\w)", r"\\sqrt{\1\2}"),
        (r"\\frac\s*(\d)\s*(\d)", r"\\frac{\1}{\2}"),
        (r"^\s*([-+]?\d+)\s+(\d+)/(\d+)\s*$", r"\1\\frac{\2}{\3}"),
        (r"\s+", " "),
        (r"(?<![^\W_]) | (?![^\W_])", ""),
        (r"([\^_])\{(\w)\}", r"\1\2"),
        (r"(?:\\\\|\.)+$", ""),
    )
]
_REPEATING = re.compile(r"(?<!\d)(\d{0,20})\.(\d{0,20})\\(?:overline|bar)\{(\d{1,20})\}")
_SPACED_THOUSANDS = re.compile(r"[-+]?\d{1,3}(?: \d{3})+")
_TEXT = re.compile(r"\\text\{([^{}]*)\}")
_BASED = re.compile(r"(\d[\dA-F.]*)_\{?(\d{1,2})\}?")
_KNOWN_UNITS = "mm|cm|dm|m|km|m/s|km/h|in|ft|yd|mi|mg|g|kg|oz|lb|ml|l|s|min|h|am|pm"
_UNITS = frozenset(_KNOWN_UNITS.split("|"))
_UNIT = re.compile(r"(.*(?:[\d})]|\\pi))\\text\{ ?([^{}\d]*)\}(\^\d)?")
_BARE_UNIT = re.compile(rf"(.*(?:[\d}})]|\\pi)) ?({_KNOWN_UNITS}|[A-Za-z]{{4,}}(?: [A-Za-z]+)*)(\^\d)?")
_NO_UNIT = re.compile(r"(?:^| )(?:and|or|than|less|more|(?:dozen|hundred|thousand|[mbtr]+illion)s?)(?: |$)", re.I)
_VARIABLE = re.compile(r"(?<![\\A-Za-z])[A-Za-z]")


def grade_math(text: str, reference: str, finish_reason: str, *, thinking_open: bool = False) -> Grade:
    r"""Grades the last complete `\boxed{…}` outside the thinking block by mathematical equivalence.

    finish_reason: `length` if the generation was cut by its token limit, `error` if there is none; anything else is a
    normal end. An answer over 2,000 characters, or undecided within 5 s, is `wrong`, and the rule says so. Raises
    GradingError if math-verify is needed and can't be imported.
    """
    if finish_reason in FAILED:
        return Grade("failed", None, finish_reason)
    part = answer_part(text, thinking_open)
    found = find_boxed(part)
    if found and found.rule == "boxed-bare" and finish_reason == "length" and found.end == len(part):
        found = None  # the number touches the cut: `\boxed 1` may have been on its way to `\boxed 18`
    if found is None:
        return without_answer(finish_reason)
    verdict = equivalent(reference, found.value)
    rule = found.rule
    if verdict is None:
        rule += f", undecided in {LIMIT_S:g} s"
    elif not verdict and len(found.value) > MAX_CHARS:
        rule += f", over {MAX_CHARS:,} characters"
    return judged(verdict is True, found.value, rule)


def equivalent(a: str, b: str) -> bool | None:
    """Whether answer `b` is the same mathematics as reference `a`; None: undecided within 5 s.

    LaTeX with or without dollars. Not quite symmetric: the reference says whether order counts. Texts over 2,000
    characters are only compared as they are. Raises GradingError if math-verify is needed and can't be imported.
    """
    if a == b or max(len(a), len(b)) > MAX_CHARS:
        return a == b != ""
    a, b = _tidy(a), _tidy(b)
    if a == b or not a or not b:
        return a == b != ""
    words, others = _letters(a), _letters(b)
    if words and others and (r"\text" in a + b or len(words + others) == 2):
        return words == others
    a, *unit = _without_unit(a, b)
    b, *other = _without_unit(b, a)
    if unit != other and {unit[0], other[0]} <= _UNITS:
        return False
    if (_is_set(a) and _is_tuple(b)) or (_is_tuple(a) and _is_set(b)):
        return False
    verdict = _by_value(a, b)
    return shared().ask(a, b) if verdict is None else verdict


def _tidy(text: str) -> str:
    """The same mathematics in plainer LaTeX, at most one space in a row, and only between letters or digits."""
    text = "".join(str(decimal(char)) if char.isdecimal() else char for char in text.translate(_SIGNS))
    for pattern, replacement in _STEPS:
        text = pattern.sub(replacement, text)
    text = _REPEATING.sub(_as_fraction, text)
    return text.replace(" ", "") if _SPACED_THOUSANDS.fullmatch(text) else text


def _as_fraction(match: re.Match[str]) -> str:
    """A repeating decimal, which the parser reads as a product with its cycle's overline."""
    whole, fixed, cycle = match.groups()
    value = Fraction(int(whole + fixed + cycle) - int(whole + fixed or "0"), (10 ** len(cycle) - 1) * 10 ** len(fixed))
    return rf"\frac{{{value.numerator}}}{{{value.denominator}}}"


def _letters(text: str) -> str | None:
    """The letters of an answer in words, or of a choice such as (C); None if it has more than letters."""
    text = text.strip("()")
    if wrapped := _TEXT.fullmatch(text):
        text = wrapped[1]
    text = text.strip("(). ").replace(" ", "")
    return text.casefold() if text.isalpha() else None


def _without_unit(text: str, other: str) -> tuple[str, str, str]:
    """An answer as value, unit and its power. A unit outside `\\text{}` only if the other answer has no variables."""
    match = _UNIT.fullmatch(text)
    if match is None and not _VARIABLE.search(other):
        wrapped = _TEXT.fullmatch(text)
        match = _BARE_UNIT.fullmatch(wrapped[1] if wrapped else text)
    if match is None or _NO_UNIT.search(match[2]):
        return text, "", ""
    return match[1], match[2].replace(".", "").strip().lower(), match[3] or ""


def _is_set(text: str) -> bool:
    return text.startswith(r"\{") and text.endswith(r"\}")


def _is_tuple(text: str) -> bool:
    return re.fullmatch(r"\([^()]*,[^()]*\)", text) is not None


def _by_value(a: str, b: str) -> bool | None:
    """The verdict on two numbers, which need no algebra; None if either is something else."""
    based, other = _BASED.fullmatch(a), _BASED.fullmatch(b)
    if based and other:
        return based.groups() == other.groups()
    if based or other:
        return (based[1] if based else a) == (other[1] if other else b)
    # Words within a number stand between two of them, as in `3\text{ or }5`.
    x, y = (None if r"\text" in each and not _TEXT.fullmatch(each) else number(each) for each in (a, b))
    if x is None or y is None:
        return None
    if x != y and ("%" in a) != ("%" in b):
        return (x / 100 if "%" in a else x) == (y / 100 if "%" in b else y)
    return x == y
