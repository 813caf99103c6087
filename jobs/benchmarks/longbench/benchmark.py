"""LongBench (2308.14508) as a benchmark: a task of it, with our own prompts or a user's."""

from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field

from jobs.benchmarks.base import GREEDY, Options, Problem, Sampling
from jobs.benchmarks.files import FileBenchmark, FileOptions, Text, text
from jobs.benchmarks.longbench.tasks import TASKS
from jobs.benchmarks.longbench.templates import TEMPLATES, fill, read_templates
from jobs.benchmarks.source import Row, Source
from jobs.grading import Grade
from jobs.grading.texts import decode_reference, encode_reference, grade_text
from tiercache.errors import BenchmarkError
from tiercache.model_spec import ModelSpec
from tiercache.rendering import Rendering
from tiercache.shapes import shape_of

TEMPLATE_TOKENS = 64  # room for a chat template's own tokens
HUB = "Xnhyacinth/LongBench"  # Parquet; the original is a loading script, which `datasets` no longer runs

TaskName = Literal[
    "narrativeqa",
    "qasper",
    "multifieldqa_en",
    "multifieldqa_zh",
    "hotpotqa",
    "2wikimqa",
    "musique",
    "dureader",
    "gov_report",
    "qmsum",
    "multi_news",
    "vcsum",
    "trec",
    "triviaqa",
    "samsum",
    "lsht",
    "passage_count",
    "passage_retrieval_en",
    "passage_retrieval_zh",
    "lcc",
    "repobench-p",
]


class LongBenchOptions(FileOptions):
    """Options of a LongBench entry. Few-shot and code tasks are put raw whatever `prompt_mode` says, as in its code.

    task       one of the 21.
    templates  JSON file {task: template} with the prompts to use instead of ours.
    limit      longest prompt in tokens: of a longer one the middle is cut out. Null: what the model's context leaves.
    """

    task: TaskName = "qasper"
    templates: Text | None = None
    limit: Annotated[int, Field(ge=32, strict=True)] | None = None


class LongBench(FileBenchmark):
    """Scores with our wording compare here; for published ones give the original templates."""

    name: ClassVar[str] = "longbench"
    summary: ClassVar[str] = "21 tasks on long documents, dialogues and code, version 1"
    paper: ClassVar[str] = "2308.14508"
    metric: ClassVar[str] = "the task's: F1, ROUGE-L, edit similarity, classification, retrieval, counting"
    options_type: ClassVar[type[Options]] = LongBenchOptions
    source = Source(HUB, "qasper", "test", ("qasper.jsonl",))
    typical_prompt_tokens: ClassVar[int] = 12_000
    typical_problems: ClassVar[int] = 200
    options: LongBenchOptions

    def __init__(self, options: Options | None = None, data: Path | None = None, limit: int | None = None) -> None:
        super().__init__(options, data)
        self.task = TASKS[self.options.task]
        name = self.task.name
        files = (f"{name}.jsonl", f"{name}.parquet")
        self.source = Source(HUB, name, "test", files, self.options.revision)
        self.sampling = Sampling(**GREEDY, max_new_tokens=self.task.max_new_tokens)
        self._limit = self.options.limit or limit

    @property
    def label(self) -> str:
        return f"longbench/{self.task.name}"

    @property
    def rendering(self) -> Rendering:
        options = self.options
        chat = options.prompt_mode == "chat" and self.task.chat
        return Rendering(chat, options.system if chat else None, options.think if chat else "template", self._limit)

    @property
    def grader(self) -> str:
        return f"{self.task.metric}/1"

    def config(self) -> dict[str, Any]:
        own = {"templates"}  # where they lie; what they say is in the prompts
        return {key: value for key, value in super().config().items() if key not in own}

    def for_model(self, spec: ModelSpec) -> Self:
        shape = shape_of(spec)
        if self._limit is not None or shape is None or shape.max_context is None:
            return self
        own = self.options.sampling
        new = (own.max_new_tokens if own else None) or self.sampling.max_new_tokens
        return type(self)(self.options, self.data, max(32, shape.max_context - new - TEMPLATE_TOKENS))

    def problem(self, row: Row, index: int, where: str) -> Problem:
        answers, classes = row.get("answers"), row.get("all_classes")
        if not isinstance(answers, list) or not answers or not all(isinstance(each, str) for each in answers):
            raise BenchmarkError(f"{where}: answers has to be a list of texts, one or more.")
        prompt = fill(self._template, text(row, "context", where), str(row.get("input") or ""))
        reference = encode_reference(answers, classes if isinstance(classes, list) else None)
        return Problem(f"{index:04d}-{row.get('_id', self.task.name)}", prompt, reference)

    def gold(self, problem: Problem) -> str:
        return decode_reference(problem.reference).answers[0]

    def grade(self, reference: str, output: str, finish_reason: str, *, thinking_open: bool = False) -> Grade:
        task = self.task
        return grade_text(
            output,
            reference,
            finish_reason,
            metric=task.metric,
            first_line=task.first_line,
            thinking_open=thinking_open,
        )

    @cached_property
    def _template(self) -> str:
        if self.options.templates is None:
            return TEMPLATES[self.task.name]
        own = read_templates(Path(self.options.templates).expanduser())
        if self.task.name not in own:
            raise BenchmarkError(f"longbench.templates: {self.options.templates} has none for {self.task.name}.")
        return own[self.task.name]
