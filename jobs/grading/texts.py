"""Metrics of LongBench (2308.14508) for answers that are texts, and the verdict by them.

Each metric takes a prediction and one reference answer and gives 0 to 1; of several reference answers the best counts.
"""

import json
import logging
import re
import string
import unicodedata
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any, Literal

from rapidfuzz import fuzz

from jobs.grading.extraction import answer_part
from jobs.grading.outcome import FAILED, Grade, judged, without_answer
from jobs.grading.rouge import MAX_CHARS, rouge_l
from tiercache.errors import GradingError

Metric = Literal[
    "qa_f1",
    "qa_f1_zh",
    "rouge_l",
    "rouge_l_zh",
    "classification",
    "retrieval",
    "retrieval_zh",
    "count",
    "edit_similarity",
]

_MAX_EXTRACTED = 300  # characters kept of what was graded
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLE = re.compile(r"\b(?:a|an|the)\b")
_DIGITS = re.compile(r"\d+")
_PARAGRAPH = re.compile(r"Paragraph (\d+)")
_PARAGRAPH_ZH = re.compile(r"段落\s*(\d+)")
_NO_CODE = ("`", "#", "//")


@dataclass(frozen=True)
class TextReference:
    """What a text is graded against: the answers that count, and for `classification` the names of all classes."""

    answers: tuple[str, ...]
    classes: tuple[str, ...] = ()


def encode_reference(answers: Sequence[str], classes: Sequence[str] | None = None) -> str:
    """The reference as one text; raises GradingError unless both are lists of text with something in them."""
    text = json.dumps({"answers": answers, "classes": classes or None}, ensure_ascii=False, default=repr)
    decode_reference(text)
    return text


def decode_reference(text: str) -> TextReference:
    """Reads what `encode_reference` wrote; raises GradingError on anything else."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict) or content.keys() != {"answers", "classes"}:
        raise GradingError(
            f"reference: has to be a JSON object of answers and classes, as of encode_reference (got {text[:60]!r})."
        )
    return TextReference(_texts(content, "answers"), _texts(content, "classes") if content["classes"] else ())


def _texts(content: Mapping[str, Any], key: str) -> tuple[str, ...]:
    values = content[key]
    if (
        not isinstance(values, list)
        or not all(isinstance(value, str) for value in values)
        or not any(map(str.strip, values))
    ):
        raise GradingError(f"reference: {key} has to be a list of text, and not empty (got {str(values)[:60]!r}).")
    return tuple(values)


def qa_f1(prediction: str, answer: str) -> float:
    """F1 over words, lower case, without ASCII punctuation and the articles a, an, the."""
    return _f1(_english_words(prediction), _english_words(answer))


def qa_f1_zh(prediction: str, answer: str) -> float:
    """F1 over jieba's words, lower case, without punctuation."""
    return _f1(_chinese_content(prediction), _chinese_content(answer))


def rouge_l_zh(prediction: str, answer: str) -> float:
    """ROUGE-L over jieba's words."""
    return rouge_l(" ".join(_chinese_words(prediction)), " ".join(_chinese_words(answer)))


def classification(prediction: str, answer: str, classes: Sequence[str]) -> float:
    """One over the number of classes that the prediction names, if the right one is among them.

    A name that is part of the right name isn't counted. LongBench's own loop skips some of these by mistake.
    """
    named = {name for name in classes if name in prediction and (name == answer or name not in answer)}
    return 1 / len(named) if answer in named else 0.0


def retrieval(prediction: str, answer: str) -> float:
    """The share of the numbers in the prediction that are the one in `Paragraph 7`, compared as written."""
    return _share(prediction, _paragraph(_PARAGRAPH, answer, "Paragraph 7"))


def retrieval_zh(prediction: str, answer: str) -> float:
    """The share of the numbers in the prediction that are the one in `段落7`, compared as written."""
    return _share(prediction, _paragraph(_PARAGRAPH_ZH, answer, "段落7"))


def count(prediction: str, answer: str) -> float:
    """The share of the numbers in the prediction that are the right one, compared as written."""
    if not _DIGITS.fullmatch(answer.strip()):
        raise GradingError(f"reference: the answer to a count has to be a whole number (got {answer[:60]!r}).")
    return _share(prediction, answer.strip())


def edit_similarity(prediction: str, answer: str) -> float:
    """Similarity of the first line of code with the right one: 1 less the insertions and deletions per character.

    LongBench rounds it to whole percents.
    """
    return fuzz.ratio(code_line(prediction), answer) / 100


