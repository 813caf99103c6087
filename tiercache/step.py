"""What attention does during one forward pass: the object that every attention layer of the model calls.

The model stays transformers' own; its attention function hands queries, keys and values (after RoPE) to `attend`.
"""

from typing import Protocol

import torch
from torch import Tensor

from tiercache.attention import (
    Partial,
    combine,
    fused_attention,
    partial_attention,
    prefill_attention_with_mass,
    softmax_attention,
)
from tiercache.cache import TieredCache
from tiercache.store import TierStore


class Step(Protocol):
    """One forward pass over the running batch."""

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """query [rows, heads, n, d]; key, value [rows, kv_heads, n, d] -> output [rows, n, heads, d]."""


class PrefillStep:
    """A chunk of the prompts of new rows, padded on the right: `[start, start + n)` of each.

    A real query sees only keys at or before its own position, and those are real for its row, so padding needs no mask.
    """

    def __init__(self, cache: TieredCache, rows: slice, start: int, lengths: list[int], chunk: int) -> None:
        self.cache, self.rows, self.start = cache, rows, start
        device = cache.hbm.device
        places = torch.arange(start, start + chunk, device=device)
        self.visible = torch.arange(start + chunk, device=device) <= places.unsqueeze(1)  # [chunk, start + chunk]
        self.counted = places < torch.tensor(lengths, device=device).unsqueeze(1)  # [rows, chunk]

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        stop = self.start + key.shape[2]
        planes = self.cache.hbm.planes
        keys, values = (planes[side][layer, self.rows, :, :stop] for side in ("k", "v"))
        keys[:, :, self.start :] = key
        values[:, :, self.start :] = value
        if self.cache.policy.needs_attention:
            out, mass = prefill_attention_with_mass(query, keys, values, self.visible, self.counted, scaling)
            planes["mass"][layer, self.rows, :, :stop] += mass
        elif self.start == 0:
            out = fused_attention(query, key, value, None, scaling, causal=True)
        else:
            out = fused_attention(query, keys, values, self.visible, scaling)
        return out.transpose(1, 2).contiguous()


class DecodeStep:
    """One new token for every running row, attending to whatever its tiers hold."""

    def __init__(self, cache: TieredCache) -> None:
        self.cache = cache
        slots, self.positions = cache.open_slots()  # positions: int64 [rows]
        self.needs_mass = cache.policy.needs_attention
        self.tiers = [store for store in cache.stores if store.used()]
        self.biases = [_bias(store) for store in self.tiers]
        # Views for all layers at once: a slice for each layer would cost more than its attention on a small model.
        self._used_keys, self._used_values = cache.hbm.views()
        self._index = slots[..., None, None].expand(-1, -1, -1, 1, cache.geometry.head_dim).unbind(0)
        self._book_reads()

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        self._used_keys[layer].scatter_(2, self._index[layer], key)
        self._used_values[layer].scatter_(2, self._index[layer], value)
        rows, heads, _, dim = query.shape
        # The group stands where a kernel expects several queries of one head: no head is repeated.
        query = query.reshape(rows, self.cache.geometry.kv_heads, -1, dim)
        if len(self.tiers) > 1:
            out = self._over_tiers(layer, query, scaling)
        elif self.needs_mass:
            keys, values = self._used_keys[layer], self._used_values[layer]
            out, weights = softmax_attention(query, keys, values, self.biases[0], scaling)
            self.cache.hbm.planes["mass"][layer, :rows, :, : keys.shape[2]] += weights.sum(2)
        else:
            out = fused_attention(query, self._used_keys[layer], self._used_values[layer], self.biases[0], scaling)
        return out.reshape(rows, 1, heads, dim)

    def _over_tiers(self, layer: int, query: Tensor, scaling: float) -> Tensor:
        """Attention of queries [rows, kv_heads, group, d] over all tiers, and its mass to their slot fields."""
        parts: list[Partial] = []
        for store, bias in zip(self.tiers, self.biases, strict=True):
            keys, values = store.layer(layer)
            if store.device == query.device:
                parts.append(partial_attention(query, keys, values, bias, scaling))
            elif self.cache.policy.storage.t1_read == "stream":
                keys, values = (side.to(query.device, non_blocking=True) for side in (keys, values))
                local = bias.to(query.device) if bias is not None else None
                parts.append(partial_attention(query, keys, values, local, scaling))
            else:
                part = partial_attention(query.to(store.device), keys, values, bias, scaling)
                parts.append(Partial(part.out.to(query.device), part.lse.to(query.device), part.weights))
        out, shares = combine(parts)
        if self.needs_mass:
            for store, part, share in zip(self.tiers, parts, shares, strict=True):
                weights = part.weights.to(store.device)
                mass = torch.einsum("rhgs,rhg->rhs", weights, share.to(weights))
                store.planes["mass"][layer, : mass.shape[0], :, : mass.shape[2]] += mass
        return out

    def _book_reads(self) -> None:
        """Counts what crosses the bus in this step because T1 lies on the host.

        `stream`: all of T1 goes up. `merge`: queries go down, outputs and log-sum-exps (float32) come back.
        """
        cache, g = self.cache, self.cache.geometry
        if cache.policy.storage.t1_read == "stream":
            cache.traffic.to_device += sum(tier.ddr for tier in cache.tiers) * g.token_bytes
        else:
            rows = sum(1 for tier in cache.tiers if tier.ddr)
            vectors = rows * g.layers * g.query_heads
            cache.traffic.to_host += vectors * g.head_dim * g.dtype.itemsize
            cache.traffic.to_device += vectors * (g.head_dim * g.dtype.itemsize + torch.float32.itemsize)


def _bias(store: TierStore) -> Tensor | None:
    """[rows, 1, 1, used] in the keys' type: 0 where a slot holds a token and -inf beyond; None if all do."""
    used = store.used()
    if min(store.extents) == used:
        return None
    extents = torch.tensor(store.extents, device=store.device).view(-1, 1, 1, 1)
    beyond = torch.arange(used, device=store.device) >= extents
    return torch.zeros(beyond.shape, dtype=store.geometry.dtype, device=store.device).masked_fill_(
        beyond, float("-inf")
    )
