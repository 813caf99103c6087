"""How much a sequence holds at most: for admission and for plans. No torch here."""

from dataclasses import dataclass
from functools import lru_cache

from tiercache.placement import RowTiers, due_moves, quiet_steps
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
    row, most = RowTiers(prompt), _Most(size)
    _append(row, prompt, policy, size)
    most.see(row)
    sums = [0, 0, 0] if generated else [row.hbm, row.ddr, row.packed]
    left = generated
    while left:
        quiet = quiet_steps(policy, row)
        quiet = left - 1 if quiet is None else min(quiet, left - 1)
        sums[0] += quiet * row.hbm + quiet * (quiet + 1) // 2  # each step adds one
        sums[1] += quiet * row.ddr
        sums[2] += quiet * row.packed
        most.see(row, quiet + 1)
        _append(row, quiet + 1, policy, size)
        most.see(row)
        sums = [total + held for total, held in zip(sums, (row.hbm, row.ddr, row.packed), strict=True)]
        left -= quiet + 1
    hbm_mean, ddr_mean, packed_mean = (total / max(1, generated) for total in sums)
    fullest = most.both if size is not None else (most.hbm, most.packed)
    return Footprint(
        prompt, most.hbm, hbm_mean, most.ddr, ddr_mean, most.packed, packed_mean, row.evicted, row.seen, fullest
    )


def _append(row: RowTiers, tokens: int, policy: Policy, size: Sizes | None) -> None:
    """New tokens, and the event that may be due after the last of them."""
    row.append(tokens)
    for move in due_moves(policy, row, size):
        row.apply(move)


@dataclass
class _Most:
    """The most that each tier has held; `both`: T0 and T2 when they took the most bytes together."""

    size: Sizes | None
    hbm: int = 0
    ddr: int = 0
    packed: int = 0
    both: tuple[int, int] = (0, 0)
    bytes: int = 0

    def see(self, row: RowTiers, more: int = 0) -> None:
        """With so many more tokens in T0."""
        hbm = row.hbm + more
        self.hbm, self.ddr, self.packed = max(self.hbm, hbm), max(self.ddr, row.ddr), max(self.packed, row.packed)
        if self.size is not None:
            held = hbm * self.size.token + self.size.packed_bytes(row.packed)
            if held > self.bytes:
                self.bytes, self.both = held, (hbm, row.packed)
