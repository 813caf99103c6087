"""Made-up tier maps. Test data: it says nothing about any policy."""

from __future__ import annotations

import numpy as np

from db.rows import TierMapRow
from db.tier_codec import Looks, pack
from db.tier_maps import ABSENT, EVICTED, SERIES, TierMap

HOSTILE = (
    "<script>alert(1)</script>",
    "%{x}",
    "<a href='javascript:x'>",
    "$\\alpha$",
    "a\nb",
    "\x00",
    "\u202eabc",
    "**b**",
)


def make(looks=6, layers=2, prompt=5, every=4, scores=True, seed=0, texts=()):
    """A map with tokens that move and leave, layer by layer."""
    rng = np.random.default_rng(seed)
    steps = np.arange(looks) * every
    seen = prompt + steps
    tokens = int(seen[-1]) + 1
    tiers = rng.choice(4, (looks, layers, tokens), p=[0.6, 0.2, 0.1, 0.1]).astype(np.uint8)
    for i in range(1, looks):
        tiers[i][tiers[i - 1] == EVICTED] = EVICTED
    absent = np.arange(tokens) >= seen[:, None]
    tiers[np.broadcast_to(absent[:, None], tiers.shape)] = ABSENT
    importance = np.where(absent, np.nan, rng.random((looks, tokens))).astype(np.float32)
    importance[:, 0] = np.nan
    count = int(steps[-1]) + 1
    words = [*texts, *(f"w{i}" for i in range(len(texts), tokens))][:tokens]
    return TierMap(
        fingerprint="f",
        problem_id="p",
        repeat=0,
        prompt_tokens=prompt,
        layers=layers,
        kv_heads=2,
        steps=steps,
        seen=seen,
        tiers=tiers,
        overall=tiers[:, 0],
        held=np.where(absent, np.nan, (tiers != EVICTED).mean(1)).astype(np.float32),
        importance=importance if scores else None,
        scored=np.full(looks, scores),
        no_importance=None if scores else "the policy ranks <none>",
        series={name: np.arange(count) * 1024 * (i + 1) for i, name in enumerate(SERIES)},
        texts=tuple(words),
        ids=np.arange(tokens),
    )


def row(tiers: TierMap, fingerprint: str, problem: str) -> TierMapRow:
    """A map as it is stored."""
    looks = Looks(
        steps=tiers.steps,
        seen=tiers.seen,
        tiers=tiers.tiers,
        overall=tiers.overall,
        held=tiers.held,
        importance=tiers.importance,
    )
    blob, count = pack(looks, tiers.series, tiers.texts, tiers.ids)
    return TierMapRow(
        fingerprint=fingerprint,
        problem_id=problem,
        repeat=0,
        steps=int(tiers.steps[-1]),
        prompt_tokens=tiers.prompt_tokens,
        tokens=tiers.tokens,
        looks=count,
        layers=tiers.layers,
        kv_heads=tiers.kv_heads,
        no_importance=tiers.no_importance,
        blob=blob,
    )
