"""What users bring: prose for haystacks, and questions with their documents from SQuAD v2.0 or HotpotQA."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from tiercache.errors import BenchmarkError


@dataclass(frozen=True)
class Question:
    """A question, its accepted answers, the documents with the answer, and documents on the same matter.

    `near` may have the right ones in it; they are left out when it is used.
    """

    text: str
    answers: tuple[str, ...]
    gold: tuple[str, ...]
    near: tuple[str, ...] = ()


@dataclass(frozen=True)
class Sources:
    """Texts from outside. Without `prose`, haystacks of prose are made up; without `questions` there is no qa."""

    prose: str | None = None
    questions: Sequence[Question] = ()

    def documents(self) -> tuple[str, ...]:
        """All documents of all questions, each once."""
        return tuple(dict.fromkeys(text for question in self.questions for text in (*question.gold, *question.near)))


class _Texts(BaseModel):
    text: list[str]


class SquadRow(BaseModel):
    """A row of `squad_v2`; one without answers still gives a document."""

    title: str
    context: str
    question: str
    answers: _Texts


class _Titles(BaseModel):
    title: list[str]


class _Articles(_Titles):
    sentences: list[list[str]]


class HotpotRow(BaseModel):
    """A row of `hotpot_qa`, distractor setting."""

    question: str
    answer: str
    supporting_facts: _Titles
    context: _Articles


def read_questions(path: Path) -> list[Question]:
    """Questions of a local file: SQuAD v2.0's JSON, HotpotQA's distractor JSON, or rows of either, one a line.

    Raises:
        BenchmarkError: no such file, or not of one of these forms.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        raise BenchmarkError(f"ruler.data: {path}: can't be read as UTF-8 text: {problem}.") from None
    try:
        if path.suffix == ".jsonl":
            return read_rows([json.loads(line) for line in text.split("\n") if line.strip()], str(path))
        data = json.loads(text)
    except (ValueError, RecursionError):
        raise BenchmarkError(f"ruler.data: {path}: isn't JSON, or JSON lines in a file named .jsonl.") from None
    try:
        rows = _squad_rows(data) if isinstance(data, dict) else [_hotpot_row(entry) for entry in data]
    except (LookupError, TypeError, AttributeError, ValueError) as problem:
        raise BenchmarkError(
            f"ruler.data: {path}: is neither SQuAD v2.0's JSON nor HotpotQA's distractor JSON "
            f"({type(problem).__name__}: {problem})."
        ) from None
    return read_rows(rows, str(path))


def _squad_rows(data: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [
        {
            "title": article["title"],
            "context": paragraph["context"],
            "question": entry["question"],
            "answers": {"text": [answer["text"] for answer in entry["answers"]]},
        }
        for article in data["data"]
        for paragraph in article["paragraphs"]
        for entry in paragraph["qas"]
    ]


def _hotpot_row(entry: Mapping[str, Any]) -> dict[str, Any]:
    titles, sentences = zip(*entry["context"], strict=True)
    facts = [title for title, _ in entry["supporting_facts"]]
    return {
        "question": entry["question"],
        "answer": entry["answer"],
        "supporting_facts": {"title": facts},
        "context": {"title": list(titles), "sentences": list(sentences)},
    }


def read_rows(rows: Iterable[Mapping[str, Any]], where: str) -> list[Question]:
    """Questions of rows with the hub's columns of `squad_v2` or `hotpot_qa`; `where` names them in errors.

    Questions without an answer, and those whose documents are missing, are left out.
    """
    rows = list(rows)
    if not rows:
        raise BenchmarkError(f"ruler.data: {where}: has no questions.")
    if isinstance(rows[0], Mapping) and "supporting_facts" in rows[0]:
        questions = [_hotpot(row) for row in _checked(HotpotRow, rows, where)]
    else:
        questions = _squad(_checked(SquadRow, rows, where))
    found = [question for question in questions if question.answers and question.gold]
    if not found:
        raise BenchmarkError(f"ruler.data: {where}: has no question with an answer.")
    return found


Row = TypeVar("Row", bound=BaseModel)


def _checked(kind: type[Row], rows: Iterable[object], where: str) -> list[Row]:
    checked = []
    for index, row in enumerate(rows):
        try:
            checked.append(kind.model_validate(row))
        except ValidationError as problem:
            first = problem.errors()[0]
            field = ".".join(map(str, first["loc"])) or "row"
            raise BenchmarkError(
                f"ruler.data: {where}: question {index}: {field}: {first['msg'].lower()}; "
                f"expected the columns {', '.join(kind.model_fields)}."
            ) from None
    return checked


def _squad(rows: Sequence[SquadRow]) -> list[Question]:
    articles: dict[str, dict[str, None]] = {}
    for row in rows:
        articles.setdefault(row.title, {})[row.context] = None
    near = {title: tuple(contexts) for title, contexts in articles.items()}
    return [Question(row.question.strip(), _stated(row.answers.text), (row.context,), near[row.title]) for row in rows]


def _hotpot(row: HotpotRow) -> Question:
    pairs = zip(row.context.title, row.context.sentences, strict=False)
    documents = {title: f"{title}\n{''.join(sentences)}" for title, sentences in pairs}
    facts = dict.fromkeys(row.supporting_facts.title)
    gold = tuple(documents[title] for title in facts if title in documents)
    return Question(row.question.strip(), _stated([row.answer]), gold, tuple(documents.values()))


def _stated(answers: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(answer.strip() for answer in answers if answer.strip()))
