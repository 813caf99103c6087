"""A sweep as a Ray job: everything that can be wrong is found on this machine, before anything is sent."""

import contextlib
import hashlib
import json
import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jobs.upload import Upload, check_named, check_size, inside, survey
from tiercache.errors import ResourceError, SpecError
from tiercache.model_spec import EMBEDDED

if TYPE_CHECKING:
    from ray.job_submission import JobDetails, JobSubmissionClient

    from jobs.spec import Sweep

FILE_OPTIONS = ("data", "templates", "prose")  # of benchmarks
DATABASE = "TIERCACHE_DB"
ON_NODES = "must exist on the cluster's nodes"


@dataclass(frozen=True)
class Submission:
    """A job that is checked and not sent yet.

    id           without the suffix that a repeated submission gets.
    sweep        its name.
    url          of the database, with its password; None where the node's own default is used.
    entrypoint   shell command; holds no password.
    environment  of the job: the database's URL is here.
    notes        what the user has to see to.
    """

    id: str
    sweep: str
    url: str | None
    entrypoint: str
    folder: Path
    environment: Mapping[str, str]
    notes: Sequence[str]


def without_password(text: str, url: str | None) -> str:
    """The text with *** in place of a database's password."""
    from db.connection import masked, parse_url

    password = parse_url(url).password if url else None
    return text.replace(str(url), masked(str(url))).replace(str(password), "***") if password else text


def prepare(
    spec: Path, data: Path | None, n: int | None, db: str | None, working_dir: Path, max_upload: str
) -> Submission:
    """Checks a sweep, its working directory and its database's URL. Contacts nobody.

    Args:
        max_upload: a size such as 100MB.

    Raises:
        TierCacheError, StorageError: whichever is wrong.
    """
    from jobs.commands.options import load
    from jobs.yaml_file import read_yaml

    read_yaml(spec)  # so that a file that is missing is named as it was typed
    folder = Path(os.path.abspath(working_dir))
    if not folder.is_dir():
        raise SpecError(f"--working-dir {working_dir}: no such folder.")
    given = {"SPEC": spec} | ({"--data": data} if data is not None else {})
    names = {field: _in_job(folder, path, field) for field, path in given.items()}
    with contextlib.chdir(folder):  # the job's own: relative paths mean here what they will mean there
        sweep, _ = load(Path(names["SPEC"]), Path(names["--data"]) if data is not None else None, n)
        named = list(_named(sweep))
    url, environment, notes = _database(db, sweep)
    limit, upload = _limit(max_upload), survey(folder)
    check_size(upload, limit)
    names = {field: _placed(upload, given[field], name, field) for field, name in names.items()}
    for field, name in [*names.items(), *named]:
        if not check_named(upload, name, field):
            notes.append(f"{field}: '{name}' {ON_NODES}.")
    arguments = ["--data", names["--data"]] if data is not None else []
    arguments += ["--n", str(n)] if n is not None else []
    command = ["tiercache", "run", _operand(names["SPEC"]), *arguments, "--no-progress", "--address", "auto"]
    entrypoint = shlex.join(command)
    if sweep.database and DATABASE in environment:  # the file's own would come first; the job's shell fills it in
        entrypoint += f' --db "${DATABASE}"'
    if mode := os.environ.get("RAY_AUTH_MODE"):
        environment["RAY_AUTH_MODE"] = mode
    identity = submission_id(spec.read_bytes(), [*arguments, _shown(url)])
    return Submission(identity, sweep.name, url, entrypoint, folder, environment, notes)


def submission_id(spec: bytes, arguments: Sequence[str]) -> str:
    """`sweep-` and 12 hex digits: the same for the same content of the file and the same arguments."""
    digest = hashlib.sha256(json.dumps(list(arguments)).encode() + b"\n" + spec)
    return f"sweep-{digest.hexdigest()[:12]}"


def next_id(base: str, jobs: "Sequence[JobDetails]") -> tuple[str, bool]:
    """(id, whether a job with it runs already). A job that has ended makes way for the next suffix: -2, -3."""
    numbers = {}
    for job in jobs:
        if found := re.fullmatch(rf"{base}(?:-([0-9]+))?", str(job.submission_id)):
            numbers[int(found[1] or 1)] = job
    for job in numbers.values():
        if not job.status.is_terminal():
            return str(job.submission_id), True
    return (f"{base}-{max(numbers) + 1}" if numbers else base), False


