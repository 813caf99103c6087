"""The size of a policy before it runs, and the value of its knob at which it just fits.

Token counts come from the code that the cache itself obeys and bytes from its ledger, so a plan is exact for a given
length. Lengths are those of the full cache's own answers; a policy that makes the model write more or less holds a
little more or less, which is measured.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from jobs.search.rivals import REST
from tiercache.ledger import SequenceBytes, Usage, close_account
from tiercache.placement import RowTiers, due_moves
from tiercache.policy import Policy, parse_policy
from tiercache.shapes import ModelShape
from tiercache.sizes import Sizes

LENGTHS = 12  # sequences that stand for all
MARGIN = 0.01  # of the budget is left free, for lengths that differ
GRAIN = 1000  # shares are fitted to a thousandth
MOST_RECENT = 4096
TIERS = "tiers"


@dataclass(frozen=True)
class Fitted:
    """A policy that fits, by plan. `share` is planned, of the full cache's bytes."""

    entry: Mapping[str, Any]
    policy: Policy
    share: float


@dataclass(frozen=True)
class TooLarge:
    """Even the smallest value of the knob doesn't fit; `share` is what that one would hold."""

    share: float


def planned(policy: Policy, prompt: int, steps: int, size: Sizes, metadata: int) -> SequenceBytes:
    """The ledger of one sequence with so many decode steps, from the code that the cache obeys.

    Args:
        metadata: bytes of one token's metadata.
    """
    row, usage = RowTiers(prompt), Usage()
    for step, tokens in enumerate([prompt, *[1] * steps]):
        row.append(tokens)
        usage.before_event(row)
        for move in due_moves(policy, row, size):
            row.apply(move)
        if step:
            usage.after_event(row)
    return close_account(usage, row, size, metadata)


def metadata_token_bytes(policy: Policy, shape: ModelShape, dtype: str) -> int:
    """Bytes of positions, slot fields and kept codes of one token, as an empty cache states them."""
    import torch

    from tiercache.cache import TieredCache
    from tiercache.rope import Rope
    from tiercache.scorers import Facts
    from tiercache.store import Geometry

    kind = getattr(torch, shape.resolve(dtype))
    geometry = Geometry(shape.layers, shape.q_heads, shape.kv_heads, shape.head_dim, kind)
    facts = Facts(geometry, Rope(torch.ones(shape.head_dim // 2)))  # which angles doesn't matter for bytes
    return TieredCache(geometry, policy, torch.device("cpu"), facts).metadata_token_bytes


@dataclass(frozen=True)
class Bytes:
    """What a sequence held, mean over its decode steps; `host` and `beside` (metadata) are apart from `device`."""

    device: float
    host: float
    beside: float

    def counted(self, host_counts: bool) -> float:
        return self.device + self.beside + (self.host if host_counts else 0.0)


def mean_bytes(hbm: float, ddr: float, packed: float, size: Sizes, metadata: int) -> Bytes:
    """From the ledger's mean bytes of the three tiers. The ledger has metadata at their peak alone, which is the prompt
    before anything has left; their mean is that of the tokens held, which follow from the tiers' bytes. Where quantised
    tokens have two formats all are taken for the smaller one: rather too many tokens than too few."""
    each = min(size.packed / size.window, size.coarse or size.packed)
    return Bytes(hbm + packed, ddr, ((hbm + ddr) / size.token + packed / each) * metadata)


class Planner:
    """Plans and fits policies for one model and the lengths of one set of problems."""

    def __init__(self, shape: ModelShape, dtype: str, lengths: Sequence[tuple[int, int]], host_counts: bool) -> None:
        """lengths: (prompt tokens, decode steps) of the full cache's answers."""
        self._shape, self._dtype, self._host_counts = shape, dtype, host_counts
        ordered = sorted(lengths, key=sum)
        count = min(LENGTHS, len(ordered))
        # The middles of as many equal parts.
        self._lengths = Counter(ordered[(2 * i + 1) * len(ordered) // (2 * count)] for i in range(count))
        self._longest = max(map(sum, ordered))
        self._share = lru_cache(maxsize=100_000)(self._plan)

    def share(self, policy: Policy) -> float:
        """What the policy holds, as a share of the full cache's keys and values.

        Raises:
            PolicyError: it doesn't suit the model.
        """
        return self._share(policy)

    def _plan(self, policy: Policy) -> float:
        size = self._shape.sizes(policy, self._dtype)
        metadata = metadata_token_bytes(policy, self._shape, self._dtype)
        total = full = 0.0
        for (prompt, steps), often in self._lengths.items():
            ledger = planned(policy, prompt, steps, size, metadata)
            means = ledger.hbm_bytes_mean, ledger.ddr_bytes_mean, ledger.packed_bytes_mean
            total += often * mean_bytes(*means, size, metadata).counted(self._host_counts)
            full += often * ledger.full_bytes_mean
        return total / full

    def fit(self, entry: Mapping[str, Any], knob: str | None, budget: float) -> Fitted | TooLarge:
        """The entry with the largest value of `knob` that fits the budget; with None the entry as it is.

        `tiers` keeps every token if it can, with as many as fit in full precision beside `hbm`, which is the least
        share; otherwise it evicts as few as it must.

        Raises:
            PolicyError: the entry is impossible, or doesn't suit the model.
        """
        limit = budget * (1 - MARGIN)
        if knob != TIERS:
            return self._largest(entry, knob, limit, *self._range(entry, knob))
        packed = entry["packed"]
        least, most = round(GRAIN * entry["hbm"]), GRAIN if packed == REST else round((1 - packed) * GRAIN)
        kept = self._largest({**entry, "evict": 0.0}, "hbm", limit, least, most)
        if isinstance(kept, Fitted):
            return kept
        return self._largest(fill(entry, "hbm", least), "evict", limit, 0, GRAIN - 1)

    def _largest(
        self, entry: Mapping[str, Any], knob: str | None, limit: float, low: int, high: int
    ) -> Fitted | TooLarge:
        """By bisection over whole numbers, at the larger of which the policy is larger."""

        def at(value: int) -> Fitted:
            filled = fill(entry, knob, value)
            policy = parse_policy(filled)
            return Fitted(filled, policy, self.share(policy))

        best = at(low)
        if best.share > limit:
            return TooLarge(best.share)
        while low < high:
            middle = (low + high + 1) // 2
            tried = at(middle)
            if tried.share <= limit:
                best, low = tried, middle
            else:
                high = middle - 1
        return best

    def _range(self, entry: Mapping[str, Any], knob: str | None) -> tuple[int, int]:
        """Whole numbers between which the knob lies; shares are counted in grains."""
        if knob is None:
            return 0, 0
        if knob == "recent":
            return 1, min(MOST_RECENT, self._longest)
        if knob == "hbm":
            packed = entry.get("packed", 0.0)
            return 0, GRAIN if packed == REST else round((1 - packed) * GRAIN)
        return (1 if knob == "budget" else 0), GRAIN


def fill(entry: Mapping[str, Any], knob: str | None, value: int) -> dict[str, Any]:
    """The entry with the knob's value in it."""
    if knob is None:
        return dict(entry)
    share = value / GRAIN
    if knob == "recent":
        return {**entry, "recent": value}
    if knob == "budget":
        return {**entry, "budget": {"bytes": share}}
    if knob == "evict":
        return {**entry, "evict": round(1 - share, 3), "compound": False}
    rest = {"packed": round(1 - share, 3)} if entry.get("packed") == REST else {}
    return {**entry, **rest, knob: share}
