"""What a claim and a published table consist of. Plain data."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

from jobs.papers.picks import Pick
from jobs.papers.verdicts import Expected

Paper: TypeAlias = Literal["hierarchy", "epikv", "qevict"]
ARXIV: dict[Paper, str] = {"hierarchy": "2605.09490", "epikv": "2606.26472", "qevict": "2608.05326"}
FULL = Pick("full")


@dataclass(frozen=True)
class Contrast:
    """The accuracy of `first` less that of `second`, problem by problem.

    margin    smallest difference that matters, a share of 1, or of the second's accuracy where `relative`.
    """

    first: Pick
    second: Pick
    expected: Expected
    margin: float = 0.05
    relative: bool = False


@dataclass(frozen=True)
class Along:
    """Accuracy along one ratio of a grid, the other held: outer levels compared over all strata, and the slope's test.

    grid  (hbm, evict) -> the policy with them.
    """

    grid: tuple[tuple[tuple[float, float], Pick], ...]
    ratio: Literal["hbm", "evict"]
    expected: Expected
    margin: float = 0.05


@dataclass(frozen=True)
class Resident:
    """Mean device bytes of `policy` are at most this share of the full cache's; None: at most its own budget of bytes.

    A count, so it needs no test.
    """

    policy: Pick
    at_most: float | None = None


@dataclass(frozen=True)
class Speed:
    """Decoded tokens a second of `first` over `second`, beside the published ratio. Never decided: one rate a cell."""

    first: Pick
    second: Pick
    published: float


Test: TypeAlias = Contrast | Along | Resident | Speed


@dataclass(frozen=True)
class Claim:
    """One statement and what decides it.

    whose      the paper's own statement, or a question that we ask of it.
    published  the numbers it rests on.
    tests      all of them have to hold.
    sweeps     files (without .yaml) whose cells decide it; each has a `_mini` form.
    at_scale   what it takes at the paper's size.
    """

    id: str
    paper: Paper
    whose: Literal["paper", "ours"]
    says: str
    published: str
    tests: tuple[Test, ...]
    sweeps: tuple[str, ...]
    at_scale: str

    @property
    def picks(self) -> tuple[Pick, ...]:
        """Every policy that the tests need, in order."""
        found: list[Pick] = []
        for test in self.tests:
            match test:
                case Contrast() | Speed():
                    found += [test.first, test.second]
                case Along():
                    found += [pick for _, pick in test.grid]
                case Resident():
                    found.append(test.policy)
        return tuple(pick for i, pick in enumerate(found) if pick not in found[:i])


@dataclass(frozen=True)
class Published:
    """A table of a paper, in percent. None: not stated.

    rows   (policy, accuracy).
    tasks  the numbers are means over the tasks of `benchmark`.
    """

    id: str
    paper: Paper
    title: str
    model: str
    benchmark: str
    n: int | None
    temperature: float | None
    max_new_tokens: int | None
    rows: tuple[tuple[Pick, float], ...]
    sweeps: tuple[str, ...]
    notes: tuple[str, ...] = ()
    tasks: bool = False
