"""The 21 tasks of LongBench (2308.14508): facts, no wording."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from jobs.grading.texts import Metric

Category = Literal["single_doc_qa", "multi_doc_qa", "summarization", "few_shot", "synthetic", "code"]
Language = Literal["en", "zh", "code"]

_NO_CHAT = {"trec", "triviaqa", "samsum", "lsht", "lcc", "repobench-p"}
_FIRST_LINE = {"trec", "triviaqa", "samsum", "lsht"}


@dataclass(frozen=True)
class LongBenchTask:
    """One task.

    max_new_tokens  its generation length, in tokens; a generation is usually cut by it, and graded all the same.
    language        of context and answer.
    rows            of its test split.
    chat            whether a chat model's template is put around the prompt; examples and code go in bare.
    first_line      whether only the first line of the answer is graded.
    """

    name: str
    category: Category
    metric: Metric
    max_new_tokens: int
    language: Language
    rows: int
    chat: bool
    first_line: bool


def _task(
    name: str, category: Category, metric: Metric, max_new_tokens: int, language: Language = "en", rows: int = 200
) -> LongBenchTask:
    return LongBenchTask(
        name, category, metric, max_new_tokens, language, rows, name not in _NO_CHAT, name in _FIRST_LINE
    )


_ALL = (
    _task("narrativeqa", "single_doc_qa", "qa_f1", 128),
    _task("qasper", "single_doc_qa", "qa_f1", 128),
    _task("multifieldqa_en", "single_doc_qa", "qa_f1", 64, rows=150),
    _task("multifieldqa_zh", "single_doc_qa", "qa_f1_zh", 64, "zh"),
    _task("hotpotqa", "multi_doc_qa", "qa_f1", 32),
    _task("2wikimqa", "multi_doc_qa", "qa_f1", 32),
    _task("musique", "multi_doc_qa", "qa_f1", 32),
    _task("dureader", "multi_doc_qa", "rouge_l_zh", 128, "zh"),
    _task("gov_report", "summarization", "rouge_l", 512),
    _task("qmsum", "summarization", "rouge_l", 512),
    _task("multi_news", "summarization", "rouge_l", 512),
    _task("vcsum", "summarization", "rouge_l_zh", 512, "zh"),
    _task("trec", "few_shot", "classification", 64),
    _task("triviaqa", "few_shot", "qa_f1", 32),
    _task("samsum", "few_shot", "rouge_l", 128),
    _task("lsht", "few_shot", "classification", 64, "zh"),
    _task("passage_count", "synthetic", "count", 32),
    _task("passage_retrieval_en", "synthetic", "retrieval", 32),
    _task("passage_retrieval_zh", "synthetic", "retrieval_zh", 32, "zh"),
    _task("lcc", "code", "edit_similarity", 64, "code", rows=500),
    _task("repobench-p", "code", "edit_similarity", 64, "code", rows=500),
)
TASKS: Mapping[str, LongBenchTask] = MappingProxyType({task.name: task for task in _ALL})
