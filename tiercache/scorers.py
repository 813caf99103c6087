"""Importance signals. A scorer is a pure function of what lies beside each token: its position and its slot fields."""

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor

from tiercache.policy import Policy


class Scorer(Protocol):
    """Ranks tokens; higher is more important. Built fresh for each run, holds no per-sequence state."""

    needs_attention: bool

    def fields(self, dtype: torch.dtype) -> dict[str, torch.dtype]:
        """Slot fields that the cache must keep for each token, with their types."""

    def score(self, planes: Mapping[str, Tensor], seeds: Tensor) -> Tensor:
        """Scores [layers, rows, kv_heads, slots] from planes of that shape; seeds [rows], one per sequence."""


class Recency:
    """The newest are the most important: StreamingLLM (2309.17453) at true positions."""

    needs_attention = False

    def fields(self, dtype: torch.dtype) -> dict[str, torch.dtype]:
        return {}

    def score(self, planes: Mapping[str, Tensor], seeds: Tensor) -> Tensor:
        return planes["pos"]


class AttentionMass:
    """Accumulated attention, prefill rows included: A(i) = sum over queries t >= i of a(t, i).

    The field `mass` is summed over the query heads that share a KV head. With scope `head` each (layer, KV head) ranks
    by its own sum (H2O, 2306.14048); with scope `token` by the mean over all layers and heads (2605.09490). The sum is
    not divided by age, as in both papers, so old tokens have had more time to collect.
    Kept in float32 (float64 for a float64 model): bfloat16 stops growing after about 256 equal additions.
    """

    needs_attention = True

    def __init__(self, scope: str) -> None:
        self.scope = scope

    def fields(self, dtype: torch.dtype) -> dict[str, torch.dtype]:
        return {"mass": torch.float64 if dtype == torch.float64 else torch.float32}

    def score(self, planes: Mapping[str, Tensor], seeds: Tensor) -> Tensor:
        mass = planes["mass"]
        if self.scope == "head":
            return mass
        # Under scope `token` a slot holds the same token in every layer and head, so slots can be averaged directly.
        return mass.mean(dim=(0, 2), keepdim=True).expand_as(mass)


class Random:
    """A number drawn once for each token: evicting the lowest keeps a uniform random subset at every length.

    The draw is a hash of (sequence seed, position) and, with scope `head`, of (layer, KV head): it depends neither on
    the batch nor on the device, and needs no state.
    """

    needs_attention = False

    def __init__(self, scope: str) -> None:
        self.scope = scope

    def fields(self, dtype: torch.dtype) -> dict[str, torch.dtype]:
        return {}

    def score(self, planes: Mapping[str, Tensor], seeds: Tensor) -> Tensor:
        pos = planes["pos"].long()
        layers, _, heads, _ = pos.shape
        state = seeds.view(1, -1, 1, 1) ^ mix(pos + 1)
        if self.scope == "head":
            place = torch.arange(1, layers * heads + 1, device=pos.device).view(layers, 1, heads, 1)
            state = state ^ mix(place << 32)
        return mix(state) & 0xFFFFFF  # 24 bits: exact in float32


def mix(x: Tensor) -> Tensor:
    """The finaliser of splitmix64 on int64 tensors (wrapping multiplication, logical shifts)."""
    x = (x ^ ((x >> 30) & 0x3FFFFFFFF)) * -0x40A7B892E31B1A47
    x = (x ^ ((x >> 27) & 0x1FFFFFFFFF)) * -0x6B2FB644ECCEEE15
    return x ^ ((x >> 31) & 0x1FFFFFFFF)


def make_scorer(policy: Policy) -> Scorer:
    """A fresh scorer for one run."""
    kind, scope = policy.scorer.scorer, policy.scorer.scope
    if kind == "attention":
        return AttentionMass(scope)
    return Random(scope) if kind == "random" else Recency()
