r"""Competition mathematics whose answers stand in a box: MATH (2103.03874) and AIME.

The data belong to others (parts of MATH have been withdrawn from the hub, AIME is the MAA's): evaluate, and
redistribute nothing.
"""

from abc import abstractmethod
from typing import Any, ClassVar

from jobs.benchmarks.base import REASONING, Options, Problem, Sampling
from jobs.benchmarks.files import FileBenchmark, FileOptions, lower_keys, text
from jobs.benchmarks.source import Row, Source
from jobs.grading import Grade, find_boxed
from jobs.grading.mathematics import GRADER_VERSION, grade_math
from tiercache.errors import BenchmarkError

INSTRUCTION = r"Work it out step by step, and put the final answer inside \boxed{}."
RAW = "Problem: {question}\n{instruction}\nSolution:"


class Competition(FileBenchmark):
    """Problems with the instruction to put the answer in a box, sampled as reasoning models are."""

    paper: ClassVar[str] = "2103.03874"
    metric: ClassVar[str] = "mathematical equivalence of the last box"
    options_type: ClassVar[type[Options]] = FileOptions
    sampling = Sampling(**REASONING, max_new_tokens=32_768)
    repeats: ClassVar[int] = 64  # 2501.12948; what smaller studies take is less
    typical_prompt_tokens: ClassVar[int] = 120

    def config(self) -> dict[str, Any]:
        return {**super().config(), "instruction": INSTRUCTION}

    def problem(self, row: Row, index: int, where: str) -> Problem:
        row = lower_keys(row)
        question, answer = text(row, "problem", where), self._answer(row, where)
        prompt = f"{question}\n\n{INSTRUCTION}"
        if self.prompt_mode == "raw":
            prompt = RAW.format(question=question, instruction=INSTRUCTION)
        return Problem(self._id(row, index, where), prompt, answer, {"question": question})

    @property
    def grader(self) -> str:
        return GRADER_VERSION

    def grade(self, reference: str, output: str, finish_reason: str, *, thinking_open: bool = False) -> Grade:
        return grade_math(output, reference, finish_reason, thinking_open=thinking_open)

    def gold(self, problem: Problem) -> str:
        return rf"\boxed{{{problem.reference}}}"

    @abstractmethod
    def _id(self, row: Row, index: int, where: str) -> str:
        """A name that tells the problem apart."""

    def _answer(self, row: Row, where: str) -> str:
        """Its own column, or the last box of the solution."""
        if "answer" in row:
            return text(row, "answer", where, number=True).strip()
        found = find_boxed(text(row, "solution", where))
        if found is None:
            raise BenchmarkError(f"{where}: the solution has no boxed answer, and there is no column answer.")
        return found.value


class Math500(Competition):
    """The 500 problems of MATH that 2305.20050 tests on."""

    name: ClassVar[str] = "math500"
    summary: ClassVar[str] = "500 competition problems of all levels"
    source = Source("HuggingFaceH4/MATH-500", "default", "test", ("math500_test.jsonl", "math500.jsonl", "test.jsonl"))
    typical_problems: ClassVar[int] = 500

    def _id(self, row: Row, index: int, where: str) -> str:
        return f"{index:03d}-{row.get('unique_id', 'test')}"


class MathLevel5(Competition):
    """The 1,324 hardest problems of MATH's test split; a file with rows of other levels is refused."""

    name: ClassVar[str] = "math_l5"
    summary: ClassVar[str] = "the 1,324 competition problems of level 5"
    source = Source("lighteval/MATH-Hard", "default", "test", ("math_level5_test.jsonl", "math_l5.jsonl", "test.jsonl"))
    typical_problems: ClassVar[int] = 1324

    def _id(self, row: Row, index: int, where: str) -> str:
        return f"test-{index:04d}"

    def problem(self, row: Row, index: int, where: str) -> Problem:
        level = str(lower_keys(row).get("level", "Level 5"))
        if level.removeprefix("Level ").strip() != "5":
            raise BenchmarkError(f"{where}: is of {level}; math_l5 has problems of Level 5 alone. Take them out first.")
        return super().problem(row, index, where)


class Aime2024(Competition):
    """The thirty problems of both AIME papers of 2024; answers are whole numbers from 0 to 999."""

    name: ClassVar[str] = "aime2024"
    summary: ClassVar[str] = "30 olympiad-level problems, answers from 0 to 999"
    paper: ClassVar[str] = "MAA, AIME I and II, 2024"
    source = Source("HuggingFaceH4/aime_2024", "default", "train", ("aime2024.jsonl", "aime_2024.jsonl", "train.jsonl"))
    typical_problems: ClassVar[int] = 30

    def _id(self, row: Row, index: int, where: str) -> str:
        return f"{index:02d}-{row.get('id', 'aime')}"

    def problem(self, row: Row, index: int, where: str) -> Problem:
        problem = super().problem(row, index, where)
        if not problem.reference.isdecimal() or int(problem.reference) > 999:
            raise BenchmarkError(f"{where}: the answer {problem.reference!r} isn't a whole number from 0 to 999.")
        return problem
