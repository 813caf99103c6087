"""Prompt templates of the 21 tasks: our own wording, so scores aren't those of LongBench's own prompts.

A template has the fields `{context}`, once or more, and `{input}` where the task has a question or a last example.
Everything else in it, braces too, is text. The question comes after the context.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from jobs.benchmarks.longbench.tasks import TASKS
from tiercache.errors import BenchmarkError
from tiercache.strict import nearest

FIELDS = ("context", "input")
_FIELD = re.compile(r"\{(\w*)\}")
_REMEDY = "Write one JSON object of the form {task: template}."

TEMPLATES: Mapping[str, str] = MappingProxyType(
    {
        "narrativeqa": (
            "Below is a story, from a novel or a film script. A question about it follows.\n\n{context}\n\n"
            "What the question asks is told in the story. Reply in a few words and give no reasons.\n"
            "Question: {input}\nAnswer:"
        ),
        "qasper": (
            "Below is a research paper. A question about it follows.\n\n{context}\n\n"
            "Reply in a phrase or one sentence. Where yes or no is asked for, reply `yes` or `no`. "
            "If the paper doesn't say, reply `unanswerable`.\nQuestion: {input}\nAnswer:"
        ),
        "multifieldqa_en": (
            "Below is a document. A question about it follows.\n\n{context}\n\n"
            "Reply briefly, from the document alone.\nQuestion: {input}\nAnswer:"
        ),
        "multifieldqa_zh": (
            "下面是一篇文档，文档之后有一个问题。\n\n{context}\n\n"
            "回答要简短，并且只依据这篇文档。\n问题：{input}\n答案："
        ),
        "hotpotqa": (
            "Below are several passages. The question after them needs facts from more than one.\n\n{context}\n\n"
            "Reply with the bare answer, no sentence around it.\nQuestion: {input}\nAnswer:"
        ),
        "2wikimqa": (
            "Below are articles from an encyclopedia. Combine what they say to reply to the question at the end.\n\n"
            "{context}\n\nName the answer and nothing more.\nQuestion: {input}\nAnswer:"
        ),
        "musique": (
            "Read these passages. The question at the end takes several steps through them.\n\n{context}\n\n"
            "Write down the result of the last step alone.\nQuestion: {input}\nAnswer:"
        ),
        "dureader": (
            "下面是网上搜到的若干篇文章，之后有人提了一个问题。\n\n{context}\n\n"
            "请根据这些文章作答。\n问题：{input}\n回答："
        ),
        "gov_report": (
            "Below is a report by a public body.\n\n{context}\n\n"
            "Summarise the report on one page: its purpose, its findings and what it recommends.\nSummary:"
        ),
        "qmsum": (
            "Below is the transcript of a meeting. A request about it follows.\n\n{context}\n\n"
            "Reply to the request in a few sentences, from what was said.\nRequest: {input}\nReply:"
        ),
        "multi_news": (
            "Below are news articles on one event.\n\n{context}\n\n"
            "Summarise on one page what they report between them.\nSummary:"
        ),
        "vcsum": "下面是一次会议的逐字记录。\n\n{context}\n\n请概括会议讨论了什么、得出了哪些结论。\n摘要：",
        "trec": (
            "Each question below is followed by the type of thing that it asks for. Give the type of the last one.\n\n"
            "{context}\n{input}"
        ),
        "triviaqa": (
            "Each passage below is followed by a question and its short answer. Give the answer to the last question."
            "\n\n{context}\n\n{input}"
        ),
        "samsum": (
            "Each conversation below is followed by a short summary. Summarise the last conversation in the same way."
            "\n\n{context}\n\n{input}"
        ),
        "lsht": "下面每条新闻后面都标有它的类别。请写出最后一条新闻的类别。\n\n{context}\n{input}",
        "passage_count": (
            "Below are numbered paragraphs. Some of them are copies of others.\n\n{context}\n\n"
            "How many paragraphs are there if copies count once? Reply with one number.\nNumber:"
        ),
        "passage_retrieval_en": (
            "Below are numbered paragraphs, then a summary of one of them.\n\n{context}\n\nSummary: {input}\n\n"
            "Which paragraph does it summarise? Reply in the form `Paragraph N`.\nAnswer:"
        ),
        "passage_retrieval_zh": (
            "下面是带编号的段落，最后是其中某一段的摘要。\n\n{context}\n\n摘要：{input}\n\n"
            "这是哪一段的摘要？请按“段落N”的格式回答。\n答案："
        ),
        "lcc": "This program breaks off. Write the line that comes next.\n{context}The line that comes next:\n",
        "repobench-p": (
            "First files of a repository, then one file that breaks off. Write the next line of that file.\n"
            "{context}{input}The next line of the file:\n"
        ),
    }
)


def fill(template: str, context: str, question: str = "") -> str:
    """The prompt. What stands in the data is never read as a field, whatever braces it has."""
    values = {"context": context, "input": question}
    return _FIELD.sub(lambda match: values.get(match[1], match[0]), template)


def read_templates(path: Path) -> dict[str, str]:
    """A user's templates, task to text, of as many tasks as the JSON file names.

    Raises BenchmarkError if the file can't be read, or names an unknown task or field, or leaves out `{context}`.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as problem:
        raise BenchmarkError(f"templates: {path}: can't be read as UTF-8 text: {problem}. {_REMEDY}") from None
    except (ValueError, RecursionError) as problem:
        raise BenchmarkError(f"templates: {path}: isn't JSON: {problem}. {_REMEDY}") from None
    if not isinstance(content, dict) or not content:
        raise BenchmarkError(f"templates: {path}: has to be a JSON object that isn't empty. {_REMEDY}")
    for task, template in content.items():
        _check(f"templates: {path}: {task}", task, template)
    return content


def _check(where: str, task: str, template: object) -> None:
    if task not in TASKS:
        raise BenchmarkError(f"{where}: no such task.{nearest(task, TASKS)} Tasks: {', '.join(TASKS)}.")
    if not isinstance(template, str):
        raise BenchmarkError(f"{where}: a template is text, not {type(template).__name__}.")
    fields = set(_FIELD.findall(template))
    if unknown := sorted(fields.difference(FIELDS)):
        names = ", ".join(f"{{{name}}}" for name in unknown)
        raise BenchmarkError(
            f"{where}: unknown field {names}. Allowed are {{context}}, which is required, and {{input}}."
        )
    if "context" not in fields:
        raise BenchmarkError(f"{where}: lacks {{context}}; write it where the long text has to go.")
