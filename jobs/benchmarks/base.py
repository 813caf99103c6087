"""What a benchmark is, and how one is found by name.

A benchmark is a small class: how many problems, which ones, how they are put to the model, and how one answer is
graded. Importing this module loads no data set library and no torch.
"""

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from jobs.grading import Grade
from tiercache.errors import BenchmarkError
from tiercache.strict import Strict, nearest

PromptMode = Literal["raw", "chat"]


@dataclass(frozen=True)
class Problem:
    """One question. `prompt` is the raw text or the user's turn; `reference` is the answer alone."""

    id: str
    prompt: str
    reference: str
    meta: Mapping[str, Any] = field(default_factory=dict)


class Sampling(Strict):
    """How tokens are drawn, resolved. Temperature 0 is greedy."""

    temperature: float
    top_p: float
    max_new_tokens: int


class Options(Strict):
    """Options that each benchmark has. `n`: the first n problems; null takes all there are."""

    n: Annotated[int, Field(ge=1, strict=True)] | None = None


class Benchmark(ABC):
    """A data set with its prompt, generation defaults and grader.

    Subclasses set the class variables, load problems, and grade one output. The data are read once for each object
    and only when they are asked for, so that a sweep can be checked and planned without them.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    options_type: ClassVar[type[Options]] = Options
    reads_files: ClassVar[bool] = True  # whether `--data` means anything to it
    typical_prompt_tokens: ClassVar[int]  # for planning while the data are out of reach; said to be assumed
    typical_problems: ClassVar[int]
    sampling: Sampling  # the defaults
    system: str | None = None

    def __init__(self, options: Options | None = None, data: Path | None = None) -> None:
        """`data`: local file or folder to read instead of the hub; ignored by generated benchmarks."""
        self.options = options if options is not None else self.options_type()
        self.data = data

    @property
    @abstractmethod
    def prompt_mode(self) -> PromptMode:
        """`raw`: the prompt as it is. `chat`: as the user's turn of the model's own chat template."""

    @property
    @abstractmethod
    def local(self) -> bool:
        """Whether the problems can be read without network."""

    @abstractmethod
    def load_all(self) -> list[Problem]:
        """All problems, or as many as `n` needs where they are generated.

        Raises:
            BenchmarkError: the data are missing, malformed or fail their own grader.
        """

    @abstractmethod
    def grade(self, problem: Problem, output: str, finish_reason: str, *, thinking_open: bool = False) -> Grade:
        """The verdict on one generation.

        Args:
            output: generated text, without the prompt.
            finish_reason: `length` if cut by the token limit, `error` if there is no generation, else a normal end.
            thinking_open: the rendered prompt ended inside a `<think>` block.
        """

    @property
    def revision(self) -> str:
        """Hash of the content of the data that `load_all` returns, whatever `n` is."""
        return self._content

    @cached_property
    def _content(self) -> str:
        return content_hash([p.id, p.prompt, p.reference] for p in self._problems)

    @cached_property
    def _problems(self) -> list[Problem]:
        problems = self.load_all()
        ids = {problem.id for problem in problems}
        if len(ids) < len(problems):
            raise BenchmarkError(f"{self.name}: {len(problems) - len(ids)} problems share an id with another.")
        return _in_order(problems)

    def load(self) -> list[Problem]:
        """The first `n` problems.

        Raises:
            BenchmarkError: the data are missing or malformed, or there are fewer than `n`.
        """
        wanted = self.options.n
        if wanted is not None and wanted > len(self._problems):
            raise BenchmarkError(f"{self.name}.n: {wanted} problems asked for; allowed: 1 to {len(self._problems)}.")
        return self._problems[:wanted]

    def config(self) -> dict[str, Any]:
        """What decides a prompt and its grade, as plain data; how many problems are run is not part of it."""
        options = self.options.model_dump(mode="json", exclude={"n", "data"})
        return {
            "name": self.name,
            **options,
            "revision": self.revision,
            "prompt_mode": self.prompt_mode,
            "system": self.system,
        }


def _in_order(problems: list[Problem]) -> list[Problem]:
    """Ids that sort in the benchmark's own order, so that the database can tell the first n: numbered if need be."""
    ids = [problem.id for problem in problems]
    if ids == sorted(ids):
        return problems
    width = len(str(len(problems) - 1))
    return [replace(problem, id=f"{index:0{width}d}-{problem.id}") for index, problem in enumerate(problems)]


def content_hash(rows: Iterable[object]) -> str:
    """First 16 hex digits of the SHA-256 over rows of plain data."""
    digest = hashlib.sha256()
    for row in rows:
        digest.update(json.dumps(row, ensure_ascii=False, sort_keys=True).encode("utf-8", "surrogatepass") + b"\n")
    return digest.hexdigest()[:16]


def registry() -> dict[str, type[Benchmark]]:
    """The benchmarks by name."""
    from jobs.benchmarks.chain import Chain
    from jobs.benchmarks.gsm8k import Gsm8k

    return {benchmark.name: benchmark for benchmark in (Chain, Gsm8k)}


def parse_benchmarks(entries: Sequence[Mapping[str, Any]], data: Path | None = None) -> list[Benchmark]:
    """Builds the benchmarks of a sweep; nothing is read yet.

    Args:
        entries: mappings with `name` and the benchmark's options.
        data: local file or folder for those that name none themselves (`--data`).

    Raises:
        BenchmarkError: unknown name or option, or a value out of range.
    """
    known = registry()
    benchmarks = []
    for index, entry in enumerate(entries):
        where, options = f"benchmarks[{index}]", dict(entry)
        name = options.pop("name", None)
        if not isinstance(name, str) or name not in known:
            hint = nearest(name, known) if isinstance(name, str) else ""
            problem = "is required" if name is None else f"unknown benchmark {name!r}"
            raise BenchmarkError(f"{where}.name: {problem}.{hint} Allowed: {', '.join(known)}.")
        kind = known[name]
        benchmarks.append(kind(kind.options_type.parse(options, where, BenchmarkError), data))
    return benchmarks
