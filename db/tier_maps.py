"""The tier maps of samples: where each token lay while a sequence ran, and the bytes that each tier held.

Numpy is imported only when a map is read: the command line, which asks for keys alone, starts without it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlalchemy import Engine, and_, select

from db.progress import keys_of
from db.schema import Cell, StoredTierMap, SweepCell

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

HBM, DDR, PACKED, EVICTED = 0, 1, 2, 3
TIERS = ("HBM", "DDR", "packed", "evicted")  # by code
ABSENT = 255  # the token's keys and values aren't written yet
SERIES = ("hbm", "ddr", "packed", "evicted", "full", "to_host", "to_device")
KEY = ("fingerprint", "problem_id", "repeat")


@dataclass(frozen=True, slots=True, kw_only=True)
class TierMapInfo:
    """That a sample has a map, and how large it is. `tokens` are prompt and output together."""

    fingerprint: str
    policy: str  # label of its cell
    policy_name: str
    problem_id: str
    repeat: int
    steps: int  # decode steps
    prompt_tokens: int
    tokens: int
    looks: int
    layers: int


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class TierMap:
    """One sample's map: what was found at each *look*, after some decode steps and their events; bytes after each step.

    steps       int64 [looks]: decode steps done by then; the first look is at 0, after the prefill.
    seen        int64 [looks]: tokens whose keys and values are written by then. Those after them are ABSENT.
    tiers       uint8 [looks, layers, tokens]: codes of TIERS; where the KV heads of a layer differ, the most common
                tier, of equally common ones the nearest to the device.
    overall     uint8 [looks, tokens]: the same over all (layer, KV head).
    held        float32 [looks, tokens]: share of (layer, KV head) that hold the token in any tier; NaN where absent.
    importance  float32 [looks, tokens]: the score by which the policy would rank the token if an event were due, mean
                over the (layer, KV head) in which it may move; NaN where it may not: gone, protected, absent. Long
                sequences have it at some looks only, `scored`; between them the last one stands. None where the policy
                has no score; `no_importance` then says why.
    series      int64 [decode steps + 1] for each of SERIES, after the prefill and after each decode step: the logical
                bytes in each tier (`hbm`, `ddr`, `packed`), what was `evicted`, what the `full` cache would
                hold, and the bytes that the policy's events have moved so far (`to_host`, `to_device`).
    texts, ids  of each token, the output's last one too, whose keys and values are never written. Hostile text.
    """

    fingerprint: str
    problem_id: str
    repeat: int
    prompt_tokens: int
    layers: int
    kv_heads: int
    steps: NDArray[np.int64]
    seen: NDArray[np.int64]
    tiers: NDArray[np.uint8]
    overall: NDArray[np.uint8]
    held: NDArray[np.float32]
    importance: NDArray[np.float32] | None
    scored: NDArray[np.bool_]
    no_importance: str | None
    series: Mapping[str, NDArray[np.int64]]
    texts: tuple[str, ...]
    ids: NDArray[np.int64]

    @property
    def looks(self) -> int:
        return len(self.steps)

    @property
    def tokens(self) -> int:
        """Prompt and output."""
        return len(self.texts)

    def look_at(self, step: int) -> int:
        """Return the last look that isn't after a decode step."""
        return max(0, int((self.steps <= step).sum()) - 1)


def tier_map_keys(engine: Engine, fingerprints: Iterable[str]) -> set[tuple[str, str, int]]:
    """Return (fingerprint, problem_id, repeat) of the samples that have a map."""
    keys = select(*(getattr(StoredTierMap, name) for name in KEY))
    return keys_of(engine, keys, StoredTierMap.fingerprint, fingerprints)


def list_tier_maps(engine: Engine, sweep_id: str) -> list[TierMapInfo]:
    """Return what maps the cells of a sweep have, in the sweep's order and then by problem; no map is read for it."""
    own = ("fingerprint", "problem_id", "repeat", "steps", "prompt_tokens", "tokens", "looks", "layers")
    statement = (
        select(*(getattr(StoredTierMap, name) for name in own), Cell.policy, Cell.policy_name)
        .join(Cell, Cell.fingerprint == StoredTierMap.fingerprint)
        .join(SweepCell, and_(SweepCell.fingerprint == StoredTierMap.fingerprint, SweepCell.sweep_id == sweep_id))
        .order_by(SweepCell.position, StoredTierMap.problem_id, StoredTierMap.repeat)
    )
    with engine.connect() as connection:
        return [TierMapInfo(**row._mapping) for row in connection.execute(statement)]


def get_tier_map(engine: Engine, fingerprint: str, problem_id: str, repeat: int) -> TierMap | None:
    """Return a sample's map, or None where it has none.

    Raises:
        StorageError: what is stored isn't a map, or one of a newer version.
    """
    from db.tier_codec import unpack

    facts = ("prompt_tokens", "layers", "kv_heads", "no_importance")
    statement = select(*(getattr(StoredTierMap, name) for name in (*facts, "blob"))).where(
        StoredTierMap.fingerprint == fingerprint,
        StoredTierMap.problem_id == problem_id,
        StoredTierMap.repeat == repeat,
    )
    with engine.connect() as connection:
        row = connection.execute(statement).one_or_none()
    if row is None:
        return None
    known = {name: getattr(row, name) for name in facts}
    return TierMap(fingerprint=fingerprint, problem_id=problem_id, repeat=repeat, **known, **unpack(row.blob))
