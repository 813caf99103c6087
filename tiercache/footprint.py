"""How much a sequence holds at most: for admission and for plans. No torch here."""

from dataclasses import dataclass
from functools import lru_cache

from tiercache.placement import RowTiers, due_moves, quiet_steps
from tiercache.policy import Policy
from tiercache.sizes import Sizes
from tiercache.thoughts import REASONING


@dataclass(frozen=True)
class Footprint:
    """Tokens of one sequence at a given length: what admission reserves and what `plan` prints.

    hbm_peak counts from the prefill's event on, the moment before each later event included, when the newest token is
    in and nothing has left yet. Before the prefill's event the whole prompt is there. Means are over decode steps,
    after each one's event.

    packed_peak  tokens in T2, and of them those stored as transitions are, when T2 takes the most bytes.
    fullest      tokens in T0 and the same two of T2 at the moment after the prefill's event when both together take
                 the most device bytes: an event that fills one empties the other, so their peaks come to more.
    """

    prompt: int
    hbm_peak: int
    hbm_mean: float
    ddr_peak: int
    ddr_mean: float
    packed_peak: tuple[int, int]
    packed_mean: float
    evicted_end: int
    full_end: int
    fullest: tuple[int, int, int]

    def running_bytes(self, size: Sizes) -> int:
        """Most device bytes while it is decoded: T0 and T2 together."""
        hbm, *packed = self.fullest
        return hbm * size.token + size.packed_bytes(*packed)

    def device_bytes(self, size: Sizes) -> int:
        """Most device bytes of all, the prefill included."""
        return max(self.prompt * size.token, self.running_bytes(size))


@lru_cache(maxsize=4096)
def footprint(
    policy: Policy, prompt: int, generated: int, size: Sizes | None = None, thoughts: tuple[int, ...] = ()
) -> Footprint:
    """The footprint of a sequence that runs to this length. Without `size`, `fullest` is both peaks.

    `thoughts` are the kinds of the first ones that end, where the placement works by them; the others are taken to be
    of the kind that is kept longest, so that without any this is a bound.
    """
    row, most = RowTiers(prompt), _Most(size)
    _append(row, prompt, policy, size, thoughts)
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
        _append(row, quiet + 1, policy, size, thoughts)
        most.see(row)
        sums = [total + held for total, held in zip(sums, (row.hbm, row.ddr, row.packed), strict=True)]
        left -= quiet + 1
    hbm_mean, ddr_mean, packed_mean = (total / max(1, generated) for total in sums)
    fullest = most.both if size is not None else (most.hbm, *most.packed)
    return Footprint(
        prompt, most.hbm, hbm_mean, most.ddr, ddr_mean, most.packed, packed_mean, row.evicted, row.seen, fullest
    )


def _append(row: RowTiers, tokens: int, policy: Policy, size: Sizes | None, thoughts: tuple[int, ...]) -> None:
    """New tokens, and the event that may be due after the last of them."""
    row.append(tokens)
    if thoughts and policy.placement.segment is not None:
        ended = row.generated // policy.placement.segment - 1
        row.thought = thoughts[ended] if 0 <= ended < len(thoughts) else REASONING
    for move in due_moves(policy, row, size):
        row.apply(move)


@dataclass
class _Most:
    """The most that each tier has held, as `Footprint` has it; `both`: T0 and T2 together.

    Asked twice a step for thousands of steps, so it looks at T2 only where there is something in it.
    """

    size: Sizes | None
    hbm: int = 0
    ddr: int = 0
    packed: tuple[int, int] = (0, 0)
    packed_bytes: int = 0
    both: tuple[int, int, int] = (0, 0, 0)
    both_bytes: int = 0

    def see(self, row: RowTiers, more: int = 0) -> None:
        """With so many more tokens in T0."""
        size, hbm, packed = self.size, row.hbm + more, 0
        if hbm > self.hbm:
            self.hbm = hbm
        if row.ddr > self.ddr:
            self.ddr = row.ddr
        if row.packed:
            packed = size.packed_bytes(row.packed, row.coarse) if size else row.packed
            if packed > self.packed_bytes:
                self.packed_bytes, self.packed = packed, (row.packed, row.coarse)
        if size is not None and hbm * size.token + packed > self.both_bytes:
            self.both_bytes, self.both = hbm * size.token + packed, (hbm, row.packed, row.coarse)
