"""A probe that writes down tier maps: of a few sequences, at a few looks each."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tiercache.cache import TieredCache
from tiercache.diagnostics.tier_record import DDR, EVICTED, HBM, PACKED, SERIES, TierRecord
from tiercache.diagnostics.trace import tier_map
from tiercache.engine import Probe
from tiercache.errors import PolicyError
from tiercache.placement import protected_intervals
from tiercache.policy import Policy
from tiercache.ranking import RowFacts

EVERY = 8  # decode steps between two looks where the policy has no schedule of its own
MOST_LOOKS = 256  # of a sequence; then every second one goes, and looks are twice as far apart from then on
MOST_BYTES = 64 * 2**20  # of a sequence's looks in memory; the same happens
CODES = np.array([HBM, DDR, PACKED, PACKED, EVICTED], dtype=np.uint8)  # by `trace`'s tiers; the last is its -1


@dataclass(frozen=True, eq=False)
class _Look:
    step: int
    tiers: NDArray[np.uint8]  # [layers, seen]
    overall: NDArray[np.uint8]  # [seen]
    held: NDArray[np.float32]
    importance: NDArray[np.float32] | None

    @property
    def bytes(self) -> int:
        return sum(each.nbytes for each in (self.tiers, self.overall, self.held, self.importance) if each is not None)


@dataclass(eq=False)
class _Recording:
    prompt: int
    stride: int
    looks: list[_Look] = field(default_factory=list)
    series: list[tuple[int, ...]] = field(default_factory=list)
    why_not: str | None = None  # the policy's scorer couldn't be asked

    def add(self, look: _Look, last: bool) -> None:
        """The last look stays whatever it takes."""
        self.looks.append(look)
        while not last and len(self.looks) > 2 and self._too_many():
            self.stride *= 2
            self.looks = [each for each in self.looks if each.step % self.stride == 0]

    def _too_many(self) -> bool:
        return len(self.looks) > MOST_LOOKS or sum(each.bytes for each in self.looks) > MOST_BYTES


class MapRecorder:
    """A probe for `Engine.run`. Of other sequences than those with these keys it costs nothing.

    `beside` is another probe that is shown the same.
    """

    def __init__(self, policy: Policy, keys: Collection[str], beside: Probe | None = None) -> None:
        self.policy, self.keys, self.beside = policy, frozenset(keys), beside
        self._found: dict[str, _Recording] = {}
        self._shape = (0, 0)

    def __call__(self, cache: TieredCache, first: int, keys: Sequence[str], hidden: Tensor) -> None:
        if self.beside is not None:
            self.beside(cache, first, keys, hidden)
        for row, key in enumerate(keys, start=first):
            if key not in self.keys:
                continue
            tiers = cache.sequences[row].tiers
            if tiers.generated == 0:  # also where a row starts again after running out of memory
                self._found[key] = _Recording(tiers.prompt, _stride(self.policy))
            recording = self._found[key]
            recording.series.append(_bytes(cache, row))
            if tiers.generated % recording.stride == 0:
                self._look(cache, row, recording)

    def ended(self, cache: TieredCache, row: int, key: str) -> None:
        """The last look."""
        recording = self._found.get(key)
        if recording is not None and (
            not recording.looks or recording.looks[-1].step != cache.sequences[row].tiers.generated
        ):
            self._look(cache, row, recording, last=True)

    def pop(self, key: str, tokens: int) -> TierRecord:
        """What was found of an ended sequence, which has so many tokens, prompt and output: the last isn't written."""
        recording = self._found.pop(key)
        looks, layers = recording.looks, self._shape[0]
        seen = np.array([len(look.overall) for look in looks], dtype=np.int64)
        importance = None if self._silent(recording) else np.full((len(looks), tokens), np.nan, dtype=np.float32)
        overall = np.zeros((len(looks), tokens), dtype=np.uint8)
        held = np.zeros((len(looks), tokens), dtype=np.float32)
        tiers = np.zeros((len(looks), layers, tokens), dtype=np.uint8)
        for i, look in enumerate(looks):
            written = slice(0, seen[i])
            tiers[i, :, written], overall[i, written], held[i, written] = look.tiers, look.overall, look.held
            if importance is not None and look.importance is not None:
                importance[i, written] = look.importance
        return TierRecord(
            prompt=recording.prompt,
            layers=layers,
            kv_heads=self._shape[1],
            steps=np.array([look.step for look in looks], dtype=np.int64),
            seen=seen,
            tiers=tiers,
            overall=overall,
            held=held,
            importance=importance,
            no_importance=self._silent(recording),
            series=dict(zip(SERIES, np.array(recording.series, dtype=np.int64).T, strict=True)),
        )

    def _silent(self, recording: _Recording) -> str | None:
        """Why there is no score at all, or None."""
        if not self.policy.acts:
            return "the policy never moves a token, so it ranks none"
        if any(look.importance is not None for look in recording.looks):
            return None
        return recording.why_not or "at no look was there a token that might leave its tier"

    def _look(self, cache: TieredCache, row: int, recording: _Recording, last: bool = False) -> None:
        found = tier_map(cache, row).numpy()  # [layers, kv_heads, seen]
        self._shape = found.shape[0], found.shape[1]
        codes = CODES[found]
        importance = None
        if self.policy.acts and recording.why_not is None:
            try:
                importance = importance_now(cache, row)
            except PolicyError as problem:  # a user's own scorer, asked at a moment of which it knows nothing
                recording.why_not = str(problem)
        recording.add(
            _Look(
                step=cache.sequences[row].tiers.generated,
                tiers=_commonest(codes, axis=1),
                overall=_commonest(codes, axis=(0, 1)),
                held=(codes != EVICTED).mean((0, 1), dtype=np.float32),
                importance=importance,
            ),
            last,
        )


