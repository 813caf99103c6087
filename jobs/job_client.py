"""Talking to the dashboard of a Ray cluster, where jobs are submitted: reaching it, errors, and following one job."""

import asyncio
import logging
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from tiercache.errors import ResourceError, SpecError
from tiercache.strict import nearest

if TYPE_CHECKING:
    from ray.job_submission import JobDetails, JobSubmissionClient

SWEEP_JOB = re.compile(r"sweep-[0-9a-f]{12}(-[0-9]+)?")
ANSWER_S = 10.0
PAUSE_S = 1.0
RECONNECTS = 20  # without a new line in between
INTERRUPTED = 130
_OVERRIDES = ("RAY_API_SERVER_ADDRESS", "RAY_ADDRESS")  # Ray lets them win over the address that it is given


def connect(address: str) -> "JobSubmissionClient":
    """A client of the cluster's job server, which has answered.

    Raises:
        ResourceError: nothing listens there, it isn't Ray's dashboard, it refuses the token, or its Ray is another one.
    """
    url = clean_url(address)
    _probe(url)
    import ray.job_submission

    for handler in logging.getLogger("ray").handlers:  # it tells of each package and connection
        handler.setLevel(logging.ERROR)
    kept = {name: os.environ.pop(name) for name in _OVERRIDES if name in os.environ}
    try:
        with answered(url):
            return ray.job_submission.JobSubmissionClient(url)
    finally:
        os.environ.update(kept)


def clean_url(address: str) -> str:
    """The dashboard's URL; `http://` may be left out, and what a browser adds at the end is dropped.

    Raises:
        ResourceError: it is something else, such as Ray's own `auto` or `ray://`, or holds a password.
    """
    try:
        parts = urlsplit(address if "://" in address else f"http://{address}")
        named = parts.port or "://" in address
    except ValueError:  # a port or a bracket that isn't one
        parts, named = urlsplit(""), False
    good = parts.scheme in ("http", "https") and bool(parts.hostname) and named
    if "@" in address:
        raise ResourceError("address: holds a user or a password; Ray takes a token, from ~/.ray/auth_token.")
    if not good:
        raise ResourceError(
            f"address: '{address}' isn't a Ray dashboard's URL; allowed: http://HOST:8265, https://HOST."
        )
    return f"{parts.scheme}://{parts.netloc}{parts.path}".rstrip("/")


def _probe(url: str) -> None:
    """Asks for the version, within a time limit: Ray's client has none."""
    import ray
    import requests
    from ray._private.authentication.http_token_authentication import get_auth_headers_if_auth_enabled
    from ray.exceptions import AuthenticationError

    try:
        headers = get_auth_headers_if_auth_enabled({})
    except AuthenticationError:
        raise ResourceError(f"RAY_AUTH_MODE is token, and no token was found. {_TOKEN}") from None
    try:
        answer = requests.get(f"{url}/api/version", headers=headers, timeout=ANSWER_S)
    except requests.Timeout:
        raise ResourceError(f"address: {url} doesn't answer within {ANSWER_S:.0f} s. {_START}") from None
    except requests.ConnectionError as problem:
        raise ResourceError(f"address: no Ray dashboard answers at {url} ({_reason(problem)}). {_START}") from None
    except requests.RequestException as problem:  # its text can hold the token
        raise ResourceError(f"address: {url} can't be asked ({type(problem).__name__}). {_TOKEN}") from None
    if answer.status_code == 401:
        raise ResourceError(f"address: {url} asks for a token. export RAY_AUTH_MODE=token. {_TOKEN}")
    if answer.status_code == 403:
        raise ResourceError(f"address: {url} refuses the token of this machine. {_TOKEN}")
    try:
        theirs = str(answer.json()["ray_version"])
    except (ValueError, TypeError, KeyError):
        raise ResourceError(
            f"address: {url} answers (HTTP {answer.status_code}), but not as a Ray dashboard does. {_START}"
        ) from None
    if theirs.split(".")[:2] != ray.__version__.split(".")[:2]:
        raise ResourceError(
            f"address: {url} runs Ray {theirs[:40]}; here is Ray {ray.__version__}. Install the same on both: "
            f"pip install 'ray[default]=={theirs[:40]}' here, or {ray.__version__} on every node."
        )


