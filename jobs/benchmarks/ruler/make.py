"""Samples of any of the 13 tasks, by name."""

from collections.abc import Sequence
from random import Random

from jobs.benchmarks.ruler.fitting import fill
from jobs.benchmarks.ruler.lexicon import shuffled
from jobs.benchmarks.ruler.needles import draft_needles
from jobs.benchmarks.ruler.questions import draft_question
from jobs.benchmarks.ruler.sample import CountTokens, Draft, RulerSample
from jobs.benchmarks.ruler.sources import Question, Sources
from jobs.benchmarks.ruler.tasks import Task, find_task
from jobs.benchmarks.ruler.texts import sentences
from jobs.benchmarks.ruler.tracing import draft_tracing
from jobs.benchmarks.ruler.words import draft_common_words, draft_frequent_words
from tiercache.errors import BenchmarkError


def make_samples(
    task: str, count: CountTokens, length: int, n: int, seed: int, *, sources: Sources | None = None
) -> list[RulerSample]:
    """The first n samples of a task; sample i depends on task, length, seed and i alone, and on sources where used.

    Prompt, prefix and the task's tokens to generate come to 98-100% of `length`. The tokenizer decides the amount of
    filler and nothing else; `count` is called about four times a sample, always on a whole one.

    Args:
        count: tokens of a text; a constant for the chat template may be part of it.
        length: tokens in all.
        sources: the user's prose for the haystack, and the questions that qa_1 and qa_2 ask.

    Raises:
        BenchmarkError: unknown task, a length that a sample doesn't fit into (with the least one), or too few questions
            or documents.
    """
    known, sources = find_task(task), sources or Sources()
    for name, value in (("length", length), ("n", n)):
        if value < 1:
            raise BenchmarkError(f"ruler.{name}: {value} given; allowed: 1 or more.")
    drafts = _Drafts(known, length, n, seed, sources)
    return [fill(drafts.draft(index), known, count, length) for index in range(n)]


class _Drafts:
    """What the samples of one task share."""

    def __init__(self, task: Task, length: int, n: int, seed: int, sources: Sources) -> None:
        self._task, self._length, self._key = task, length, f"{seed}/{task.name}"
        self._questions: Sequence[Question] = ()
        self._prose, self._sentences = "", list[str]()
        if task.family == "qa":
            self._documents = sources.documents()
            self._questions = list(shuffled(_enough(task, n, sources.questions), Random(self._key)))
        elif sources.prose is not None and task.needles is not None and task.needles.haystack == "prose":
            self._prose, self._sentences = sources.prose, sentences(sources.prose)
            if not self._sentences:
                raise BenchmarkError("ruler.prose: the text is empty; give one with words in it, or none.")

    def draft(self, index: int) -> Draft:
        key = f"{self._key}/{index}"
        if self._task.needles is not None:
            return draft_needles(self._task.needles, key, self._prose, self._sentences)
        if self._task.family == "vt":
            return draft_tracing(key)
        if self._task.family == "cwe":
            return draft_common_words(key, self._length)
        if self._task.family == "fwe":
            return draft_frequent_words(key, self._length)
        return draft_question(self._questions[index], self._documents, key)


def _enough(task: Task, n: int, questions: Sequence[Question]) -> Sequence[Question]:
    if not questions:
        raise BenchmarkError(
            f"ruler.task: {task.name} needs questions, and none are given. Give the file of its data set "
            f"({task.questions}), or leave the task out."
        )
    if n > len(questions):
        raise BenchmarkError(f"ruler.n: {n} samples of {task.name} asked for; allowed: 1 to {len(questions)}.")
    return questions
