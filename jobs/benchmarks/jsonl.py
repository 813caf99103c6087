"""A user's own problems: a file with prompts and references, and the name of a grader."""

from typing import Annotated, ClassVar

from pydantic import Field

from jobs.benchmarks.base import GREEDY, Options, Problem, Sampling
from jobs.benchmarks.files import FileBenchmark, FileOptions, text
from jobs.benchmarks.graders import GRADERS, GraderName
from jobs.benchmarks.source import Row, Source
from jobs.grading import Grade
from tiercache.errors import BenchmarkError

Name = Annotated[str, Field(pattern=r"^[\w.-]{1,60}$", strict=True)]


class JsonlOptions(FileOptions):
    """Options of a file of one's own.

    data    JSON lines, JSON or Parquet with the columns `prompt` and `reference`, and perhaps `id` and `prefix`.
    title   what it's called in tables.
    grader  how an answer is found and compared; `jobs.benchmarks.graders` and docs/benchmarks.md have them.
    """

    title: Name = "own"
    grader: GraderName = "number"


class Jsonl(FileBenchmark):
    """Prompts are put as they are: the file's author says in them how to answer."""

    name: ClassVar[str] = "jsonl"
    summary: ClassVar[str] = "your own file of prompts and references, with a grader by name"
    paper: ClassVar[str] = "none"
    metric: ClassVar[str] = "the grader's"
    options_type: ClassVar[type[Options]] = JsonlOptions
    source = Source("jsonl", "default", "test", ("problems.jsonl", "test.jsonl"))
    sampling = Sampling(**GREEDY, max_new_tokens=1024)
    typical_prompt_tokens: ClassVar[int] = 128
    typical_problems: ClassVar[int] = 100
    options: JsonlOptions

    def load_all(self) -> list[Problem]:
        if self.given is None:
            raise BenchmarkError("jsonl.data: is required: the file with your problems. Or give one with --data.")
        return super().load_all()

    @property
    def label(self) -> str:
        return f"jsonl/{self.options.title}"

    @property
    def grader(self) -> str:
        return GRADERS[self.options.grader].version

    def problem(self, row: Row, index: int, where: str) -> Problem:
        encoded = GRADERS[self.options.grader].reference(row.get("reference"), where)
        name = text(row, "id", where, number=True) if "id" in row else f"{index:06d}"
        prefix = str(row.get("prefix") or "")
        return Problem(name, text(row, "prompt", where), encoded, prefix=prefix)

    def gold(self, problem: Problem) -> str:
        return GRADERS[self.options.grader].gold(problem.reference)

    def grade(self, reference: str, output: str, finish_reason: str, *, thinking_open: bool = False) -> Grade:
        return GRADERS[self.options.grader].grade(output, reference, finish_reason, thinking_open)
