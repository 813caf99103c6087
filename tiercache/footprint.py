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
    in and nothing has left yet. Before the prefill's event the whole prompt is there.
    """

    prompt: int
    hbm_peak: int
    hbm_mean: float
    ddr_peak: int
    packed_peak: int
    evicted_end: int
    full_end: int

    def running_bytes(self, size: Sizes) -> int:
        """Most device bytes while it is decoded: T0 and T2, each at its peak."""
        return self.hbm_peak * size.token + size.packed_bytes(self.packed_peak)

    def device_bytes(self, size: Sizes) -> int:
        """Most device bytes of all, the prefill included."""
        return max(self.prompt * size.token, self.running_bytes(size))


@lru_cache(maxsize=4096)
def footprint(policy: Policy, prompt: int, generated: int, size: Sizes | None = None) -> Footprint:
    """The footprint of a sequence that runs to this length."""
    row = RowTiers(prompt)
    peak = ddr = packed = total = 0
    for step, tokens in enumerate([prompt, *[1] * generated]):
        row.append(tokens)
        if step:
            peak = max(peak, row.hbm)
        for move in due_moves(policy, row, size):
            row.apply(move)
        peak, ddr, packed = max(peak, row.hbm), max(ddr, row.ddr), max(packed, row.packed)
        total += row.hbm if step else 0
    mean = total / generated if generated else row.hbm
    return Footprint(prompt, peak, mean, ddr, packed, row.evicted, row.seen)
