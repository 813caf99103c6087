"""The task table agrees with what LongBench publishes, and templates put data into prompts unharmed."""

import json
import re
from collections import Counter
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.benchmarks.longbench.tasks import TASKS
from jobs.benchmarks.longbench.templates import TEMPLATES, fill, read_templates
from jobs.grading.texts import METRICS, Metric
from tiercache.errors import BenchmarkError

NO_QUESTION = {"gov_report", "multi_news", "vcsum", "passage_count", "lcc"}


def test_counts_of_the_task_table() -> None:
    assert len(TASKS) == 21
    assert all(task.name == name for name, task in TASKS.items())
    assert sum(task.rows for task in TASKS.values()) == 4750  # as 2308.14508 says
    assert Counter(task.language for task in TASKS.values()) == {"en": 14, "zh": 5, "code": 2}
    assert Counter(task.category for task in TASKS.values()) == {
        "single_doc_qa": 4,
        "multi_doc_qa": 4,
        "summarization": 4,
        "few_shot": 4,
        "synthetic": 3,
        "code": 2,
    }
    assert Counter(task.max_new_tokens for task in TASKS.values()) == {32: 7, 64: 6, 128: 4, 512: 4}


def test_metrics_of_the_task_table() -> None:
    assert {task.metric for task in TASKS.values()} == set(METRICS) == set(get_args(Metric))
    for task in TASKS.values():
        if task.metric != "classification":
            assert task.metric.endswith("_zh") == (task.language == "zh")


def test_tasks_without_chat_template_and_with_one_line() -> None:
    bare = {name for name, task in TASKS.items() if not task.chat}
    assert bare == {"trec", "triviaqa", "samsum", "lsht", "lcc", "repobench-p"}
    assert {name for name, task in TASKS.items() if task.first_line} == bare - {"lcc", "repobench-p"}


def test_each_task_has_a_template_of_its_own() -> None:
    assert TEMPLATES.keys() == TASKS.keys()
    assert len(set(TEMPLATES.values())) == 21


@pytest.mark.parametrize("name", TASKS)
def test_fields_and_language_of_a_template(name: str) -> None:
    template = TEMPLATES[name]
    assert template.count("{context}") == 1
    assert template.count("{input}") == (name not in NO_QUESTION)
    assert name in NO_QUESTION or template.index("{context}") < template.index("{input}")
    assert "{" not in template.replace("{context}", "").replace("{input}", "")
    assert bool(re.search("[一-鿿]", template)) == (TASKS[name].language == "zh")


@pytest.mark.parametrize("name", TASKS)
@given(
    context=st.text(alphabet="ab{}01cinputext\0\\", max_size=30), question=st.text(alphabet="ab{}context", max_size=20)
)
def test_data_go_into_the_prompt_as_they_are(name: str, context: str, question: str) -> None:
    before, after = TEMPLATES[name].split("{context}")
    assert fill(TEMPLATES[name], context, question) == before + context + after.replace("{input}", question)


def test_braces_in_data_and_template_are_text() -> None:
    assert fill("{context}|{input}|{}|{other}", "{input} {0} {", "{context}") == "{input} {0} {|{context}|{}|{other}"


def _write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "templates.json"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_users_templates(tmp_path: Path) -> None:
    mine = {
        "lcc": "{context}",
        "vcsum": "总结：{context}",
        "qasper": 'Of the form {"a": 1}: {context} {input} {context}',
    }
    assert read_templates(_write(tmp_path, json.dumps(mine))) == mine


@pytest.mark.parametrize("name", TASKS)
def test_our_own_templates_can_be_read_back(name: str, tmp_path: Path) -> None:
    assert read_templates(_write(tmp_path, json.dumps({name: TEMPLATES[name]})))[name] == TEMPLATES[name]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"qaspr": "{context}"}', "qaspr: no such task. Did you mean 'qasper'"),
        ('{"qasper": "{input}"}', "qasper: lacks {context}"),
        ('{"qasper": "{ context }"}', "qasper: lacks {context}"),
        ('{"qasper": "{context} {question}"}', "qasper: unknown field {question}"),
        ('{"qasper": "{context} {}"}', "qasper: unknown field {}"),
        ('{"qasper": "{context} {0}"}', "qasper: unknown field {0}"),
        ('{"qasper": 3}', "qasper: a template is text, not int"),
        ('{"qasper": null}', "qasper: a template is text, not NoneType"),
        ("{}", "has to be a JSON object"),
        ('["{context}"]', "has to be a JSON object"),
        ("qasper: {context}", "isn't JSON"),
        ("[" * 100_000, "isn't JSON"),
        ("", "isn't JSON"),
    ],
)
def test_a_wrong_file_is_refused(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(BenchmarkError, match=re.escape(message)):
        read_templates(_write(tmp_path, text))


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "latin.json").write_bytes(b'{"qasper": "\xe9"}')
    for path in (tmp_path / "none.json", tmp_path, tmp_path / "latin.json"):
        with pytest.raises(BenchmarkError, match="can't be read as UTF-8 text"):
            read_templates(path)
