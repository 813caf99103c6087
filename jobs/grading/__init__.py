"""Grading: from a generated text to an answer, and from an answer to a verdict.

A generation that was cut before it got to its answer is `truncated`, which is another finding than `wrong`.
"""

from jobs.grading.extraction import answer_part, find_boxed, find_hash, thinking_opened
from jobs.grading.numeric import grade_digits, grade_number, number
from jobs.grading.outcome import FAILED, OUTCOMES, Grade, Outcome, judged, without_answer

__all__ = [
    "FAILED",
    "OUTCOMES",
    "Grade",
    "Outcome",
    "answer_part",
    "find_boxed",
    "find_hash",
    "grade_digits",
    "grade_number",
    "judged",
    "number",
    "thinking_opened",
    "without_answer",
]
