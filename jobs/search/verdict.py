"""Does the policy that was found beat the presets on problems that nobody chose it by?"""

from collections.abc import Mapping
from dataclasses import dataclass

from jobs.search.study import Outcome
from jobs.statistics import Paired, holm, paired

LEVEL = 0.05


@dataclass(frozen=True)
class Against:
    """The winner less one preset, problem by problem on the held-out ones; p corrected over all presets by Holm."""

    label: str
    paired: Paired
    p_holm: float


@dataclass(frozen=True)
class Verdict:
    """Of the best trial, by its score on the search's problems.

    winner  its label; None if no trial kept to the budget, or the best one has no result on the held-out problems.
    held    what it held on the held-out problems, as a share of the full cache's bytes.
    wins    it held no more than the budget there, and beats every preset at a corrected p below 0.05.
    """

    winner: str | None
    held: float | None
    against: tuple[Against, ...]
    wins: bool

    @property
    def strongest(self) -> Against | None:
        """The preset with the best score on the held-out problems."""
        return max(self.against, key=lambda each: each.paired.baseline, default=None)


def judge(outcome: Outcome) -> Verdict:
    """Compares the first of the chosen trials with the best variant of each preset."""
    search = outcome.search
    label = outcome.chosen[0].label if outcome.chosen else ""
    winner = outcome.held_out.get(label)
    if winner is None or not winner.samples:
        return Verdict(None, None, (), False)
    found: Mapping[str, Paired] = {
        rival.label: paired(winner.scores, outcome.held_out[rival.label].scores)
        for rival in outcome.best_rivals
        if rival.label != label and outcome.held_out[rival.label].samples
    }
    corrected = holm([each.p_value for each in found.values()])
    against = tuple(
        Against(name, each, 1.0 if p is None else p) for (name, each), p in zip(found.items(), corrected, strict=True)
    )
    held = winner.held(search.budget.memory == "all")
    better = all(each.paired.difference > 0 and each.p_holm < LEVEL for each in against)
    among = label in {rival.label for rival in outcome.best_rivals}
    return Verdict(label, held, against, bool(against) and better and not among and held <= search.budget.bytes)
