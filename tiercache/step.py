"""What attention does during one forward pass: the object that every attention layer of the model calls.

The model stays transformers' own; its attention function hands queries, keys and values (after RoPE) to `attend`.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Protocol

import torch
from torch import Tensor

from tiercache.attention import Partial, combine
from tiercache.cache import TieredCache
from tiercache.kernels import Visible, decode_attention, on_cuda, table
from tiercache.pages import PageBounds, page_bounds, pages_to_read, unread
from tiercache.ragged_store import RaggedStore
from tiercache.scorers.base import Observed, Part, Source
from tiercache.store import TierStore
from tiercache.streaming import Courier, Sent


class Step(Protocol):
    """One forward pass over the running batch."""

    hidden_layers: tuple[int, ...]  # whose output `layer_output` wants

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """query [rows, heads, n, d]; key, value [rows, kv_heads, n, d] -> output [rows, n, heads, d]."""

    def layer_output(self, layer: int, hidden: Tensor) -> None:
        """Output [rows, n, hidden] of a layer in `hidden_layers`."""

    def finish(self) -> None:
        """After the forward pass, before the policy's event."""


class DecodeStep:
    """One new token for every running row, attending to whatever its tiers hold."""

    def __init__(self, cache: TieredCache) -> None:
        self.cache, scorer = cache, cache.scorer
        # positions: int64 [rows], at which the model rotates; now: how many tokens were truly seen.
        self.slots, self.now, self.positions = cache.open_slots()
        self.observed = cache.watches and (scorer.needs_attention or scorer.observes)
        self.hidden_layers = scorer.hidden_layers if cache.watches else ()
        self._hidden: dict[int, Tensor] = {}
        self.tiers = [store for store in cache.stores if store.used()]
        self._ragged = cache.hbm if isinstance(cache.hbm, RaggedStore) else None
        bring = cache.policy.storage.t1_read == "stream"
        far = [store for store in self.tiers if bring and store.device != cache.hbm.device]
        self._couriers = {store: Courier(store, cache.hbm.device, cache.clock) for store in far}
        self._numbers = torch.arange(cache.hbm.used(), device=cache.hbm.device) if cache.positions == "cache" else None
        self._book_reads()

    # Views for all layers at once: a slice for each layer would cost more than its attention on a small model.
    # Heads of different lengths are read side by side, and what scorers write there goes back when the step ends.

    @cached_property
    def visible(self) -> list[Visible]:
        """Of each tier every slot that holds a token."""
        return [_visible(store) for store in self.tiers]

    @cached_property
    def _used(self) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        return self.cache.hbm.views()

    @cached_property
    def _seen(self) -> list[dict[str, tuple[Tensor, ...]]]:
        """What scorers see of each tier: positions and slot fields, layer by layer."""
        planes = [store.read(range(store.rows), ("pos", *store.fields)) for store in self.tiers]
        return [{name: plane.unbind(0) for name, plane in tier.items()} for tier in planes]

    @cached_property
    def _state(self) -> dict[str, Tensor]:
        return self.cache.state.rows(slice(0, len(self.now)))

    @cached_property
    def _index(self) -> tuple[Tensor, ...]:
        return self.slots[..., None, None].expand(-1, -1, -1, 1, self.cache.geometry.head_dim).unbind(0)

    @property
    def plain(self) -> bool:
        """Whether attention is just that: new keys as they are, every slot seen, each tier read as it lies."""
        return self._numbers is None and self.cache.pages is None and all(map(table.reads, self.tiers))

    @property
    def sums(self) -> str | None:
        """The slot field to which a kernel may add weights itself, in float32."""
        name = self.cache.scorer.accumulates if self.cache.needs_attention else None
        return name if name is not None and self.cache.hbm.fields[name] is torch.float32 else None

    def observe(self, layer: int, query: Tensor, weights: Sequence[Tensor | None] | None, scaling: float) -> None:
        """Shows the scorer what it wants of a layer's attention.

        query [rows, heads, 1, d]; each tier's weights [rows, kv_heads, group, used], or their sums if the scorer wants
        no more; None where it wants none, or they are `sums` already.
        """
        if self.observed and (weights is not None or not self.cache.needs_attention):
            query = query.reshape(len(query), self.cache.geometry.kv_heads, -1, query.shape[-1])
            self._observe(layer, query, weights, scaling)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        cache = self.cache
        if self._ragged is not None:
            return self._over_stretches(self._ragged, layer, query, key, value, scaling)
        keys, values = self._used[0][layer], self._used[1][layer]
        if self._numbers is not None:
            assert cache.facts.rope is not None, "checked when the cache was made"
            key = cache.facts.rope.turn(key, -self.positions.view(-1, 1, 1))
        keys.scatter_(2, self._index[layer], key)
        values.scatter_(2, self._index[layer], value)
        if self._numbers is not None:
            keys = cache.facts.rope.turn(keys, self._numbers)  # type: ignore[union-attr]
        if cache.queries is not None:
            cache.queries.write(layer, query[:, :, 0], self.now)
        rows, heads, _, dim = query.shape
        # The group stands where a kernel expects several queries of one head: no head is repeated.
        query = query.reshape(rows, cache.geometry.kv_heads, -1, dim)
        if len(self.tiers) > 1:
            return self._over_tiers(layer, query, scaling).reshape(rows, 1, heads, dim)
        visible = self.visible[0]
        if cache.pages is not None:
            visible = replace(visible, bias=self._page_bias(cache.pages, layer, query, key, visible.bias))
        part = decode_attention(query, keys, values, visible, scaling, weights=cache.needs_attention)
        if self.observed:
            self._observe(layer, query, [part.weights], scaling, keys)
        return part.out.reshape(rows, 1, heads, dim)

    def _over_stretches(
        self, store: RaggedStore, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float
    ) -> Tensor:
        """Where the C kernel doesn't fit: heads are read as they lie, or laid side by side for now and masked."""
        for name, new in (("k", key), ("v", value)):
            store.put(name, self.slots[layer], new[:, :, 0], layer)
        rows, heads, _, dim = query.shape
        grouped = query.reshape(rows, self.cache.geometry.kv_heads, -1, dim)
        wanted = self.cache.needs_attention
        if on_cuda.fits(grouped):
            planes, starts, extents = store.planes, store.starts[layer], store.lengths[layer]
            places = (grouped, planes["k"], planes["v"], extents, None, scaling)
            part = on_cuda.decode_attention(*places, weights=wanted, starts=starts, longest=store.used())
        else:
            visible = replace(self.visible[0], bias=store.bias(layer))
            part = decode_attention(grouped, *store.layer(layer), visible, scaling, weights=wanted)
        if self.cache.queries is not None:
            self.cache.queries.write(layer, query[:, :, 0], self.now)
        self.observe(layer, query, [part.weights], scaling)
        return part.out.reshape(rows, 1, heads, dim)

    def _page_bias(
        self, pages: PageBounds, layer: int, query: Tensor, key: Tensor, bias: Tensor | None
    ) -> Tensor | None:
        """-inf for what isn't read, [rows, kv_heads, group, used]."""
        reading, slots = self.cache.policy.reading, self.slots[0, :, 0]
        pages.add(layer, key, slots)
        if layer < reading.dense_layers:
            return bias
        assert reading.read_budget is not None, "pages and read_budget go together"
        counts = [pages_to_read(reading.read_budget, tier.seen, pages.size) for tier in self.cache.tiers]
        rows, used = len(self.now), self.cache.hbm.used()
        boxes = [side[layer, :rows, :, : -(-used // pages.size)] for side in (pages.low, pages.high)]
        bounds = page_bounds(query, *boxes)
        skipped = unread(bounds, torch.tensor(counts, device=query.device), slots // pages.size, reading, used)
        mask = torch.zeros(skipped.shape, dtype=query.dtype, device=query.device).masked_fill_(skipped, float("-inf"))
        return mask if bias is None else mask + bias

    def _over_tiers(self, layer: int, query: Tensor, scaling: float) -> Tensor:
        """Attention of queries [rows, kv_heads, group, d] over all tiers."""
        wanted = self.observed and self.cache.needs_attention
        far = [store.device != query.device for store in self.tiers]
        merged = any(far) and not self._couriers
        sent = Sent(query) if merged else None  # before what the device is given to do, which it then needn't wait for
        parts: list[Partial | None] = [None] * len(self.tiers)
        for i in sorted(range(len(self.tiers)), key=lambda i: far[i]):  # the host computes while the device does
            store, visible = self.tiers[i], self.visible[i]
            if not far[i]:
                parts[i] = decode_attention(query, *store.layer(layer), visible, scaling, lse=True, weights=wanted)
            elif sent is None:
                keys, values = self._couriers[store].layer(layer)
                here = replace(visible, device=query.device)
                parts[i] = decode_attention(query, keys, values, here, scaling, lse=True, weights=wanted)
            else:
                places = (sent.here(), *store.layer(layer), visible, scaling)
                part = decode_attention(*places, lse=True, weights=wanted)
                assert part.lse is not None, "a tier's part has it"
                parts[i] = Partial(part.out.to(query.device), part.lse.to(query.device), part.weights)
        found = [part for part in parts if part is not None]
        out, shares = combine(found)
        if self.observed:
            weights = [_part_of_all(*each) for each in zip(found, shares, self.tiers, strict=True)]
            self._observe(layer, query, weights, scaling)
        return out

    def _observe(
        self,
        layer: int,
        query: Tensor,
        weights: Sequence[Tensor | None] | None,
        scaling: float,
        keys: Tensor | None = None,
    ) -> None:
        """query [rows, kv_heads, group, d]. keys: of the only tier, where they aren't read as they lie."""
        parts = []
        for i, (store, views) in enumerate(zip(self.tiers, self._seen, strict=True)):
            found = weights[i] if weights is not None else None
            both = (None, found) if found is not None and found.dim() == 3 else (found, None)
            fields = {name: views[name][layer] for name in store.fields}
            source: Source = partial(_keys, store, layer) if keys is None else keys
            parts.append(Part(fields, views["pos"][layer], source, *both))
        self.cache.scorer.observe(Observed(layer, query, parts, self.now, self._state, scaling))

    def layer_output(self, layer: int, hidden: Tensor) -> None:
        self._hidden[layer] = hidden

    def finish(self) -> None:
        """Hands the hidden states to the scorer and writes the slot fields that it returns."""
        store, rows = self.cache.hbm, len(self.now)
        if self._ragged is not None and "_seen" in self.__dict__:  # what scorers have written
            for name in store.fields:
                store.write(range(rows), name, torch.stack(self._seen[0][name]))
        if not self._hidden:
            return
        fields = self.cache.scorer.observe_hidden(self._hidden, self.cache.state.rows(slice(0, rows)))
        index = self.slots.unsqueeze(-1)
        for name, values in fields.items():
            if self._ragged is not None:
                new = values.to(self._ragged.planes[name].dtype).view(1, rows, 1).expand_as(self.slots)
                self._ragged.put(name, self.slots, new)
                continue
            plane = store.planes[name][:, :rows]
            plane.scatter_(3, index, values.to(plane.dtype).view(1, rows, 1, 1).expand_as(index))

    def _book_reads(self) -> None:
        """Counts what crosses the bus in this step because T1 lies on the host.

        `stream`: all of T1 goes up. `merge`: queries go down, outputs and log-sum-exps (float32) come back.
        """
        cache, g = self.cache, self.cache.geometry
        if not cache.ddr.used():
            return
        if cache.policy.storage.t1_read == "stream":
            cache.traffic.to_device += sum(tier.ddr for tier in cache.tiers) * g.token_bytes
        else:
            rows = sum(1 for tier in cache.tiers if tier.ddr)
            vectors = rows * g.layers * g.query_heads
            cache.traffic.to_host += vectors * g.head_dim * g.dtype.itemsize
            cache.traffic.to_device += vectors * (g.head_dim * g.dtype.itemsize + torch.float32.itemsize)


def _visible(store: TierStore) -> Visible:
    """Every slot that holds a token."""
    g = store.geometry
    return Visible(torch.tensor(store.extents, dtype=torch.int64), store.used(), g.dtype, store.device)


def _keys(store: TierStore, layer: int) -> Tensor:
    return store.layer(layer)[0]


def _part_of_all(part: Partial, share: Tensor, store: TierStore) -> Tensor | None:
    """Weights within one tier -> weights within all, on the tier's device."""
    if part.weights is None:
        return None
    return part.weights.to(store.device) * share.to(part.weights).to(store.device).unsqueeze(-1)
