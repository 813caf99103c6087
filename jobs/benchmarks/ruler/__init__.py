"""RULER-style long-context tasks (2404.06654), made on the fly at the length that a model's own tokenizer measures.

The 13 tasks, their parameters, answers and metrics are RULER's. Seeds, words, wording and the default prose are this
project's own, so scores compare between policies and models run here, and not with published RULER tables.
"""

from jobs.benchmarks.ruler.make import make_samples
from jobs.benchmarks.ruler.sample import CountTokens, RulerSample
from jobs.benchmarks.ruler.sources import Question, Sources, read_questions, read_rows
from jobs.benchmarks.ruler.tasks import TASKS, Task, find_task

__all__ = [
    "TASKS",
    "CountTokens",
    "Question",
    "RulerSample",
    "Sources",
    "Task",
    "find_task",
    "make_samples",
    "read_questions",
    "read_rows",
]
