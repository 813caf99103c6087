"""Which tier held each token after each step, written down while a sequence runs."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from tiercache.cache import TieredCache

DEVICE, HOST, QUANTISED, COARSE = 0, 1, 2, 3  # in the order of the cache's stores
EVICTED = -1


def tier_map(cache: TieredCache, row: int) -> Tensor:
    """Where each token that a row has seen is now, on the host: int8 [layers, kv_heads, seen]."""
    seen, g = cache.tiers[row].seen, cache.geometry
    tiers = torch.full((g.layers, g.kv_heads, seen + 1), EVICTED, dtype=torch.int8)
    for tier, positions in enumerate(cache.row_positions(row)):
        pos = positions.cpu().long()
        tiers.scatter_(-1, torch.where(pos < 0, seen, pos), tier)  # free slots go to a place of their own
    return tiers[..., :seen]


@dataclass(frozen=True)
class _Change:
    """Tokens whose tier a step has changed: `where` int64 [3, n], `tier` int8 [n]. A new token is on the device."""

    seen: int
    where: Tensor
    tier: Tensor


@dataclass
class Trace:
    """One sequence: its tiers after the prefill and after each decode step, as changes, and its last hidden states.

    Memory: a few bytes for each move of a token in a (layer, KV head), and one hidden state a step.
    """

    prompt: int
    hidden: list[Tensor] = field(default_factory=list)
    _changes: list[_Change] = field(default_factory=list)
    _last: Tensor | None = None

    def add(self, tiers: Tensor, hidden: Tensor) -> None:
        """After a step: tiers int8 [layers, kv_heads, seen], hidden [hidden]."""
        before = _grown(self._last, tiers)
        where = (tiers != before).nonzero().T
        self._changes.append(_Change(tiers.shape[-1], where, tiers[tuple(where)]))
        self._last = tiers
        self.hidden.append(hidden.to("cpu", copy=True))

    @property
    def steps(self) -> int:
        """Decode steps so far."""
        return len(self._changes) - 1

    def maps(self) -> Iterator[Tensor]:
        """Tiers after the prefill, after the first decode step, …: int8 [layers, kv_heads, tokens seen by then]."""
        assert self._last is not None, "a trace begins with the prefill"
        tiers = self._last[..., :0]
        for change in self._changes:
            tiers = F.pad(tiers, (0, change.seen - tiers.shape[-1]), value=DEVICE)
            tiers[tuple(change.where)] = change.tier
            yield tiers

    def cycles(self, length: int) -> Iterator[tuple[int, list[Tensor]]]:
        """(steps so far, maps from then on up to the next cycle, that one's first included) for each `length` steps."""
        found: list[Tensor] = []
        start = 0
        for tiers in self.maps():
            found.append(tiers)
            if len(found) > length:
                yield start, found
                start, found = start + length, found[-1:]
        yield start, found


def _grown(last: Tensor | None, tiers: Tensor) -> Tensor:
    """What the tiers would be if nothing had moved."""
    if last is None:
        return torch.full_like(tiers, DEVICE)
    return F.pad(last, (0, tiers.shape[-1] - last.shape[-1]), value=DEVICE)


class Recorder:
    """A probe for `Engine.run` that keeps a trace of each sequence, by key."""

    def __init__(self) -> None:
        self.traces: dict[str, Trace] = {}

    def __call__(self, cache: TieredCache, first: int, keys: Sequence[str], hidden: Tensor) -> None:
        for i, key in enumerate(keys):
            tiers = cache.tiers[first + i]
            if tiers.generated == 0:  # also where a row starts again after running out of memory
                self.traces[key] = Trace(tiers.prompt)
            self.traces[key].add(tier_map(cache, first + i), hidden[i])
