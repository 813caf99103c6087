"""The full cache over a text that is already there: queries, keys and values of every token, and what they yield."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tiercache import hf
from tiercache.attention import fused_attention
from tiercache.model import LoadedModel

Span = tuple[int, int]


@dataclass(frozen=True)
class Shadow:
    """A full-cache pass over one text of n tokens. Memory: the full cache, once more for queries, and hidden states.

    queries, keys, values   by layer, [heads, n, head_dim], after RoPE; queries have the query heads.
    hidden                  last hidden states [n, hidden].
    """

    queries: Sequence[Tensor]
    keys: Sequence[Tensor]
    values: Sequence[Tensor]
    hidden: Tensor
    scaling: float

    def logits(self, layer: int, start: int, stop: int, keys: Tensor | None = None) -> Tensor:
        """Causal logits of queries [start, stop) over keys [0, stop): [kv_heads, group, stop - start, stop].

        O(n) for each query: whoever wants all of them asks for a few at a time. `keys` stand in for the layer's own.
        """
        keys = self.keys[layer] if keys is None else keys
        heads, _, dim = keys.shape
        query = self.queries[layer][:, start:stop].reshape(heads, -1, stop - start, dim)
        logits = torch.matmul(query, keys[:, None, :stop].transpose(2, 3)) * self.scaling
        wide = torch.float64 if logits.dtype == torch.float64 else torch.float32
        places = torch.arange(stop, device=logits.device)
        return logits.to(wide).masked_fill(places > places[start:].unsqueeze(1), float("-inf"))


@torch.inference_mode()
def shadow(loaded: LoadedModel, tokens: Sequence[int], chunk: int = 512) -> Shadow:
    """Runs the text through the model with nothing ever evicted, `chunk` tokens at a time."""
    hidden, step = full_pass(loaded, tokens, chunk, [None])
    queries, keys, values = ([each[0] for each in side] for side in (step.queries, step.keys, step.values))
    return Shadow(queries, keys, values, hidden[0], loaded.geometry.head_dim**-0.5)


@torch.inference_mode()
def full_pass(
    loaded: LoadedModel, tokens: Sequence[int], chunk: int, hidden_spans: Sequence[Span | None]
) -> tuple[Tensor, "FullStep"]:
    """One row for each of `hidden_spans`: the same text, in which no later token sees the span's.

    Returns:
        last hidden states [rows, n, hidden], and what attention was computed from.
    """
    step = FullStep(loaded.geometry.layers, hidden_spans)
    rows, found = len(hidden_spans), []
    text = torch.tensor(tokens, device=loaded.device)
    for start in range(0, len(tokens), chunk):
        part = text[start : start + chunk]
        positions = torch.arange(start, start + len(part), device=loaded.device)
        step.look(positions)
        found.append(hf.hidden_states(loaded.model, part.expand(rows, -1), positions.unsqueeze(0), step))
    return torch.cat(found, dim=1), step


class FullStep:
    """Attention over everything before, but for the hidden spans. By layer [rows, heads, tokens so far, head_dim]."""

    hidden_layers: tuple[int, ...] = ()

    def __init__(self, layers: int, hidden_spans: Sequence[Span | None]) -> None:
        self.spans = hidden_spans
        self.queries: list[Tensor] = []
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []
        self._layers = layers
        self._visible: Tensor | None = None

    def look(self, positions: Tensor) -> None:
        """The next chunk's queries are at these positions."""
        query, key = positions.view(1, 1, -1, 1), torch.arange(int(positions[-1]) + 1, device=positions.device)
        spans = [(0, 0) if span is None else span for span in self.spans]
        start, stop = torch.tensor(spans, device=positions.device).view(-1, 2, 1, 1, 1).unbind(1)
        self._visible = (key <= query) & ~((key >= start) & (key < stop) & (query >= stop))  # [rows, 1, n, keys]

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        for side, new in ((self.queries, query), (self.keys, key), (self.values, value)):
            if len(side) == layer:
                side.append(new)
            else:
                side[layer] = torch.cat([side[layer], new], dim=2)
        out = fused_attention(query, self.keys[layer], self.values[layer], self._visible, scaling)
        return out.transpose(1, 2).contiguous()

    def layer_output(self, layer: int, hidden: Tensor) -> None:
        """Nobody asks for it."""

    def finish(self) -> None:
        """Nothing waits."""
