"""RULER-style tasks as a benchmark: made for each model, since their length is in its own tokens."""

import json
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field

from jobs.benchmarks import prepared
from jobs.benchmarks.base import GREEDY, Benchmark, ChatOptions, Options, Problem, Sampling, check_gold, content_hash
from jobs.benchmarks.local_files import find
from jobs.benchmarks.ruler.make import make_samples
from jobs.benchmarks.ruler.sample import CountTokens, RulerSample
from jobs.benchmarks.ruler.sources import Sources, read_questions, read_rows
from jobs.benchmarks.ruler.tasks import TASKS
from jobs.benchmarks.source import Source, rows_of
from jobs.grading import Grade, answer_part
from jobs.grading.matching import grade_match
from jobs.tokens import at_hand, token_counter
from tiercache.errors import BenchmarkError
from tiercache.model_spec import ModelSpec
from tiercache.rendering import Rendering

TEMPLATE_TOKENS = 32  # room for a chat template's own tokens
_FINGERPRINTED = 4  # samples that stand for the generator in the data revision

TaskName = Literal[
    "niah_single_1",
    "niah_single_2",
    "niah_single_3",
    "niah_multikey_1",
    "niah_multikey_2",
    "niah_multikey_3",
    "niah_multivalue",
    "niah_multiquery",
    "vt",
    "cwe",
    "fwe",
    "qa_1",
    "qa_2",
]
SOURCES = {
    "squad": Source("rajpurkar/squad_v2", "squad_v2", "validation", ("dev-v2.0.json", "squad_v2.jsonl")),
    "hotpotqa": Source(
        "hotpotqa/hotpot_qa", "distractor", "validation", ("hotpot_dev_distractor_v1.json", "hotpot_qa.jsonl")
    ),
}
Text = Annotated[str, Field(min_length=1, strict=True)]


class RulerOptions(ChatOptions):
    """Options of a RULER entry.

    task    one of the 13.
    length  tokens in all, in the model's own: prompt, prefix of the answer, and those to be generated.
    seed    of words, values and places.
    prose   a text file for the haystacks of prose; otherwise prose is made up.
    data    of qa_1 and qa_2: SQuAD v2.0's or HotpotQA's file, or a folder with it.
    """

    n: Annotated[int, Field(ge=1, le=100_000, strict=True)] = 500
    task: TaskName = "niah_single_1"
    length: Annotated[int, Field(ge=64, le=4_000_000, strict=True)] = 4096
    seed: Annotated[int, Field(ge=0, strict=True)] = 42
    prose: Text | None = None
    data: Text | None = None


class Ruler(Benchmark):
    """Wording, words and default prose are our own: scores compare here, and not with published RULER tables."""

    name: ClassVar[str] = "ruler"
    summary: ClassVar[str] = "13 generated long-context tasks, of any length"
    paper: ClassVar[str] = "2404.06654"
    metric: ClassVar[str] = "share of the references in the answer; for qa whether one is"
    options_type: ClassVar[type[Options]] = RulerOptions
    typical_problems: ClassVar[int] = 500
    options: RulerOptions

    def __init__(self, options: Options | None = None, data: Path | None = None, spec: ModelSpec | None = None) -> None:
        super().__init__(options, data)
        self._spec = spec
        self.task = TASKS[self.options.task]
        self.source = SOURCES[self.task.questions] if self.task.questions else None
        self.reads_files = self.source is not None  # type: ignore[misc]
        self.typical_prompt_tokens = self.options.length - self.task.max_new_tokens  # type: ignore[misc]
        self.sampling = Sampling(**GREEDY, max_new_tokens=self.task.max_new_tokens)

    @property
    def label(self) -> str:
        return f"ruler/{self.options.task} {self.options.length}"

    @property
    def rendering(self) -> Rendering:
        return Rendering(self.options.prompt_mode == "chat", self.options.system, self.options.think)

    @property
    def local(self) -> bool:
        data = self.source is None or self.given is not None or prepared.find(self.source) is not None
        return data and self._spec is not None and at_hand(self._spec)

    @property
    def given(self) -> Path | None:
        """The local file or folder with questions."""
        return Path(self.options.data) if self.options.data else self.data

    @property
    def grader(self) -> str:
        return "contains/1"

    @property
    def revision(self) -> str:
        """Hash of the first samples: it changes with generator and tokenizer, and not with `n`."""
        first = min(_FINGERPRINTED, self._available)
        return content_hash([s.prompt, s.prefix, list(s.answers)] for s in self._samples(first))

    def config(self) -> dict[str, Any]:
        own = {"prose"}  # where the text lies; what it says is in the samples
        return {key: value for key, value in super().config().items() if key not in own}

    def for_model(self, spec: ModelSpec) -> Self:
        return type(self)(self.options, self.data, spec)

    def load_all(self) -> list[Problem]:
        wanted = self.options.skip + self.options.n
        if wanted > self._available:
            raise BenchmarkError(f"ruler.n: {wanted} asked for; {self.task.name} has {self._available}.")
        end = "\n" if self.prompt_mode == "raw" else ""  # a template ends its turn by itself
        problems = []
        for index, made in enumerate(self._samples(wanted)):
            reference = json.dumps(made.answers, ensure_ascii=False)
            problem = Problem(f"{self.task.name}-{index:06d}", made.prompt + end, reference, made.meta, made.prefix)
            check_gold(self, problem, ", ".join(made.answers), f"{self.label}: {problem.id}")
            problems.append(problem)
        return problems

    def grade(self, reference: str, output: str, finish_reason: str, *, thinking_open: bool = False) -> Grade:
        answers = [str(each) for each in json.loads(reference)]
        every = self.task.metric == "all"
        if finish_reason == "length" and answer_part(output, thinking_open).strip():
            finish_reason = "eos"  # the limits are short: running into them is how an answer ends here
        return grade_match(output, answers, finish_reason, every=every, thinking_open=thinking_open)

    @property
    def _available(self) -> int:
        return (
            len(self._sources.questions)
            if self.source is not None
            else self.options.skip + self.options.n + _FINGERPRINTED
        )

    def _samples(self, n: int) -> Sequence[RulerSample]:
        if self._spec is None:
            raise BenchmarkError("ruler: samples are made for a model; call `for_model` first.")
        options = self.options
        return make_samples(
            options.task, self._counter(self._spec), options.length, n, options.seed, sources=self._sources
        )

    def _counter(self, spec: ModelSpec) -> CountTokens:
        room = TEMPLATE_TOKENS if self.prompt_mode == "chat" else 0
        count = token_counter(spec, special=self.prompt_mode == "raw")
        return lambda text: count(text) + room

    @cached_property
    def _sources(self) -> Sources:
        prose = _read(Path(self.options.prose).expanduser()) if self.options.prose else None
        if self.source is None:
            return Sources(prose)
        if self.given is not None:
            file = find(self.given.expanduser(), self.source, self.label.partition(" ")[0])
            return Sources(prose, read_questions(file))
        rows = [row for _, row in rows_of(self.source, f"ruler/{self.task.name}", None)]
        return Sources(prose, read_rows(rows, self.source.hub_id))


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        raise BenchmarkError(f"ruler.prose: {path}: can't be read as UTF-8 text: {problem}.") from None
