"""GSM8K (2110.14168): 1,319 grade-school word problems whose answers are single numbers.

Data come from the hub (`openai/gsm8k`, main, test) or from a local file, one JSON object a line, with the hub's
columns `question` and `answer`, or with `id`, `prompt` and `reference`.
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from jobs.benchmarks.base import Benchmark, Options, Problem, PromptMode, Sampling
from jobs.grading import Grade, find_hash, grade_number, number
from tiercache.errors import BenchmarkError

HUB_ID, CONFIG, SPLIT = "openai/gsm8k", "main", "test"
FILE_NAMES = ("gsm8k_test.jsonl", "gsm8k.jsonl", "test.jsonl")

INSTRUCTION = (
    "Think through the problem step by step. Then write the result on a last line of the form `#### <number>`."
)
RAW = "Question: {question}\n{instruction}\nAnswer:"
REMEDY = (
    'On a machine with network: python -c "from datasets import load_dataset; '
    "load_dataset('openai/gsm8k', 'main', split='test').to_json('gsm8k_test.jsonl')\" "
    "- then: tiercache run SPEC --data gsm8k_test.jsonl"
)


class Gsm8kOptions(Options):
    """Options of a GSM8K entry.

    data         local JSONL file, or a folder with one; otherwise the hub.
    prompt_mode  `chat` uses the model's chat template and fails without one; `raw` is plain text for base models.
    last_number  grade the last number of an answer that has neither `####` nor a box. A guess; off by default.
    """

    data: Annotated[str, Field(min_length=1, strict=True)] | None = None
    prompt_mode: Literal["chat", "raw"] = "chat"
    last_number: Annotated[bool, Field(strict=True)] = False


class Gsm8k(Benchmark):
    """Zero-shot GSM8K, graded by the exact value of the number after `####` (or in a box)."""

    name: ClassVar[str] = "gsm8k"
    summary: ClassVar[str] = "grade-school word problems (openai/gsm8k, main, test), zero-shot"
    options_type: ClassVar[type[Options]] = Gsm8kOptions
    sampling = Sampling(temperature=0.0, top_p=1.0, max_new_tokens=512)
    typical_prompt_tokens: ClassVar[int] = 128
    typical_problems: ClassVar[int] = 1319
    options: Gsm8kOptions

    @property
    def prompt_mode(self) -> PromptMode:
        return self.options.prompt_mode

    @property
    def local(self) -> bool:
        return self.data is not None or self.options.data is not None

    def config(self) -> dict[str, Any]:
        return {**super().config(), "instruction": INSTRUCTION}

    def load_all(self) -> list[Problem]:
        source = self.options.data or self.data
        rows = _local_rows(_data_file(Path(source).expanduser())) if source else _hub_rows()
        problems = [self._problem(row, index, where) for index, (where, row) in enumerate(rows)]
        if not problems:
            raise BenchmarkError(f"gsm8k: {source or HUB_ID} has no rows.")
        return problems

    def _problem(self, row: Mapping[str, Any], index: int, where: str) -> Problem:
        """One row as a problem, its own solution graded: a reference that fails its grader would count as wrong."""
        if "question" in row and "answer" in row:
            question, solution = _text(row, "question", where), _text(row, "answer", where)
            found = find_hash(solution)
            if found is None:
                raise BenchmarkError(f"{where}: the answer doesn't end in `#### <number>`.")
            problem = Problem(f"test-{index:04d}", self._prompt(question), found.value, {"question": question})
        elif {"id", "prompt", "reference"} <= row.keys():
            reference = _text(row, "reference", where)
            solution = f"#### {reference}"
            problem = Problem(_text(row, "id", where), _text(row, "prompt", where), reference)
        else:
            columns = ", ".join(map(str, row)) or "none"
            raise BenchmarkError(
                f"{where}: needs the columns question and answer, or id, prompt and reference; it has {columns}."
            )
        if number(problem.reference) is None or self.grade(problem, solution, "stop").outcome != "correct":
            raise BenchmarkError(f"{where}: the reference {problem.reference!r} fails its own grader.")
        return problem

    def _prompt(self, question: str) -> str:
        if self.prompt_mode == "chat":
            return f"{question}\n\n{INSTRUCTION}"
        return RAW.format(question=question, instruction=INSTRUCTION)

    def grade(self, problem: Problem, output: str, finish_reason: str, *, thinking_open: bool = False) -> Grade:
        return grade_number(
            output,
            problem.reference,
            finish_reason,
            last_number=self.options.last_number,
            thinking_open=thinking_open,
        )


def _text(row: Mapping[str, Any], key: str, where: str) -> str:
    value = row[key]
    if key in ("id", "reference") and isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str) or not value.strip():
        raise BenchmarkError(f"{where}: {key} has to be text, and not empty.")
    return value


def _data_file(path: Path) -> Path:
    if path.is_dir():
        for name in FILE_NAMES:
            if (path / name).is_file():
                return path / name
        raise BenchmarkError(f"gsm8k: {path} has none of {', '.join(FILE_NAMES)}. {REMEDY}")
    if not path.is_file():
        raise BenchmarkError(f"gsm8k: {path}: no such file. {REMEDY}")
    return path


def _local_rows(path: Path) -> Iterable[tuple[str, Mapping[str, Any]]]:
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as problem:
        raise BenchmarkError(f"gsm8k: {path}: can't be read as UTF-8 text: {problem}.") from None
    for count, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        where = f"{path}: line {count}"
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            raise BenchmarkError(f"{where}: isn't a JSON object.") from None
        if not isinstance(row, dict):
            raise BenchmarkError(f"{where}: isn't a JSON object.")
        yield where, row


def _hub_rows() -> Iterable[tuple[str, Mapping[str, Any]]]:
    # `datasets` takes seconds to import, so a wrong sweep file is refused before it is.
    from datasets import load_dataset

    try:
        rows = load_dataset(HUB_ID, CONFIG, split=SPLIT)
    except Exception as problem:  # the hub client's failures have no common root
        first = (str(problem).splitlines() or [""])[0]
        reason = f"{type(problem).__name__}: {first}"[:200]
        raise BenchmarkError(f"gsm8k: {HUB_ID} can't be loaded from the hub ({reason}). {REMEDY}") from None
    return ((f"{HUB_ID} row {index}", row) for index, row in enumerate(rows))