def send(client: "JobSubmissionClient", submission: Submission) -> tuple[str, bool]:
    """Uploads and starts the job: (its id, whether it ran already and nothing was started).

    Raises:
        ResourceError: the cluster refused it.
    """
    from jobs.job_client import answered, sweep_jobs

    name, runs = next_id(submission.id, sweep_jobs(client))
    if runs:
        return name, True
    environment = {"working_dir": str(submission.folder), "env_vars": dict(submission.environment)}
    try:
        with answered(client.get_address(), lambda text: without_password(text, submission.url)):
            client.submit_job(entrypoint=submission.entrypoint, submission_id=name, runtime_env=environment)
    except ResourceError:
        again, runs = next_id(submission.id, sweep_jobs(client))
        if runs:  # somebody was quicker
            return again, True
        raise
    return name, False


def _limit(text: str) -> int:
    from ray._private.ray_constants import DASHBOARD_CLIENT_MAX_SIZE as TAKES

    from jobs.spec import parse_bytes

    try:
        limit = parse_bytes(int(text) if text.isascii() and text.isdigit() else text)
    except ValueError as problem:
        raise SpecError(f"--max-upload: '{text}' {problem}.") from None
    if not isinstance(limit, int) or not 0 < limit <= TAKES:
        raise SpecError(f"--max-upload: '{text}'; allowed: up to {TAKES // 2**20}MiB, which is what Ray accepts.")
    return limit


def _in_job(folder: Path, path: Path, field: str) -> str:
    """A path of the command line as the job will give it: relative to the working directory, or absolute."""
    name = inside(folder, path)
    if name is None and not path.is_absolute():
        raise SpecError(
            f"{field}: '{path}' lies outside of the working directory {folder}. Move it there, choose another "
            "--working-dir, or give the absolute path that it has on the nodes."
        )
    return str(path) if name is None else name


def _placed(upload: Upload, given: Path, name: str, field: str) -> str:
    """What was given as an absolute path and isn't uploaded keeps it: it may lie there on the nodes too."""
    if given.is_absolute():
        try:
            check_named(upload, name, field)
        except SpecError:
            return str(given)
    return name


def _named(sweep: "Sweep") -> Iterator[tuple[str, str]]:
    """(field, path) of each file or folder that a sweep names."""
    for i, benchmark in enumerate(sweep.benchmarks):
        yield from ((f"benchmarks[{i}].{key}", benchmark[key]) for key in FILE_OPTIONS if benchmark.get(key))
    for i, policy in enumerate(sweep.policies):
        scorers: Any = policy.get("scorer")
        for scorer in scorers if isinstance(scorers, list) else [scorers]:
            if isinstance(scorer, str) and ".py:" in scorer:
                yield f"policies[{i}].scorer", scorer.rpartition(":")[0]
    for i, model in enumerate(sweep.model_specs()):
        if model.local and model.id != EMBEDDED:
            yield f"models[{i}].id", model.id


def _database(db: str | None, sweep: "Sweep") -> tuple[str | None, dict[str, str], list[str]]:
    """(URL, the job's environment, notes). A URL that the sweep file holds needs no variable.

    Raises:
        SpecError: a relative SQLite file; it would lie in the job's copy of the working directory, which Ray deletes.
        StorageError: the URL is malformed.
    """
    from sqlalchemy import make_url

    from db.connection import masked, parse_url

    url = db if db is not None else sweep.database or os.environ.get(DATABASE) or None
    if url is None:
        return None, {}, ["no --db: results go to ~/tiercache.db on the node that runs the job."]
    notes = []
    if parse_url(url).get_backend_name() == "sqlite":
        field = "--db" if db is not None else "database" if sweep.database else f"${DATABASE}"
        path = str(make_url(url).database) if "://" in url else url
        if not os.path.isabs(os.path.expanduser(path)):
            raise SpecError(
                f"{field}: '{path}' is relative: it would lie in the job's copy of the working directory, which Ray "
                "deletes. Give an absolute path outside of it, on the node that runs the job, or a postgresql:// URL."
            )
        notes = [f"the folder of {masked(url)} {ON_NODES}; the file is written on the one that runs the job."]
    return url, {} if db is None and sweep.database else {DATABASE: url}, notes


def _shown(url: str | None) -> str:
    from db.connection import masked

    return masked(url) if url else ""


def _operand(name: str) -> str:
    """A file's name that begins with a dash isn't an option."""
    return f"./{name}" if name.startswith("-") else name


def commands(submission: Submission, job: str, address: str) -> list[tuple[str, str]]:
    """(what it does, the command) to follow a job with; no password in them."""
    where = f" --address {shlex.quote(address)}"
    database = f" --db {shlex.quote(_shown(submission.url))}" if submission.url else ""
    return [
        ("log", f"tiercache logs {job} --follow{where}"),
        ("results", f"tiercache status latest{database}"),
        ("stop", f"tiercache cancel {shlex.quote(submission.sweep)}{database}"),
    ]
