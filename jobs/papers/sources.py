"""The commands that give a page's numbers, and the files in which they are asked for."""

import os
import shlex
from pathlib import Path

from db.connection import masked, parse_url
from jobs.papers.judging import Finding
from jobs.papers.settings import Setting

SUMMARIES = ("db/summaries.py",)
VERDICTS = ("db/scores.py", "jobs/compare.py")
TESTS = ("db/scores.py", "jobs/papers/judging.py", "jobs/papers/verdicts.py")
SWEEPS = ("db/progress.py",)


class Sources:
    """Of one sweep in one database, which is named as it is to be shown."""

    def __init__(self, sweep_id: str, url: str) -> None:
        self.sweep_id = sweep_id
        self._end = f"{shlex.quote(sweep_id)} --db {shlex.quote(url)}"
        self.export = f"tiercache export {self._end} --format json"
        self.compare = f"tiercache compare {self._end} --json"
        self.report = f"tiercache report {self._end}"
        self.configs = f"db.queries.cell_configs(engine, {sweep_id!r})"

    def against(self, label: str) -> str:
        return f"{self.compare} --baseline {shlex.quote(label)}"

    def of(self, setting: Setting) -> str:
        return f"{self.report} (problems of {setting.tasks} tasks together)" if setting.tasks else self.compare

    def finding(self, setting: Setting, finding: Finding) -> tuple[str, ...]:
        """Of one test of a claim."""
        if setting.tasks:
            return (self.of(setting),)
        if finding.found is None:
            return (self.export,)
        if finding.baseline is not None:
            return (self.against(finding.baseline),)
        return self.compare, self.report  # the slope's test; the difference between the outer levels


def portable(url: str) -> str:
    """A database's URL for a page that others read: no folder of this machine and no host.

    A SQLite file is named from the current folder, or by its bare name where it lies elsewhere. Of a server only the
    database's name is left.
    """
    parsed = parse_url(url)
    if parsed.get_backend_name() != "sqlite" or not parsed.database:
        return f"{parsed.get_backend_name()}://HOST/{parsed.database or ''}"
    path = Path(os.path.abspath(parsed.database))
    here = Path.cwd()
    return masked(parsed.set(database=path.relative_to(here).as_posix() if path.is_relative_to(here) else path.name))
