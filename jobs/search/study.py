"""The search itself: presets first, then trials in rounds, then the best of both on problems that no trial has seen.

Optuna's study lives in memory alone. Proposals depend on the file's seed and on the results told so far, and results
are in the database, so issuing the search again proposes the same policies, finds their results and goes on.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jobs.search.fitting import Planner
from jobs.search.objective import Measure, Measured, Unfinished
from jobs.search.rivals import fitted_knob
from jobs.search.spec import Search
from jobs.search.trials import FRUITLESS, Rounds, Tried, fit, with_result
from tiercache.errors import SpecError
from tiercache.model_spec import ModelSpec
from tiercache.shapes import shape_of

log = logging.getLogger(__name__)

SLACK = (
    0.05  # of the budget, by which presets may exceed it: their answers can be shorter than planned, and it helps them
)
FULL: dict[str, Any] = {"name": "full"}


@dataclass(frozen=True)
class Outcome:
    """All that a search has found.

    chosen       the best trials; `best_rivals`: the best variant of each preset.
    held_out     by label, on problems that none of them was chosen by.
    """

    search: Search
    full: Measured
    rivals: tuple[Tried, ...]
    trials: tuple[Tried, ...]
    chosen: tuple[Tried, ...]
    best_rivals: tuple[Tried, ...]
    held_out: Mapping[str, Measured]

    @property
    def complete(self) -> bool:
        everything = [self.full, *self.held_out.values(), *(each.measured for each in (*self.rivals, *self.trials))]
        return all(each is None or each.complete for each in everything)


def conduct(search: Search, measure: Measure) -> Outcome:
    """Runs a search, or reads it where `measure` only reads.

    Raises:
        Unfinished: a result is missing, or samples of the full cache failed. What `measure` raises.
    """
    (full,) = measure("full cache", "search", [FULL])
    if not full.complete:
        raise Unfinished(
            f"{full.expected - len(full.samples)} samples of the full cache failed, whose lengths the search needs. "
            "Issue the command again."
        )
    spec = ModelSpec.parse(search.model, "model", SpecError)
    shape = shape_of(spec)
    assert shape is not None, "checked when the file was read"
    planner = Planner(shape, spec.dtype, full.lengths, search.budget.memory == "all")
    rivals = _rivals(search, planner, measure)
    best = max((each.measured.accuracy for each in _ranked(rivals, search, SLACK) if each.measured), default=0.0)
    trials = _trials(search, planner, measure, full, best)
    chosen = _ranked(trials, search)[: search.report.top]
    best_rivals = _best_of_each(_ranked(rivals, search, SLACK))
    entries = {each.label: each.entry for each in (*chosen, *best_rivals)}
    found = measure("held out", "report", [FULL, *entries.values()])
    held_out = {each.label: each for each in found}
    return Outcome(search, full, tuple(rivals), tuple(trials), tuple(chosen), tuple(best_rivals), held_out)


def _rivals(search: Search, planner: Planner, measure: Measure) -> list[Tried]:
    tried = [fit(planner, entry, fitted_knob(entry), search.budget.bytes) for entry in search.rival_entries()]
    runs = [each for each in tried if each.state == "measured"]
    found = iter(measure("presets", "search", [FULL, *(each.entry for each in runs)])[1:]) if runs else iter(())
    by_label = {each.label: each for each in found}
    return [with_result(each, by_label[each.label]) if each.state == "measured" else each for each in tried]


def _ranked(tried: Sequence[Tried], search: Search, slack: float = 0.0) -> list[Tried]:
    """Those that really kept to the budget, best first; among equals the smaller, then the earlier."""
    host, most = search.budget.memory == "all", search.budget.bytes * (1 + slack)
    fitting = [
        (-each.measured.accuracy, each.measured.held(host), index)
        for index, each in enumerate(tried)
        if each.state == "measured" and each.measured and each.measured.held(host) <= most
    ]
    return [tried[index] for _, _, index in sorted(fitting)]


def _best_of_each(ranked: Sequence[Tried]) -> list[Tried]:
    """The best variant of each preset."""
    found: dict[str, Tried] = {}
    for each in ranked:
        found.setdefault(str(each.entry["name"]), each)
    return list(found.values())


def _trials(search: Search, planner: Planner, measure: Measure, full: Measured, best: float) -> list[Tried]:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.RandomSampler(seed=search.seed))
    rounds = Rounds(search, planner, study, full, best)
    chooses = False
    done = number = 0
    while done < search.trials:
        if rounds.informed and not chooses:
            study.sampler = optuna.samplers.TPESampler(seed=search.seed, n_startup_trials=0, constant_liar=True)
            chooses = True
        batch = rounds.propose(min(search.batch, search.trials - done))
        if not batch:
            log.warning("%d proposals in a row gave nothing new: %d trials were run", FRUITLESS, done)
            break
        number += 1
        title, left = f"round {number}", batch
        if search.search.screen is not None:
            left = rounds.screened(measure(f"{title}, first problems", "screen", list(batch.values())))
        rounds.tell(measure(title, "search", list(left.values())) if left else [])
        done += len(batch)
    return rounds.tried
