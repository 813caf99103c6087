"""Graders by name, for problems of one's own. Each takes a generation and a reference, and knows its gold."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from jobs.grading import FAILED, Grade, answer_part, grade_digits, grade_number, judged, without_answer
from jobs.grading.choice import grade_choice
from jobs.grading.matching import grade_match
from jobs.grading.mathematics import GRADER_VERSION, grade_math
from jobs.grading.texts import Metric, encode_reference, grade_text
from tiercache.errors import BenchmarkError

GraderName = Literal[
    "number", "digits", "math", "choice", "exact", "contains_all", "contains_any", "f1", "rouge_l", "edit_similarity"
]


@dataclass(frozen=True)
class Grader:
    """How an answer is found and compared.

    grade   of (output, reference, finish reason, whether the prompt ended inside a thinking block).
    gold    a generation that gives the reference.
    encode  a file's reference as the text that `grade` takes, or None where it can't be that.
    """

    summary: str
    version: str
    grade: Callable[[str, str, str, bool], Grade]
    gold: Callable[[str], str]
    encode: Callable[[object], str | None]

    def reference(self, value: object, where: str) -> str:
        """A file's reference, encoded.

        Raises:
            BenchmarkError: it is missing, or of a kind that this grader can't compare.
        """
        encoded = self.encode(value)
        if encoded is None:
            raise BenchmarkError(f"{where}: reference is {value!r:.80}; this grader takes {self.summary}.")
        return encoded


def _one(value: object) -> str | None:
    value = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    return value if isinstance(value, str) and value.strip() else None


def _texts(value: object) -> list[str] | None:
    many = value if isinstance(value, list) else [value]
    texts = [_one(each) for each in many]
    found = [text for text in texts if text is not None]
    return found if found and len(found) == len(texts) else None


def _several(value: object) -> str | None:
    texts = _texts(value)
    return json.dumps(texts, ensure_ascii=False) if texts else None


def _answers(value: object) -> str | None:
    texts = _texts(value)
    return encode_reference(texts) if texts else None


def _decoded(reference: str) -> Sequence[str]:
    return [str(each) for each in json.loads(reference)]


def _exact(output: str, reference: str, finish: str, thinking_open: bool) -> Grade:
    if finish in FAILED:
        return Grade("failed", None, finish)
    answer = answer_part(output, thinking_open).strip()
    return judged(answer == reference.strip(), answer[:300], "exact") if answer else without_answer(finish)


def _contains(summary: str, every: bool) -> Grader:
    return Grader(
        summary,
        "contains/1",
        lambda o, r, f, t: grade_match(o, _decoded(r), f, every=every, thinking_open=t),
        lambda r: ", ".join(_decoded(r)),
        _several,
    )


def _measured(summary: str, metric: Metric) -> Grader:
    return Grader(
        summary,
        f"{metric}/1",
        lambda o, r, f, t: grade_text(o, r, f, metric=metric, thinking_open=t),
        lambda r: str(json.loads(r)["answers"][0]),
        _answers,
    )


GRADERS: dict[str, Grader] = {
    "number": Grader(
        "a number, found after #### or in a box and compared by value",
        "number/2",
        lambda o, r, f, t: grade_number(o, r, f, thinking_open=t),
        lambda r: f"#### {r}",
        _one,
    ),
    "digits": Grader(
        "digits, found after #### and compared as written",
        "digits/2",
        lambda o, r, f, t: grade_digits(o, r, f, thinking_open=t),
        lambda r: f"#### {r}",
        _one,
    ),
    "math": Grader(
        "an expression in LaTeX, compared with the last box",
        GRADER_VERSION,
        lambda o, r, f, t: grade_math(o, r, f, thinking_open=t),
        lambda r: rf"\boxed{{{r}}}",
        _one,
    ),
    "choice": Grader(
        "the letter of a choice",
        "choice/2",
        lambda o, r, f, t: grade_choice(o, r, f, choices="ABCDEFGHIJ", thinking_open=t),
        lambda r: f"Answer: {r}",
        _one,
    ),
    "exact": Grader("the whole answer as a text", "exact/1", _exact, lambda r: r, _one),
    "contains_all": _contains("a text or a list of texts that the answer has to contain, in any case", every=True),
    "contains_any": _contains("a text or a list of texts of which the answer has to contain one", every=False),
    "f1": _measured("a text or a list of texts, the best overlap of words counts", "qa_f1"),
    "rouge_l": _measured("a text or a list of texts, the longest common sequence of words counts", "rouge_l"),
    "edit_similarity": _measured("a text or a list of texts, the likeness of the first line counts", "edit_similarity"),
}

assert set(GRADERS) == set(get_args(GraderName)), "every name has its grader"
