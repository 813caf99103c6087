"""Latent importance reactivation, by episodes (2608.05326): does what looked dead become important again?"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor


@dataclass(frozen=True)
class Reactivation:
    """Episodes pooled over rows. `waits`: for each rescued one, events from its last counted miss to its return."""

    rescued: int
    eligible: int
    waits: tuple[int, ...] = ()

    @property
    def rate(self) -> float | None:
        return self.rescued / self.eligible if self.eligible else None


def reactivation(rows: Iterable[Iterable[int]], patience: int = 4, follow: int | None = 8) -> Reactivation:
    """Counts episodes in rows over events: 1 selected, 0 not selected, -1 not observable.

    Each maximal run of zeros is one episode. It is eligible if it reaches its `patience`-th zero and at least `follow`
    events come after that one; rescued if a 1 comes within these. `follow` None: no limit, and all that reach their
    `patience`-th zero are eligible.
    """
    eligible, waits = 0, []
    for row in rows:
        events = list(row)
        start = 0
        for value, group in groupby(events):
            length = len(list(group))
            stop = start + length
            last_miss = start + patience - 1
            if value == 0 and length >= patience and last_miss + (follow or 0) < len(events):
                eligible += 1
                returned = stop < len(events) and events[stop] == 1
                if returned and (follow is None or length <= patience - 1 + follow):
                    waits.append(length - patience + 1)
            start = stop
    return Reactivation(len(waits), eligible, tuple(waits))


def wanted_windows(mass: Tensor, observable: Tensor, counts: Tensor) -> Tensor:
    """What attention itself would select: int8 [..., windows], 1 for the `counts` windows with the most mass, else 0.

    Args:
        mass: [..., windows]; observable: bool, the same: the others are -1; counts: int [...].
    """
    newest_first = mass.masked_fill(~observable, float("-inf")).flip(-1)
    rank = newest_first.argsort(dim=-1, descending=True, stable=True).argsort(dim=-1).flip(-1)
    wanted = (rank < counts.unsqueeze(-1)).to(torch.int8)
    return wanted.masked_fill_(~observable, -1)
