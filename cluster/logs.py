"""Logs that a person or a machine reads: plain lines, or one JSON object a line with the sweep's context in it.

    TIERCACHE_LOG        text (default) or json
    TIERCACHE_LOG_LEVEL  debug, info, warning (default) or error: of this project; other libraries stay at warning

A worker on another machine logs as its driver does, to its own stderr, which Ray keeps in a file on that node.
Passwords are masked in both forms. Control characters are escaped, so that a model's text can forge no line.
"""

import logging
import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from functools import cache
from json import dumps, loads

from tiercache.errors import SpecError
from tiercache.strict import nearest

FORMS = ("text", "json")
LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
FIELDS = ("sweep", "cell", "actor", "shard")
OURS = ("tiercache", "cluster", "jobs", "db", "dashboard", "reasoner")

CONTEXT = "TIERCACHE_LOG_CONTEXT"  # how a process tells those it starts what it works on
PASSED_ON = ("TIERCACHE_LOG", "TIERCACHE_LOG_LEVEL")

_context: ContextVar[Mapping[str, str]] = ContextVar("tiercache_log_context")  # unset: no fields


@contextmanager
def log_context(
    *, sweep: str | None = None, cell: str | None = None, actor: str | None = None, shard: str | None = None
) -> Iterator[None]:
    """Adds fields to every line that is logged inside, on top of those of an outer context. None adds nothing."""
    given = {"sweep": sweep, "cell": cell, "actor": actor, "shard": shard}
    token = _context.set({**_context.get({}), **{name: value for name, value in given.items() if value is not None}})
    try:
        yield
    finally:
        _context.reset(token)


def environment() -> dict[str, str]:
    """Variables under which another process logs as this one does, with the same context."""
    given = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    return {**given, CONTEXT: dumps(dict(_context.get({})))}


def configure(json: bool | None = None, level: str | None = None) -> None:
    """Sends logs to stderr in the form that is asked for; what is None is taken from the environment. May be repeated.

    Raises:
        SpecError: a form or level that doesn't exist.
    """
    if json is None:
        json = _choice("TIERCACHE_LOG", os.environ.get("TIERCACHE_LOG") or "text", FORMS) == "json"
    name, value = ("level", level) if level else ("TIERCACHE_LOG_LEVEL", os.environ.get("TIERCACHE_LOG_LEVEL"))
    chosen = LEVELS[_choice(name, value or "warning", LEVELS)]
    root = logging.getLogger()
    for old in [each for each in root.handlers if isinstance(each, _Stderr)]:
        root.removeHandler(old)
    handler = _Stderr()
    handler.setFormatter(JsonFormatter() if json else TextFormatter())
    root.addHandler(handler)
    for package in OURS:
        logging.getLogger(package).setLevel(chosen)


class JsonFormatter(logging.Formatter):
    """time (UTC, ISO 8601), level, logger, message, the context's fields, and the traceback as `exception`."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": mask(record.getMessage()),
            **_fields(record),
        }
        if trace := _trace(self, record):
            line["exception"] = mask(trace)
        return dumps(line)


class TextFormatter(logging.Formatter):
    """`2026-01-31T12:00:00.000+00:00 warning cluster.pool: message [sweep=demo-1a2b]`, then the traceback."""

    def format(self, record: logging.LogRecord) -> str:
        fields = " ".join(f"{name}={value}" for name, value in _fields(record).items())
        message = mask(record.getMessage()) + (f" [{fields}]" if fields else "")
        line = f"{_time(record)} {record.levelname.lower()} {record.name}: {_one_line(message)}"
        trace = _trace(self, record)
        return line + "".join(f"\n    {_one_line(each)}" for each in mask(trace).split("\n") if trace)


def mask(text: str) -> str:
    """The text with *** for passwords in URLs, in `password=...`, and for bearer and Hugging Face tokens.

    A word is masked from the first colon after `://` up to its last `@`: too much rather than too little. Linear in
    the text's length.
    """
    if "://" in text and "@" in text:
        text = re.sub(r"\S+", _url, text)
    return _TOKEN.sub(r"\1***", _SECRET.sub(r"\1\2***", text))


_SECRET = re.compile(r"(?i)(password|passwd|secret|auth_token)([\"']?\s?[=:]\s?[\"']?)[^\s\"']+")
_TOKEN = re.compile(r"(\bhf_|\b[Bb]earer )[A-Za-z0-9._~+/=-]{8,}")


def _url(word: re.Match[str]) -> str:
    scheme, _, rest = word[0].partition("://")
    login, at, place = rest.rpartition("@")
    user, colon, _ = login.partition(":")
    return f"{scheme}://{user}:***@{place}" if at and colon else word[0]


class _Stderr(logging.Handler):
    """Looks stderr up each time: a live display and tests put another one in its place."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            sys.stderr.write(self.format(record).encode("utf-8", "backslashreplace").decode() + "\n")
            sys.stderr.flush()
        except Exception:
            self.handleError(record)


def _choice(name: str, value: str, allowed: Mapping[str, int] | tuple[str, ...]) -> str:
    lowered = value.strip().lower()
    if lowered not in allowed:
        raise SpecError(f"{name}: unknown value '{value}'.{nearest(lowered, allowed)} Allowed: {', '.join(allowed)}.")
    return lowered


@cache
def _inherited() -> Mapping[str, str]:
    """What the process that started this one works on."""
    found: Mapping[str, str] = loads(os.environ.get(CONTEXT) or "{}")
    return found


def _fields(record: logging.LogRecord) -> dict[str, str]:
    """Of the context; what a call gives as `extra` goes before it."""
    context = {**_inherited(), **_context.get({})}
    found = {name: getattr(record, name, None) or context.get(name) for name in FIELDS}
    return {name: mask(str(value)) for name, value in found.items() if value is not None}


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")


def _trace(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    return formatter.formatException(record.exc_info) if record.exc_info and record.exc_info[0] else ""


def _one_line(text: str) -> str:
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)
