"""Logs: one object a line, the context's fields, nothing secret, no forged lines."""

import json
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.logs import FIELDS, OURS, JsonFormatter, TextFormatter, configure, environment, log_context, mask
from tiercache.errors import SpecError

log = logging.getLogger("jobs.something")


@pytest.fixture(autouse=True)
def _restored(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("TIERCACHE_LOG", "TIERCACHE_LOG_LEVEL"):
        monkeypatch.delenv(name, raising=False)
    root = logging.getLogger()
    handlers, levels = list(root.handlers), {name: logging.getLogger(name).level for name in OURS}
    yield
    root.handlers[:] = handlers
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().err.splitlines()


def record(message: str) -> logging.LogRecord:
    return logging.LogRecord("jobs.x", logging.WARNING, "x.py", 1, message, None, None)


def test_json_has_the_message_its_origin_and_the_context(capsys: pytest.CaptureFixture[str]) -> None:
    configure(json=True, level="info")
    with log_context(sweep="demo-1"):
        with log_context(cell="c1", actor="host:7"):
            log.info("shard %s done", "s9", extra={"shard": "s9"})
        log.warning("outer")
    log.warning("bare")
    inner, outer, bare = map(json.loads, lines(capsys))
    moment = datetime.fromisoformat(inner.pop("time"))
    assert moment.utcoffset() == timedelta(0)
    assert abs(moment.timestamp() - time.time()) < 60
    assert inner == {
        "level": "info",
        "logger": "jobs.something",
        "message": "shard s9 done",
        "sweep": "demo-1",
        "cell": "c1",
        "actor": "host:7",
        "shard": "s9",
    }
    assert {name for name in FIELDS if name in outer} == {"sweep"}
    assert not {name for name in FIELDS if name in bare}


def test_text_is_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    configure(json=False, level="info")
    with log_context(sweep="demo-1", cell=None):
        log.info("ready")
    assert lines(capsys)[0].endswith(" info jobs.something: ready [sweep=demo-1]")


def test_the_context_ends_with_its_block_also_by_an_exception_and_stays_in_its_thread() -> None:
    found: list[str] = []

    def other() -> None:
        found.append(JsonFormatter().format(record("x")))

    def inside() -> None:
        with log_context(sweep="a"):
            thread = threading.Thread(target=other)
            thread.start()
            thread.join()
            raise KeyError

    with pytest.raises(KeyError):
        inside()
    assert "sweep" not in json.loads(found[0])
    assert "sweep" not in json.loads(JsonFormatter().format(record("x")))


@pytest.mark.parametrize(
    ("form", "level", "shown"),
    [(None, None, 1), ("text", "INFO", 2), ("json", "debug", 3), ("JSON", "error", 0), ("", "", 1)],
)
def test_the_environment_decides(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    form: str | None,
    level: str | None,
    shown: int,
) -> None:
    for name, value in (("TIERCACHE_LOG", form), ("TIERCACHE_LOG_LEVEL", level)):
        if value is not None:
            monkeypatch.setenv(name, value)
    configure()
    log.debug("d")
    log.info("i")
    log.warning("w")
    logging.getLogger("elsewhere").info("other libraries keep to warnings")
    found = lines(capsys)
    assert len(found) == shown
    assert all(line.startswith("{") == (form or "").lower().startswith("json") for line in found)


def test_configuring_again_replaces(capsys: pytest.CaptureFixture[str]) -> None:
    configure(json=False)
    configure(json=True)
    log.warning("once")
    assert len(lines(capsys)) == 1


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("TIERCACHE_LOG", "jsno", "TIERCACHE_LOG: unknown value 'jsno'. Did you mean 'json'? Allowed: text, json."),
        (
            "TIERCACHE_LOG_LEVEL",
            "loud",
            "TIERCACHE_LOG_LEVEL: unknown value 'loud'. Allowed: debug, info, warning, error.",
        ),
    ],
)
def test_a_wrong_value_is_named(monkeypatch: pytest.MonkeyPatch, variable: str, value: str, message: str) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(SpecError) as caught:
        configure()
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("postgresql://me:hunter2@host/db", "postgresql://me:***@host/db"),
        ("to 'postgresql+psycopg://me:hunter2@host:5432/db'.", "to 'postgresql+psycopg://me:***@host:5432/db'."),
        ("postgresql://me:hun/ter@2:x@host/db", "postgresql://me:***@host/db"),
        ("postgresql://me@host/db at http://127.0.0.1:8501", "postgresql://me@host/db at http://127.0.0.1:8501"),
        ("host=h password=hunter2 user=me", "host=h password=*** user=me"),
        ("PGPASSWORD: hunter2", "PGPASSWORD: ***"),
        ("{'password': 'hunter2', 'n': 3}", "{'password': '***', 'n': 3}"),
        ("RAY_AUTH_TOKEN=0123abc", "RAY_AUTH_TOKEN=***"),
        ("Authorization: Bearer abcdefgh123", "Authorization: Bearer ***"),
        ("hf_abcdefghijklmnop", "hf_***"),
        ("next token: 5, tokens=7, a@b.c", "next token: 5, tokens=7, a@b.c"),
    ],
)
def test_secrets_are_masked(text: str, masked: str) -> None:
    assert mask(text) == masked
    assert json.loads(JsonFormatter().format(record(text.replace("%", "%%"))))["message"] == masked
    assert masked in TextFormatter().format(record(text))


