"""Trials in rounds: what is proposed, what of it is worth running, and what the sampler is told."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from jobs.search.fitting import Planner, TooLarge
from jobs.search.objective import Measured
from jobs.search.space import propose
from jobs.search.spec import Search
from jobs.statistics import pass_at_1
from tiercache.errors import PolicyError

if TYPE_CHECKING:
    from optuna import Study
    from optuna.trial import Trial as Asked

RANDOM = 16  # trials drawn at random before the sampler chooses; the same for any number of trials
FRUITLESS = 100  # proposals in a row that give nothing to run, after which the space counts as exhausted

State = Literal["measured", "screened", "incomplete", "too large", "impossible", "again"]


@dataclass(frozen=True)
class Tried:
    """A policy of the search: a trial or a preset.

    entry     as in a sweep file, its fitted knob filled in where it could be.
    state     `measured`; `screened`: given up after the first few problems; `incomplete`: samples failed;
              `too large`: fits at no value of its knob, so it wasn't run; `impossible`: no policy, or not with this
              model; `again`: an earlier proposal was the same policy.
    planned   share of the full cache's bytes, by plan.
    measured  on the search's problems, or on those of the screening.
    """

    entry: Mapping[str, Any]
    state: State
    label: str
    planned: float | None = None
    measured: Measured | None = None
    reason: str = ""


def fit(planner: Planner, entry: Mapping[str, Any], knob: str | None, budget: float) -> Tried:
    """To be run if its state is `measured`; the result is still missing."""
    words = " ".join([str(entry["name"]), *(f"{key}={value}" for key, value in entry.items() if key != "name")])
    try:
        fitted = planner.fit(entry, knob, budget)
    except PolicyError as problem:
        return Tried(entry, "impossible", words, reason=str(problem))
    if isinstance(fitted, TooLarge):
        return Tried(entry, "too large", words, fitted.share)
    return Tried(fitted.entry, "measured", fitted.policy.label, fitted.share)


def worth_all(screened: Measured, best: float) -> bool:
    """Whether a trial is worth the other problems: it has something right, and its 95% interval reaches the best score.

    Args:
        best: of the trials and presets that kept to the budget, on all of the search's problems.
    """
    return screened.accuracy > 0 and pass_at_1(screened.scores).high >= best


def with_result(tried: Tried, measured: Measured, screened: bool = False) -> Tried:
    state: State = "incomplete" if not measured.complete else "screened" if screened else "measured"
    return Tried(tried.entry, state, tried.label, tried.planned, measured)


class Rounds:
    """Proposals and results in the order in which Optuna hears of them: the same for every run of a file."""

    def __init__(self, search: Search, planner: Planner, study: "Study", full: Measured, best: float) -> None:
        self.search, self.planner, self.study, self.full, self.best = search, planner, study, full, best
        self.tried: list[Tried] = []
        self._choices = search.choices()
        self._host_counts = search.budget.memory == "all"
        self._known: dict[str, Measured] = {}
        self._given_up: set[str] = set()
        self._asked: list[tuple[Asked, int]] = []  # not told yet, and where in `tried`

    @property
    def informed(self) -> bool:
        """Whether there is enough to choose by."""
        return len(self._known) >= RANDOM

    def propose(self, wanted: int) -> dict[str, Mapping[str, Any]]:
        """New policies to run, by label. Those that need no run are told at once."""
        batch: dict[str, Mapping[str, Any]] = {}
        fruitless = 0
        while len(batch) < wanted and fruitless < FRUITLESS:
            asked = self.study.ask()
            proposal = propose(asked.suggest_categorical, self._choices, self._host_counts)
            tried = fit(self.planner, proposal.entry, proposal.fit, self.search.budget.bytes)
            before = len(batch)
            if tried.state == "impossible":
                self.study.tell(asked, state=_failed())
            elif tried.state == "too large":
                self._tell(asked, 0.0, tried.planned or 1.0)
            elif tried.label in self._known:
                tried = Tried(tried.entry, "again", tried.label, tried.planned, self._known[tried.label])
                self._finish(asked, self._known[tried.label])
            else:
                if tried.label in batch:
                    tried = Tried(tried.entry, "again", tried.label, tried.planned)
                batch.setdefault(tried.label, tried.entry)
                self._asked.append((asked, len(self.tried)))
            self.tried.append(tried)
            fruitless = 0 if len(batch) > before else fruitless + 1
        return batch

    def screened(self, found: Sequence[Measured]) -> dict[str, Mapping[str, Any]]:
        """Takes the results of the first problems; returns the trials that are worth the others, by label."""
        self._known |= {each.label: each for each in found}
        ended = {each.label for each in found if each.complete and not worth_all(each, self.best)}
        self._given_up |= ended
        entries = {self.tried[place].label: self.tried[place].entry for _, place in self._asked}
        return {label: entry for label, entry in entries.items() if label not in ended}

    def tell(self, found: Sequence[Measured]) -> None:
        """The results of the batch, on all problems."""
        self._known |= {each.label: each for each in found}
        fitting = [each for each in found if each.complete and each.held(self._host_counts) <= self.search.budget.bytes]
        self.best = max([self.best, *(each.accuracy for each in fitting)])
        for asked, place in self._asked:
            tried = self.tried[place]
            measured = self._known[tried.label]
            if tried.state == "again":
                self.tried[place] = Tried(tried.entry, "again", tried.label, tried.planned, measured)
            else:
                self.tried[place] = with_result(tried, measured, tried.label in self._given_up)
            self._finish(asked, measured)
        self._asked = []

    def _finish(self, asked: "Asked", measured: Measured) -> None:
        """The sampler is told the score; among equal ones, common at 0, agreement with the full cache decides."""
        if measured.complete:
            value = measured.accuracy + measured.agreement(self.full) / (2 * self.search.search.n)
            self._tell(asked, value, measured.held(self._host_counts))
        else:
            self.study.tell(asked, state=_failed())

    def _tell(self, asked: "Asked", value: float, share: float) -> None:
        asked.set_constraint("bytes", share - self.search.budget.bytes)
        self.study.tell(asked, value)


def _failed() -> Any:
    from optuna.trial import TrialState

    return TrialState.FAIL
