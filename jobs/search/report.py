"""A search as a Markdown page. Every number on it is read from the database or follows from the file."""

from collections import Counter
from pathlib import Path

from sqlalchemy import Engine

from jobs.search.objective import Stored
from jobs.search.spec import Search, load_benchmarks
from jobs.search.study import SLACK, Outcome, conduct
from jobs.search.tables import accuracy, difference, held_out, p_text, percent, presets, space, text, trials
from jobs.search.verdict import Verdict, judge
from tiercache.errors import ModelError
from tiercache.model_spec import ModelSpec

COLUMNS = (
    "Score, bytes and differences are of problems that no trial and no choice has seen. `searched`: the score on the "
    "search's problems, by which a policy was chosen; of the best of many it is too good. p: McNemar's exact test "
    "where every score is 0 or 1, else a test of flipped signs; Holm's correction over the presets. `KV`: keys and "
    "values with scales and zero points; `other`: positions, slot fields and kept codes. Both are means over decoding "
    "as shares of the full cache's keys and values at the same steps; the full cache has other bytes too."
)
WHERE = {"all": "device and host memory together", "device": "device memory (host memory is not counted)"}


def search_markdown(engine: Engine, search: Search, data: Path | None = None) -> str:
    """The page of a finished search, read from the database.

    Raises:
        Unfinished: some of its results aren't there. BenchmarkError: its data are missing.
    """
    url = engine.url.render_as_string(hide_password=False)
    return page(conduct(search, Stored(search, load_benchmarks(search, data), url)))


def page(outcome: Outcome) -> str:
    """The page of what a search has found."""
    search, verdict = outcome.search, judge(outcome)
    blocks = [
        f"# Search: {text(search.name)}",
        _setup(search),
        "## What was found",
        verdict_text(outcome, verdict),
        "## On the held-out problems",
        held_out(outcome, verdict),
        COLUMNS,
        "## Presets on the search's problems",
        presets(outcome),
        "## Trials",
        _count(outcome),
        trials(outcome),
        "## The space",
        space(search),
    ]
    return "\n\n".join(blocks) + "\n"


def verdict_text(outcome: Outcome, verdict: Verdict) -> str:
    """Who won, and by how much."""
    search, strongest = outcome.search, verdict.strongest
    if not outcome.chosen:
        return "No trial kept to the budget, so nothing was found."
    if verdict.winner is None or verdict.held is None:
        return "All held-out samples of the best trial failed, so nothing can be said of it."
    winner = outcome.held_out[verdict.winner]
    found = (
        f"The best trial is `{text(verdict.winner)}`: {accuracy(winner)} on the {winner.expected} held-out problems, "
        f"with {percent(verdict.held)}% of the bytes."
    )
    if strongest is None:
        return f"{found} No preset fits the budget, so there is none to compare it with."
    against = (
        f"The best preset there is `{text(strongest.label)}`: {accuracy(outcome.held_out[strongest.label])}. The "
        f"difference is {difference(strongest)} points (p {p_text(strongest.paired.p_value)}, corrected "
        f"{p_text(strongest.p_holm)})."
    )
    if verdict.wins:
        return f"{found} {against} **It beats every preset that fits, each at a corrected p below 0.05.**"
    if verdict.held > search.budget.bytes:
        return f"{found} {against} **It exceeds the budget there, so it doesn't count as a win.**"
    return f"{found} {against} **It isn't shown to beat every preset.**"


def _setup(search: Search) -> str:
    ours, later = search.problems("search"), search.problems("report")
    spec = ModelSpec.parse(search.model, "model", ModelError)
    options = ", ".join(f"{key} {value}" for key, value in search.benchmark.items() if key != "name")
    return (
        f"Model `{text(spec.name)}` ({text(spec.dtype)}), benchmark {text(search.benchmark['name'])}"
        f"{f' ({text(options)})' if options else ''}. A policy may hold {percent(search.budget.bytes)}% of the full "
        f"cache's bytes, mean over decoding, in {WHERE[search.budget.memory]}. Problems {ours.start} to "
        f"{ours.stop - 1} are for searching, {later.start} to {later.stop - 1} are held out. Proposals by Optuna's "
        f"TPE, seed {search.seed}, {search.batch} at a time. The rule: among policies that kept to the budget, the "
        "best score on the search's problems; among equals the fewer bytes. Of each preset the best variant by the "
        f"same rule; presets may exceed the budget by {SLACK:.0%} of it, which can only help them."
    )


def _count(outcome: Outcome) -> str:
    search, states = outcome.search, Counter(each.state for each in outcome.trials)
    failed = states["incomplete"]
    ran = states["measured"] + states["screened"] + failed
    others = [
        f"{number} {why}"
        for number, why in (
            (states["too large"], "fit at no value of the fitted knob"),
            (states["impossible"], "are no policy of this model"),
            (states["again"], "repeat an earlier one"),
        )
        if number
    ]
    return (
        f"{len(outcome.trials)} proposals, of which {ran} were run"
        + (f" ({', '.join(others)})" if others else "")
        + "."
        + (f" {states['screened']} were given up after {search.search.screen} problems." if states["screened"] else "")
        + (f" In {failed} of them samples failed; these were not ranked." if failed else "")
    )