@given(st.text(alphabet=st.characters(exclude_categories=("Z", "C", "S")), min_size=1).filter(lambda t: ":" not in t))
def test_no_password_of_a_url_gets_through(password: str) -> None:
    assert mask(f"see db://me:{password}@host/name, please") == "see db://me:***@host/name, please"


def test_secrets_are_masked_in_arguments_tracebacks_and_fields(capsys: pytest.CaptureFixture[str]) -> None:
    url = "postgresql://me:hunter2@host"
    for as_json in (True, False):
        configure(json=as_json)
        with log_context(actor="http://u:hunter2@h"):
            try:
                raise OSError("\n".join([url, "a second line"]))
            except OSError:
                log.exception("at %s", "redis://:hunter2@h")
    found = capsys.readouterr().err
    assert "hunter2" not in found
    assert found.count("***@host") == 2
    assert "OSError" in json.loads(found.splitlines()[0])["exception"]


@given(st.text())
def test_no_text_forges_a_line(text: str) -> None:
    hostile = record("%s")
    hostile.args = (text,)
    for formatter in (JsonFormatter(), TextFormatter()):
        assert len(formatter.format(hostile).splitlines()) == 1
    assert json.loads(JsonFormatter().format(hostile))["message"] == mask(text)


@pytest.mark.parametrize("piece", ["://a:", "@", "password=", "://a:b@ ", "Bearer ", "secret' : '"])
def test_masking_takes_linear_time(piece: str) -> None:
    def seconds(n: int) -> float:
        start = time.perf_counter()
        mask(piece * n)
        return time.perf_counter() - start

    assert seconds(200_000) < 3


def test_a_lone_surrogate_is_written(capsys: pytest.CaptureFixture[str]) -> None:
    configure(json=False)
    log.warning("a\ud800b")
    assert "ud800" in capsys.readouterr().err


def test_a_process_that_is_started_logs_as_this_one_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIERCACHE_LOG", "json")
    monkeypatch.setenv("TIERCACHE_LOG_LEVEL", "info")
    code = "import logging; from cluster.logs import *; configure(); logging.getLogger('cluster.x').info('there')"
    with log_context(sweep="demo-1"):
        given = {**os.environ, **environment()}
        started = subprocess.run([sys.executable, "-c", code], env=given, capture_output=True, text=True, check=True)
    line = json.loads(started.stderr)
    assert (line["message"], line["level"], line["sweep"]) == ("there", "info", "demo-1")