def importance_now(cache: TieredCache, row: int) -> NDArray[np.float32] | None:
    """Scores by which the policy would rank a row's tokens if an event were due now, float32 [seen].

    Mean over the (layer, KV head) in which a token may move, NaN where it may in none. None where no token may.
    """
    sequence = cache.sequences[row]
    tiers, spans = sequence.tiers, protected_intervals(cache.policy.placement, sequence.tiers)
    candidates = tiers.live - sum(stop - start for start, stop in spans)
    if candidates <= 0 and not cache.policy.placement.ragged:
        return None
    sequence.write_positions(cache.hbm, row)
    facts = RowFacts(row, sequence.seed, tiers.seen, tiers.prompt, spans, max(0, candidates))
    score, pos, protected = cache.ranker.row_scores(cache.stores, [facts], event=False)
    ranked = (pos >= 0) & ~protected & score.isfinite()
    if not bool(ranked.any()):
        return None
    index, values = pos[ranked].long(), score[ranked]
    sums = values.new_zeros(tiers.seen).index_add_(0, index, values)
    count = values.new_zeros(tiers.seen).index_add_(0, index, torch.ones_like(values))
    mean = torch.where(count > 0, sums / count.clamp_min(1), torch.nan)
    result: NDArray[np.float32] = mean.float().cpu().numpy()
    return result


def _commonest(codes: NDArray[np.uint8], axis: int | tuple[int, ...]) -> NDArray[np.uint8]:
    """The most common code along an axis; of equally common ones the first."""
    counts = np.stack([(codes == tier).sum(axis) for tier in (HBM, DDR, PACKED, EVICTED)])
    first: NDArray[np.uint8] = counts.argmax(0).astype(np.uint8)
    return first


def _bytes(cache: TieredCache, row: int) -> tuple[int, ...]:
    """The ledger's logical bytes of a row now, in the order of SERIES."""
    sequence, size = cache.sequences[row], cache.sizes
    tiers, moved = sequence.tiers, sequence.traffic
    packed = size.packed_bytes(tiers.packed, tiers.coarse)
    held = tiers.hbm * size.token, tiers.ddr * size.token, packed
    return *held, tiers.evicted * size.token, tiers.seen * size.token, moved.to_host, moved.to_device


def _stride(policy: Policy) -> int:
    """The policy's own schedule, where it acts every few steps."""
    every = policy.schedule.every
    return every if policy.acts and every > 1 else EVERY