_TOKEN = (
    "Copy the cluster's token to ~/.ray/auth_token here (on the head `ray get-auth-token` prints it), or name its file "
    "in RAY_AUTH_TOKEN_PATH."
)
_START = (
    "The address is that of the dashboard: port 8265 of the head node, unless `ray start --head` was given another "
    "--dashboard-port; from elsewhere through a tunnel: ssh -L 8265:127.0.0.1:8265 HEAD."
)


def _reason(problem: Exception) -> str:
    """The innermost cause, without the addresses of objects in it."""
    cause = getattr(problem.args[0] if problem.args else None, "reason", None)
    return str(cause).rpartition(": ")[2][:200] if cause else "what listens there isn't a web server"


@contextmanager
def answered(url: str, hide: Callable[[str], str] = str) -> Iterator[None]:
    """Turns what Ray's client raises into one message. `hide` takes secrets out of it.

    Raises:
        ResourceError: the cluster refused, or was lost.
    """
    from ray.exceptions import AuthenticationError

    try:
        yield
    except AuthenticationError:
        raise ResourceError(f"address: {url} refuses the token of this machine. {_TOKEN}") from None
    except (RuntimeError, OSError, ValueError) as problem:
        lines = hide(str(problem)).strip().splitlines() or [type(problem).__name__]
        last = f" … {lines[-1]}" if len(lines) > 1 else ""  # a traceback of the server's says what happened last
        raise ResourceError(f"address: {url}: {lines[0][:300]}{last[:300]}") from None


def sweep_jobs(client: "JobSubmissionClient") -> "list[JobDetails]":
    """Submitted jobs of the cluster, the newest first."""
    with answered(client.get_address()):
        jobs = [job for job in client.list_jobs() if job.submission_id]
    return sorted(jobs, key=lambda job: (job.start_time or 0, job.submission_id), reverse=True)


def pick_job(jobs: "Sequence[JobDetails]", wanted: str | None) -> "JobDetails":
    """The job of that id; None: the newest that runs a sweep.

    Raises:
        SpecError: there is none.
    """
    ids = [str(job.submission_id) for job in jobs]
    for job, name in zip(jobs, ids, strict=True):
        if name == wanted or (wanted is None and SWEEP_JOB.fullmatch(name)):
            return job
    if wanted is None or not ids:
        raise SpecError("no sweep was submitted to this cluster yet; submit one with: tiercache submit SPEC")
    raise SpecError(f"no job '{wanted}' on this cluster.{nearest(wanted, ids)} It has: {', '.join(ids[:10])}.")


def follow(client: "JobSubmissionClient", job: str, write: Callable[[str], object]) -> "JobDetails":
    """Hands the job's log to `write`, from its beginning and as it grows, until the job ends; then what became of it.

    A connection that breaks is made again, and goes on where it broke off.

    Raises:
        ResourceError: the cluster can't be reached any more.
    """
    import aiohttp

    shown = misses = 0

    async def read() -> None:
        nonlocal shown
        skip = shown
        async for text in client.tail_job_logs(job):
            new, skip = text[skip:], max(0, skip - len(text))
            shown += len(new)
            write(new)

    while True:
        before, lost = shown, False
        try:
            asyncio.run(read())
        except (RuntimeError, OSError, aiohttp.ClientError):
            lost = True
        misses = 0 if shown > before else misses + 1
        try:
            with answered(client.get_address()):
                info = client.get_job_info(job)
                if info.status.is_terminal():
                    if lost:
                        write(client.get_job_logs(job)[shown:])
                    return info
        except ResourceError:
            if misses >= RECONNECTS:
                raise
        time.sleep(PAUSE_S)


def exit_code(job: "JobDetails") -> int:
    """What the command itself would have ended with; 130 for a job that was stopped, 1 for one that never began."""
    if str(job.status) == "STOPPED":
        return INTERRUPTED
    code = job.driver_exit_code
    if code is None:
        return 0 if str(job.status) == "SUCCEEDED" else 1
    return int(code) if code >= 0 else 128 - int(code)
