"""The job server of a cluster: what answers at an address is told apart, and a job's log comes once and whole."""

import http.server
import os
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import ray

from jobs import job_client
from jobs.job_client import clean_url, connect, exit_code, follow, pick_job
from jobs.printable import printable
from tiercache.errors import ResourceError, SpecError


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("RAY_")]:
        monkeypatch.delenv(name)


def job(name: str, status: str = "RUNNING", **more: Any) -> Any:
    from ray.job_submission import JobStatus

    facts = {"start_time": 0, "driver_exit_code": None, "message": None, "runtime_env": {}, **more}
    return SimpleNamespace(submission_id=name, status=JobStatus(status), **facts)


def fake(client: Any) -> Any:
    """Stands in for Ray's client."""
    return client


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("http://127.0.0.1:8265", "http://127.0.0.1:8265"),
        ("head:8265", "http://head:8265"),
        ("[::1]:8265", "http://[::1]:8265"),
        ("https://ray.example.org/", "https://ray.example.org"),
        ("http://head:8265/#/jobs", "http://head:8265"),
        ("https://example.org/ray/", "https://example.org/ray"),
        *(
            (wrong, None)
            for wrong in ("auto", "local", "head", "ray://head:10001", "os://x", "http://", "http://h:x", "")
        ),
        ("http://h:99999", None),
        ("http://me:pass@h:8265", None),
        ("http://me:pass@h:x", None),
    ],
)
def test_addresses(given: str, expected: str | None) -> None:
    if expected is not None:
        assert clean_url(given) == expected
        return
    with pytest.raises(ResourceError, match="address:") as refused:
        clean_url(given)
    assert "pass@" not in str(refused.value)


def served(status: int, body: bytes) -> Iterator[str]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (401, b"", "asks for a token.*RAY_AUTH_MODE=token"),
        (403, b"", "refuses the token of this machine.*auth_token"),
        (200, b'{"ray_version": "2.9.3"}', rf"runs Ray 2\.9\.3; here is Ray {ray.__version__}.*pip install"),
        (200, b'{"ray_version": 3}', "runs Ray 3;"),
        (200, b"<html>", r"answers \(HTTP 200\), but not as a Ray dashboard"),
        (200, b"[]", "not as a Ray dashboard"),
        (404, b"", r"answers \(HTTP 404\), but not as"),
        (500, b'{"detail": 1}', r"answers \(HTTP 500\), but not as"),
    ],
)
def test_what_answers_at_an_address_is_told_apart(status: int, body: bytes, words: str) -> None:
    for address in served(status, body):
        with pytest.raises(ResourceError, match=words):
            connect(address)


def test_where_nothing_listens_or_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_client, "ANSWER_S", 0.3)
    monkeypatch.setenv("RAY_ADDRESS", "http://127.0.0.1:2")  # Ray would take it, whatever was asked for
    with pytest.raises(ResourceError, match=r"answers at http://127\.0\.0\.1:1 \(.*refused\).*ray start"):
        connect("127.0.0.1:1")
    assert os.environ["RAY_ADDRESS"] == "http://127.0.0.1:2"
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        with pytest.raises(ResourceError, match="doesn't answer within"):
            connect(f"127.0.0.1:{silent.getsockname()[1]}")


def test_picking_a_job() -> None:
    jobs = [job("raysubmit_1"), job("sweep-0123456789ab-2"), job("sweep-0123456789ab")]
    assert pick_job(jobs, None).submission_id == "sweep-0123456789ab-2"
    assert pick_job(jobs, "raysubmit_1").submission_id == "raysubmit_1"
    with pytest.raises(SpecError, match=r"Did you mean 'sweep-0123456789ab'\?"):
        pick_job(jobs, "sweep-0123456789aa")
    with pytest.raises(SpecError, match="no sweep was submitted"):
        pick_job(jobs[:1], None)


def test_a_connection_that_breaks_is_made_again_and_no_line_comes_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_client, "PAUSE_S", 0.0)
    log, shown = "first\nsecond\nthird\nlast\n", list[str]()
    breaks = iter([9, 3, 9, 20, None])  # characters until each connection breaks; the job ends at the last

    class Client:
        ended = False

        def get_address(self) -> str:
            return "http://h"

        async def tail_job_logs(self, _: str) -> AsyncIterator[str]:
            length = next(breaks)
            for i in range(0, length or 20, 4):
                yield log[i : min(i + 4, length or 20)]
            if length is None:
                self.ended = True
            raise RuntimeError("closed")

        def get_job_info(self, name: str) -> Any:
            return job(name, "SUCCEEDED" if self.ended else "RUNNING")

        def get_job_logs(self, _: str) -> str:
            return log

    assert str(follow(fake(Client()), "x", shown.append).status) == "SUCCEEDED"
    assert "".join(shown) == log


def test_a_cluster_that_is_gone_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_client, "PAUSE_S", 0.0)

    class Client:
        tries = 0

        def get_address(self) -> str:
            return "http://h"

        async def tail_job_logs(self, _: str) -> AsyncIterator[str]:
            raise RuntimeError
            yield ""

        def get_job_info(self, _: str) -> Any:
            self.tries += 1
            raise ConnectionError("refused")

    client = Client()
    with pytest.raises(ResourceError, match="http://h: refused"):
        follow(fake(client), "x", print)
    assert client.tries == job_client.RECONNECTS


@pytest.mark.parametrize(
    ("status", "code", "expected"),
    [
        ("SUCCEEDED", 0, 0),
        ("FAILED", 1, 1),
        ("FAILED", 2, 2),
        ("FAILED", -9, 137),
        ("FAILED", None, 1),
        ("STOPPED", None, 130),
    ],
)
def test_exit_codes_are_those_of_the_command(status: str, code: int | None, expected: int) -> None:
    assert exit_code(job("x", status, driver_exit_code=code)) == expected


def test_a_terminal_does_not_obey_a_log() -> None:
    assert printable("a\x1b[2Jb\r\x07\tc\n\u202ed\ud800é│") == "a\\x1b[2Jb\\r\\x07\tc\n\\u202ed\\ud800é│"
