"""The command that gives an answer's numbers, so that each sentence can be checked."""

import shlex
from collections.abc import Sequence

from db.connection import masked, parse_url
from jobs.advice.answers import Answer
from jobs.advice.budgets import Room


def command(found: Answer, sweeps: Sequence[str], url: str) -> str:
    """`tiercache advise …` for one answer; a password in the URL is masked. No sweeps: all of the database."""
    budget, setting = found.question.budget, found.setting
    words = ["tiercache", "advise", *(sweeps or ["all"]), "--model", setting.model, "--benchmark", setting.benchmark]
    words += ["--protocol", setting.protocol[:12]]
    if isinstance(budget, Room):
        words += ["--budget", f"{budget.bytes / 2**30:g}GiB", "--on", budget.model, "--context", str(budget.context)]
        words += ["--prompt", str(budget.prompt), "--batch", str(budget.rows)]
    else:
        words += ["--budget", f"{budget.most:g}"]
    words += ["--loss", f"{100 * found.question.loss:g}", "--db", masked(url) if parse_url(url).password else url]
    return shlex.join(words)
