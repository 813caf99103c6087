"""One running sequence in the cache: counts, usage, and what of it isn't written yet."""

from dataclasses import dataclass, field

import torch

from tiercache.ledger import Traffic, Usage
from tiercache.placement import RowTiers
from tiercache.store import TierStore


@dataclass
class CachedSequence:
    """One running sequence's bookkeeping.

    traffic     what its events have moved between device and host memory; part of the cache's.
    hole        it has a freed slot, which its next token takes.
    unwritten   its newest tokens whose positions aren't in the plane yet: they are consecutive, and nobody reads a
                position before the next event, so they are written in one go.
    """

    tiers: RowTiers
    seed: int
    usage: Usage = field(default_factory=Usage)
    traffic: Traffic = field(default_factory=Traffic)
    hole: bool = False
    unwritten: int = 0

    def write_positions(self, store: TierStore, row: int) -> None:
        """Brings the position plane up to date. The unwritten tokens are the newest and fill the row's last slots."""
        if self.unwritten:
            end, seen = store.extents[row], self.tiers.seen
            newest = torch.arange(seen - self.unwritten, seen, dtype=torch.int32, device=store.device)
            store.planes["pos"][:, row, :, end - self.unwritten : end] = newest
            self.unwritten = 0