def code_line(text: str) -> str:
    """The first line that has neither a backtick, `#` nor `//` in it; empty if there is none."""
    lines = text.lstrip("\r\n").split("\n")
    return next((line.rstrip("\r") for line in lines if not any(mark in line for mark in _NO_CODE)), "")


_BY_ANSWER: Mapping[str, Callable[[str, str], float]] = MappingProxyType(
    {
        "qa_f1": qa_f1,
        "qa_f1_zh": qa_f1_zh,
        "rouge_l": rouge_l,
        "rouge_l_zh": rouge_l_zh,
        "retrieval": retrieval,
        "retrieval_zh": retrieval_zh,
        "count": count,
        "edit_similarity": edit_similarity,
    }
)
METRICS = (*_BY_ANSWER, "classification")


def grade_text(
    text: str,
    reference: str,
    finish_reason: str,
    *,
    metric: Metric,
    first_line: bool = False,
    thinking_open: bool = False,
) -> Grade:
    """Grades the first 40,000 characters of the answer, or its first line, by `metric`; the rule is the metric's name.

    reference: of `encode_reference`. A generation that was cut is graded as it is: the limits of LongBench are short on
    purpose. One that was cut in its thinking block is `truncated`.
    """
    if metric not in METRICS:
        raise GradingError(f"metric: {metric!r} doesn't exist; allowed are {', '.join(METRICS)}.")
    known = decode_reference(reference)
    if finish_reason in FAILED:
        return Grade("failed", None, finish_reason)
    if finish_reason == "length" and _in_thinking(text, thinking_open):
        return without_answer(finish_reason)
    part = answer_part(text, thinking_open)
    part = part.lstrip().partition("\n")[0] if first_line else part.lstrip("\r\n")[:MAX_CHARS]
    part = code_line(part) if metric == "edit_similarity" else part[:MAX_CHARS]
    if not part.strip():
        return Grade("no_answer", None, "none")
    return judged(_best(part, known, metric), part.strip()[:_MAX_EXTRACTED], metric)


def _best(part: str, known: TextReference, metric: Metric) -> float:
    if metric != "classification":
        return max(_BY_ANSWER[metric](part, answer) for answer in known.answers)
    if not known.classes:
        raise GradingError("reference: classification needs the names of all classes; give them to encode_reference.")
    return max(classification(part, answer, known.classes) for answer in known.answers)


def _in_thinking(text: str, thinking_open: bool) -> bool:
    _, closed, tail = text.rpartition("</think>")
    return "<think>" in tail or (thinking_open and not closed)


def _f1(guessed: list[str], expected: list[str]) -> float:
    common = (Counter(guessed) & Counter(expected)).total()
    return 2 * common / (len(guessed) + len(expected)) if common else 0.0


def _english_words(text: str) -> list[str]:
    return _ARTICLE.sub(" ", text.lower().translate(_PUNCTUATION)).split()


def _chinese_content(text: str) -> list[str]:
    bare = ("".join(char for char in word.lower() if not _is_mark(char)) for word in _chinese_words(text))
    return [word for word in bare if word]


def _is_mark(char: str) -> bool:
    """White space, punctuation of any script, and symbols as far as a keyboard's keys go: ASCII and its wide forms."""
    kind = unicodedata.category(char)[0]
    wide = "\u3000" <= char <= "\u303f" or "\uff00" <= char <= "\uff65"
    return char.isspace() or kind == "P" or (kind == "S" and (wide or char.isascii()))


def _chinese_words(text: str) -> list[str]:
    words: list[str] = _jieba().lcut(text[:MAX_CHARS])
    return words


@cache
def _jieba() -> Any:
    try:
        import jieba  # optional, and its dictionary takes a second to load
    except ImportError:
        raise GradingError("Chinese tasks need jieba to find words: pip install 'tiercache-eval[chinese]'.") from None
    jieba.setLogLevel(logging.WARNING)
    return jieba


def _paragraph(pattern: re.Pattern[str], answer: str, form: str) -> str:
    found = pattern.search(answer)
    if found is None:
        raise GradingError(
            f"reference: the answer to a retrieval has to be of the form `{form}` (got {answer[:60]!r})."
        )
    return found[1]


def _share(prediction: str, right: str) -> float:
    numbers = _DIGITS.findall(prediction[:MAX_CHARS])
    return numbers.count(right) / len(numbers) if numbers else 0.0
