"""What attention does while a chunk of new rows' prompts goes through the model."""

from functools import partial
from itertools import accumulate, groupby, pairwise

import torch
from torch import Tensor

from tiercache.attention import fused_attention, prefill_attention
from tiercache.cache import TieredCache
from tiercache.scorers.base import ObservedPrefill


class PrefillStep:
    """A chunk of the prompts of new rows, padded on the right: `[start, start + n)` of each.

    A real query sees only keys at or before its own position, and those are real for its row, so padding needs no mask.
    """

    def __init__(self, cache: TieredCache, rows: slice, start: int, lengths: list[int], chunk: int) -> None:
        self.cache, self.rows, self.start, self.lengths = cache, rows, start, lengths
        device = cache.hbm.device
        places = torch.arange(start, start + chunk, device=device)
        self.visible = torch.arange(start + chunk, device=device) <= places.unsqueeze(1)  # [chunk, start + chunk]
        self.counted = places < torch.tensor(lengths, device=device).unsqueeze(1)  # [rows, chunk]
        # On a CPU rows of one length at a time, so that a row's bits don't depend on what its neighbours are padded to.
        real = [(chunk, len(lengths))]
        if device.type == "cpu":
            real = [(length, len(list(rows))) for length, rows in groupby(self._real())]
        ends = list(accumulate((many for _, many in real), initial=0))
        self._alike = [(slice(*edges), length) for edges, (length, _) in zip(pairwise(ends), real, strict=True)]
        self.hidden_layers = cache.scorer.hidden_layers if cache.watches else ()
        self._hidden: dict[int, Tensor] = {}

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        stop = self.start + key.shape[2]
        planes = self.cache.hbm.planes
        keys, values = (planes[side][layer, self.rows, :, :stop] for side in ("k", "v"))
        keys[:, :, self.start :] = key
        values[:, :, self.start :] = value
        if self.cache.queries is not None:
            for i, real in enumerate(self._real()):
                self.cache.queries.write_chunk(layer, self.rows.start + i, query[i, :, :real], self.start)
        if len(self._alike) == 1:
            return self._attend(layer, 0, query, keys, values, scaling).transpose(1, 2).contiguous()
        out = torch.zeros_like(query)
        for rows, real in self._alike:
            stop = self.start + real
            places = (query[rows, :, :real], keys[rows, :, :stop], values[rows, :, :stop])
            out[rows, :, :real] = self._attend(layer, rows.start, *places, scaling)
        return out.transpose(1, 2).contiguous()

    def _attend(self, layer: int, row: int, query: Tensor, keys: Tensor, values: Tensor, scaling: float) -> Tensor:
        """Rows from this one on, of the same length."""
        visible = self.visible[: query.shape[2], : keys.shape[2]]
        if self.cache.needs_attention:
            return prefill_attention(query, keys, values, visible, scaling, partial(self._observe, layer, row))
        if self.start == 0:
            return fused_attention(query, keys, values, None, scaling, causal=True)
        return fused_attention(query, keys, values, visible, scaling)

    def _observe(self, layer: int, start: int, row: int, first: int, weights: Tensor) -> None:
        row += start
        if first >= self._real()[row]:  # padding only
            return
        store, stop = self.cache.hbm, weights.shape[-1]
        fields = {name: store.planes[name][layer, self.rows.start + row, :, :stop] for name in store.fields}
        counted = self.counted[row, first : first + weights.shape[2]]
        self.cache.scorer.observe_prefill(ObservedPrefill(layer, fields, weights, counted, self.start + first))

    def layer_output(self, layer: int, hidden: Tensor) -> None:
        self._hidden[layer] = hidden

    def finish(self) -> None:
        """Hands each row's real hidden states to the scorer and writes the slot fields that it returns."""
        if not self._hidden:
            return
        for i, real in enumerate(self._real()):
            row = self.rows.start + i
            hidden = {layer: states[i : i + 1, :real] for layer, states in self._hidden.items()}
            fields = self.cache.scorer.observe_hidden(hidden, self.cache.state.rows(slice(row, row + 1)))
            for name, values in fields.items():
                self.cache.hbm.planes[name][:, row, :, self.start : self.start + real] = values[0]

    def _real(self) -> list[int]:
        """Tokens of this chunk that aren't padding, row by row."""
        return [min(self.counted.shape[1], length - self.start) for length in self.lengths]
