"""The verdict on one generation."""

from dataclasses import dataclass
from typing import Literal

Outcome = Literal["correct", "wrong", "no_answer", "truncated", "failed"]
OUTCOMES: tuple[Outcome, ...] = ("correct", "wrong", "no_answer", "truncated", "failed")

FAILED = ("error", "failed")  # finish reasons of a generation that doesn't exist


@dataclass(frozen=True)
class Grade:
    """The verdict on one generation.

    extracted  None where no answer was found; `rule` says how it was found.
    score      0 to 1: 1 for `correct`, and for a metric that gives part marks whatever it gave. A mean of scores is
               what is compared.
    """

    outcome: Outcome
    extracted: str | None
    rule: str
    score: float = 0.0

    @property
    def correct(self) -> bool:
        return self.outcome == "correct"


def judged(score: float, extracted: str, rule: str) -> Grade:
    """The verdict on an answer that was found; only a full score is `correct`."""
    return Grade("correct" if score >= 1.0 else "wrong", extracted, rule, float(score))


def without_answer(finish_reason: str) -> Grade:
    """The verdict on a generation in which no answer was found: cut off, or simply not given."""
    return Grade("truncated" if finish_reason == "length" else "no_answer", None, "none")
