"""Answers that are looked for in the text as they are, whatever stands around them (RULER, 2404.06654)."""

from collections.abc import Sequence

from jobs.grading.extraction import answer_part
from jobs.grading.outcome import FAILED, Grade, judged, without_answer
from tiercache.errors import GradingError

_SHOWN = 200  # characters of an answer in which nothing was found


def grade_match(
    text: str, references: Sequence[str], finish_reason: str, *, every: bool, thinking_open: bool = False
) -> Grade:
    """Grades by the reference strings that the answer contains, upper and lower case alike.

    A text that contains none is `truncated` if it was cut by its token limit; one that contains some is judged by
    them, cut or not.

    Args:
        every: the score is the share of references found; otherwise 1 if any is.
        finish_reason: `length` if the generation was cut by its token limit, `error` if there is none; anything else
            is a normal end.

    Raises:
        GradingError: no references, or an empty one, which every text contains.
    """
    if not references or not all(reference.strip() for reference in references):
        raise GradingError(f"references: {list(references)!r}; allowed: one or more texts, none of them empty.")
    if finish_reason in FAILED:
        return Grade("failed", None, finish_reason)
    rule = "match-all" if every else "match-any"
    part = answer_part(text, thinking_open).strip()
    folded = part.casefold()
    found = [reference for reference in references if reference.casefold() in folded]
    if found:
        return judged(len(found) / len(references) if every else 1.0, ", ".join(found), rule)
    if finish_reason == "length" or not part:
        return without_answer(finish_reason)
    return judged(0.0, part[:_SHOWN], rule)
