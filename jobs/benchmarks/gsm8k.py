"""GSM8K (2110.14168): 1,319 grade-school word problems whose answers are single numbers."""

from typing import Annotated, Any, ClassVar

from pydantic import Field

from jobs.benchmarks.base import GREEDY, Options, Problem, Sampling
from jobs.benchmarks.files import FileBenchmark, FileOptions, text
from jobs.benchmarks.source import Row, Source
from jobs.grading import Grade, find_hash, grade_number
from tiercache.errors import BenchmarkError

INSTRUCTION = (
    "Think through the problem step by step. Then write the result on a last line of the form `#### <number>`."
)
RAW = "Question: {question}\n{instruction}\nAnswer:"


class Gsm8kOptions(FileOptions):
    """Options of a GSM8K entry.

    last_number  grade the last number of an answer that has neither `####` nor a box. A guess; off by default.
    """

    last_number: Annotated[bool, Field(strict=True)] = False


class Gsm8k(FileBenchmark):
    """Zero-shot GSM8K, graded by the exact value of the number after `####` (or in a box).

    Rows have the hub's columns `question` and `answer`, or `id`, `prompt` and `reference`.
    """

    name: ClassVar[str] = "gsm8k"
    summary: ClassVar[str] = "grade-school word problems, zero-shot"
    paper: ClassVar[str] = "2110.14168"
    metric: ClassVar[str] = "exact value of the number after ####, or in a box"
    options_type: ClassVar[type[Options]] = Gsm8kOptions
    source = Source("openai/gsm8k", "main", "test", ("gsm8k_test.jsonl", "gsm8k.jsonl", "test.jsonl"))
    sampling = Sampling(**GREEDY, max_new_tokens=512)
    typical_prompt_tokens: ClassVar[int] = 128
    typical_problems: ClassVar[int] = 1319
    options: Gsm8kOptions

    @property
    def grader(self) -> str:
        return "number/2"

    def config(self) -> dict[str, Any]:
        return {**super().config(), "instruction": INSTRUCTION}

    def problem(self, row: Row, index: int, where: str) -> Problem:
        if "question" in row and "answer" in row:
            question, solution = text(row, "question", where), text(row, "answer", where)
            found = find_hash(solution)
            if found is None:
                raise BenchmarkError(f"{where}: the answer doesn't end in `#### <number>`.")
            return Problem(f"test-{index:04d}", self._prompt(question), found.value, {"question": question})
        if {"id", "prompt", "reference"} <= row.keys():
            name, reference = text(row, "id", where, number=True), text(row, "reference", where, number=True)
            return Problem(name, text(row, "prompt", where), reference)
        columns = ", ".join(map(str, row)) or "none"
        raise BenchmarkError(
            f"{where}: needs the columns question and answer, or id, prompt and reference; it has {columns}."
        )

    def gold(self, problem: Problem) -> str:
        return f"#### {problem.reference}"

    def _prompt(self, question: str) -> str:
        if self.prompt_mode == "chat":
            return f"{question}\n\n{INSTRUCTION}"
        return RAW.format(question=question, instruction=INSTRUCTION)

    def grade(self, reference: str, output: str, finish_reason: str, *, thinking_open: bool = False) -> Grade:
        last = self.options.last_number
        return grade_number(output, reference, finish_reason, last_number=last, thinking_open=thinking_open)
