"""Which database a command uses, and how to open it for reading."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

from tiercache.errors import SpecError

if TYPE_CHECKING:
    from sqlalchemy import Engine


def choose(option: str | None, of_sweep: str | None = None) -> tuple[str, str | None]:
    """(URL, a remark or None): the option, else the sweep's own, else the environment's, else tiercache.db.

    Inside a Ray job the last would be lost with the job's working directory: it is in the home directory then.

    Raises:
        StorageError: the URL is malformed.
    """
    from db.connection import DEFAULT_URL, default_url, masked, parse_url

    url = option if option is not None else of_sweep or default_url()
    parsed = parse_url(url)
    if url == DEFAULT_URL and option is None and (_in_upload() or "RAY_JOB_ID" in os.environ):
        url = f"sqlite:///{Path.home() / 'tiercache.db'}"
        return url, f"no --db given inside a Ray job: results are in {masked(url)} on this node."
    if _in_upload() and parsed.database and Path(parsed.database).is_relative_to(Path.cwd()):
        return url, f"{masked(url)} is in the job's working directory, which Ray deletes; give --db another place."
    return url, None


def _in_upload() -> bool:
    """Whether this is the copy of a project that `ray job submit --working-dir` made; Ray deletes it some day."""
    return {"runtime_resources", "working_dir_files"} <= set(Path.cwd().parts)


def open_for_reading(url: str) -> "Engine":
    """An engine over usable tables.

    Raises:
        StorageError: the database is missing or doesn't answer.
        SpecError: it has no usable tables; the message says what to do.
    """
    from db.connection import masked, open_engine
    from db.migrate import status

    engine = open_engine(url, read_only=True)
    state = status(engine)
    if state == "ready":
        return engine
    remedy = {
        "empty": "has no results yet; start a sweep with: tiercache run sweeps/demo.yaml",
        "old": "was written by an older version; migrate it with: tiercache db upgrade",
    }.get(state, "was written by a newer version of tiercache; upgrade this one")
    raise SpecError(f"--db: {masked(url)} {remedy}.")


def dashboard_command(url: str) -> str:
    """The command that shows this database, without a password in it."""
    import shlex

    from db.connection import default_url, masked, parse_url

    if url == default_url():
        return "tiercache dashboard"
    return f"tiercache dashboard --db {shlex.quote(masked(url) if parse_url(url).password else url)}"
