"""What a benchmark is.

A benchmark is a small class: which problems, how they are put to the model, and how one answer is graded. Importing
this module loads no data set library and no torch.
"""

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field

from jobs.benchmarks.source import Source
from jobs.grading import Grade
from tiercache.errors import BenchmarkError, GradingError
from tiercache.model_spec import ModelSpec
from tiercache.rendering import Rendering, Think
from tiercache.strict import Strict

PromptMode = Literal["raw", "chat"]
Real = Annotated[float, Field(strict=True)]
Count = Annotated[int, Field(ge=1, strict=True)]


@dataclass(frozen=True)
class Problem:
    """One question.

    prompt     the raw text or the user's turn.
    reference  what the grader is given, as text: mostly the answer alone.
    prefix     how the answer begins; the model finds it written and goes on from there.
    """

    id: str
    prompt: str
    reference: str
    meta: Mapping[str, Any] = field(default_factory=dict)
    prefix: str = ""


class Sampling(Strict):
    """How tokens are drawn, resolved. Temperature 0 is greedy."""

    temperature: float
    top_p: float
    max_new_tokens: int


class SamplingOverrides(Strict):
    """How tokens are drawn; what is left out is the benchmark's own default. Temperature 0 is greedy."""

    temperature: Annotated[Real, Field(ge=0.0, le=5.0)] | None = None
    top_p: Annotated[Real, Field(gt=0.0, le=1.0)] | None = None
    max_new_tokens: Count | None = None


GREEDY = {"temperature": 0.0, "top_p": 1.0}
REASONING = {"temperature": 0.6, "top_p": 0.95}  # advised for reasoning models, 2501.12948


class Options(Strict):
    """Options that each benchmark has.

    n         the first n problems; null takes all there are.
    skip      problems at the beginning that are left out; `n` counts from there. Part of a cell's identity.
    sampling  of this benchmark alone; comes before the sweep's.
    """

    n: Count | None = None
    skip: Annotated[int, Field(ge=0, le=1_000_000, strict=True)] = 0
    sampling: SamplingOverrides | None = None


class ChatOptions(Options):
    """Options of benchmarks that can be put to a chat model.

    prompt_mode  `chat` uses the model's chat template and fails without one; `raw` is plain text for base models.
    system       a system turn. Off by default: 2501.12948 advises against one.
    think        `template` leaves the thinking block to the template; `open` has the reply begin inside one, `closed`
                 after an empty one.
    """

    prompt_mode: PromptMode = "chat"
    system: Annotated[str, Field(min_length=1, strict=True)] | None = None
    think: Think = "template"


class Benchmark(ABC):
    """A data set with its prompt, generation defaults and grader.

    Subclasses set the class variables, load problems, and grade one output. The data are read once for each object
    and only when they are asked for, so that a sweep can be checked and planned without them.

    metric   what its score is, in words.
    repeats  samples of each problem that its field reports; a sweep takes them with `repeats: field`.
    grader   names the rule and its version: it is kept with each verdict.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    paper: ClassVar[str]
    metric: ClassVar[str]
    repeats: ClassVar[int] = 1
    options_type: ClassVar[type[Options]] = Options
    reads_files: ClassVar[bool] = True  # whether `--data` means anything to it
    typical_prompt_tokens: ClassVar[int]  # for planning while the data are out of reach; said to be assumed
    typical_problems: ClassVar[int]
    sampling: Sampling  # the defaults
    source: Source | None = None  # where its data come from; None where they are generated
    options: Options

    def __init__(self, options: Options | None = None, data: Path | None = None) -> None:
        """`data`: local file or folder to read instead of the hub; ignored by generated benchmarks."""
        self.options = options if options is not None else self.options_type()
        self.data = data

    @property
    def label(self) -> str:
        """Its name in tables; with the task where one benchmark has several."""
        return self.name

    @property
    @abstractmethod
    def rendering(self) -> Rendering:
        """How prompts are put to the model."""

    @property
    @abstractmethod
    def local(self) -> bool:
        """Whether the problems can be read without network."""

    @property
    @abstractmethod
    def grader(self) -> str:
        """Name and version of the rule that grades."""

    @abstractmethod
    def load_all(self) -> list[Problem]:
        """All problems from the first on, or as many as `skip` and `n` need where they are generated.

        Raises:
            BenchmarkError: the data are missing, malformed or fail their own grader.
        """

    @abstractmethod
    def grade(self, reference: str, output: str, finish_reason: str, *, thinking_open: bool = False) -> Grade:
        """The verdict on one generation.

        Args:
            reference: the problem's.
            output: generated text, without the prompt.
            finish_reason: `length` if cut by the token limit, `error` if there is no generation, else a normal end.
            thinking_open: the rendered prompt ended inside a `<think>` block.
        """

    def for_model(self, spec: ModelSpec) -> Self:
        """This benchmark as it is put to one model: where prompts are made to a length in the model's own tokens."""
        return self

    @property
    def prompt_mode(self) -> PromptMode:
        return "chat" if self.rendering.chat else "raw"

    @property
    def revision(self) -> str:
        """Hash of the content of the data that `load_all` returns, whatever `n` is."""
        return self._content

    @cached_property
    def _content(self) -> str:
        return content_hash([p.id, p.prompt, p.reference, *([p.prefix] if p.prefix else [])] for p in self._problems)

    @cached_property
    def _problems(self) -> list[Problem]:
        problems = self.load_all()
        ids = {problem.id for problem in problems}
        if len(ids) < len(problems):
            raise BenchmarkError(f"{self.name}: {len(problems) - len(ids)} problems share an id with another.")
        return _in_order(problems)

    def load(self) -> list[Problem]:
        """The first `n` problems after those that are skipped.

        Raises:
            BenchmarkError: the data are missing or malformed, or there are fewer than `n`.
        """
        wanted, skip = self.options.n, self.options.skip
        there = len(self._problems) - skip
        if there < 1:
            raise BenchmarkError(f"{self.name}.skip: {skip} problems skipped; allowed: 0 to {len(self._problems) - 1}.")
        if wanted is not None and wanted > there:
            after = f" after the {skip} skipped" if skip else ""
            raise BenchmarkError(f"{self.name}.n: {wanted} problems asked for{after}; allowed: 1 to {there}.")
        return self._problems[skip : None if wanted is None else skip + wanted]

    def config(self) -> dict[str, Any]:
        """What decides a prompt and its grade, as plain data; how many problems are run is not part of it."""
        options = self.options.model_dump(
            mode="json", exclude={"n", "data", "sampling", "system", "think", "unscorable"}
        )
        if not self.options.skip:  # as before there was such an option: old cells stay what they are
            del options["skip"]
        how = self.rendering
        return {
            "name": self.name,
            **options,
            "revision": self.revision,
            "prompt_mode": self.prompt_mode,
            "system": how.system,
            **({"think": how.think} if how.think != "template" else {}),
            **({"limit": how.limit} if how.limit is not None else {}),
        }


def check_gold(benchmark: Benchmark, problem: Problem, answer: str, where: str) -> None:
    """Refuses a reference that its own grader doesn't give full marks: it would count against every policy.

    Args:
        answer: a generation that gives the reference in the form that the prompt asks for.
    """
    try:
        right = benchmark.grade(problem.reference, answer, "eos").correct
    except GradingError as impossible:
        raise BenchmarkError(f"{where}: {impossible}") from None
    if not right:
        raise BenchmarkError(
            f"{where}: the reference {problem.reference[:80]!r} fails its own grader. Mend "
            "the row, or leave such rows out: unscorable: drop."
        )


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
