"""How much a sequence holds at most: for admission and for plans. No torch here."""

from dataclasses import dataclass
from functools import lru_cache

from tiercache.placement import RowTiers, due_moves
from tiercache.policy import Policy
from tiercache.sizes import Sizes


@dataclass(frozen=True)
class Footprint:
    """Tokens of one sequence at a given length: what admission reserves and what `plan` prints.

    hbm_peak counts from the prefill's event on, the moment before each later event included, when the newest token is
    in and nothing has left yet. Before the prefill's event the whole prompt is there. Means are over decode steps,
    after each one's event.

    fullest  tokens in T0 and T2 at the moment after the prefill's event when both together take the most device bytes:
             an event that fills one empties the other, so it is less than the sum of their peaks.
    """

    prompt: int
    hbm_peak: int
    hbm_mean: float
    ddr_peak: int
    ddr_mean: float
    packed_peak: int
    packed_mean: float
    evicted_end: int
    full_end: int
    fullest: tuple[int, int]

    def running_bytes(self, size: Sizes) -> int:
        """Most device bytes while it is decoded: T0 and T2 together."""
        hbm, packed = self.fullest
        return hbm * size.token + size.packed_bytes(packed)

    def device_bytes(self, size: Sizes) -> int:
        """Most device bytes of all, the prefill included."""
        return max(self.prompt * size.token, self.running_bytes(size))


@lru_cache(maxsize=4096)
def footprint(policy: Policy, prompt: int, generated: int, size: Sizes | None = None) -> Footprint:
    """The footprint of a sequence that runs to this length. Without `size`, `fullest` is both peaks."""
    row = RowTiers(prompt)
    peak = ddr = packed = most = 0
    fullest, sums = (0, 0), [0, 0, 0]
    for step, tokens in enumerate([prompt, *[1] * generated]):
        row.append(tokens)
        before = row.hbm, row.packed
        for move in due_moves(policy, row, size):
            row.apply(move)
        after = row.hbm, row.packed
        for held in (before, after) if step else (after,):
            peak = max(peak, held[0])
            if size is not None and held[0] * size.token + size.packed_bytes(held[1]) > most:
                most, fullest = held[0] * size.token + size.packed_bytes(held[1]), held
        ddr, packed = max(ddr, row.ddr), max(packed, row.packed)
        if step or not generated:
            sums[0] += row.hbm
            sums[1] += row.ddr
            sums[2] += row.packed
    hbm_mean, ddr_mean, packed_mean = (total / max(1, generated) for total in sums)
    fullest = fullest if size is not None else (peak, packed)
    return Footprint(prompt, peak, hbm_mean, ddr, ddr_mean, packed, packed_mean, row.evicted, row.seen, fullest)
