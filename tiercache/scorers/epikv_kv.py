"""Spread over the channels of keys and values, causal: the variants of EpiKV that need no hidden state (2606.26472)."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from tiercache.catalog import hidden
from tiercache.catalog.base import Signal
from tiercache.scorers.base import Facts, Scorer, View
from tiercache.scorers.buckets import buckets

EPSILON = 1e-6


class EpiKVCache(Scorer):
    """`lag-kv`: std_c(k'_ic) + std_c(v'_ic), `lag-kv-key`: the first alone, x'_ic = (x_ic - lo_c) / (hi_c - lo_c).

    lo and hi are each channel's least and greatest value in the previous chunk: `lag` positions, counted from the
    first generated token both ways, so that the end of the prompt is the first reference. Of a chunk counts what is
    still there; of an empty one the nearest before it. Before the first chunk there is nothing: score 0.

    `kv-key`, `kv-val`: mean of var_c(k_i) or var_c(v_i) over the newest `rolling` tokens still there, up to token i.

    No token's score depends on later tokens. std is the sample's, var the population's.
    """

    needs_keys = True

    def __init__(self, signal: Signal, facts: Facts) -> None:
        super().__init__(signal, facts)
        assert isinstance(signal, hidden.EpiKVCache)
        self.kind, self.lag, self.rolling = signal.signal, signal.lag, signal.rolling
        self.ordered = self.kind in ("kv-key", "kv-val")  # a rolling mean runs along the sequence

    def score(self, view: View) -> Tensor:
        assert view.keys is not None, "this scorer needs keys"
        assert view.values is not None, "values come with the keys"
        if self.ordered:
            side = view.keys if self.kind == "kv-key" else view.values
            return torch.stack([self._rolling(*layer) for layer in zip(side, view.pos >= 0, strict=True)])
        places = self._places(view)
        score = torch.stack([self._lagged(*layer) for layer in zip(view.keys, places, strict=True)])
        if self.kind == "lag-kv":
            score += torch.stack([self._lagged(*layer) for layer in zip(view.values, places, strict=True)])
        return score

    def _rolling(self, states: Tensor, used: Tensor) -> Tensor:
        """States [R, H, S, d] in order, used [R, H, S] -> [R, H, S]."""
        spread = _centred(states.to(self.wide)).square().mean(-1).masked_fill(~used, 0)
        # Sums of short windows, not differences of long ones, which would lose digits.
        padded = F.pad(spread, (self.rolling - 1, 0))
        count = torch.arange(1, spread.shape[-1] + 1, device=spread.device).clamp_max(self.rolling)
        return padded.unfold(-1, self.rolling, 1).sum(-1) / count

    def _places(self, view: View) -> Tensor:
        """Place of each slot's token on a line cut into chunks of `lag`, the first of which stays empty: it begins at
        `lag`; 0 where the slot is free: int64 [L, R, H, S]."""
        prompt = view.prompt.view(1, -1, 1, 1)
        before = -(-prompt // self.lag)  # chunks that reach back over the prompt
        place = view.pos.long() - prompt + (before + 1) * self.lag
        return place.masked_fill(view.pos < 0, 0)

    def _lagged(self, states: Tensor, place: Tensor) -> Tensor:
        """States [R, H, S, d], place [R, H, S] -> [R, H, S]."""
        states, chunk = states.to(self.wide), place // self.lag
        rank, heads = buckets(chunk), torch.arange(place[..., 0].numel(), device=place.device)
        bins = (heads.view(*place.shape[:2], 1) * place.shape[2] + rank).flatten()
        # One long line: on a CPU a reduction over the first dimension is thirty times as fast as over another.
        line, index = states.flatten(0, 2), bins.unsqueeze(1).expand(-1, states.shape[-1])
        low, high = (
            torch.zeros_like(line).scatter_reduce(0, index, line, way, include_self=False) for way in ("amin", "amax")
        )
        low, high = (each.index_select(0, (bins - 1).clamp_min(0)).view_as(states) for each in (low, high))
        scaled = (states - low) / (high - low).clamp_min(EPSILON)
        spread: Tensor = torch.linalg.vector_norm(_centred(scaled), dim=-1) / math.sqrt(states.shape[-1] - 1)
        free = (chunk == 0).any(-1, keepdim=True)  # they are the first bucket
        return spread.masked_fill(rank <= free, 0)


def _centred(states: Tensor) -> Tensor:
    """Less the mean over channels; what `std` and `var` do in one pass takes several times as long on a CPU."""
    return states - states.mean(-1, keepdim=True)
