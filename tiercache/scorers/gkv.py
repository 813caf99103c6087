"""G-KV (2512.00504): R-KV with a memory of earlier events."""

import torch
from torch import Tensor

from tiercache.catalog.windowed import GKV
from tiercache.scorers.base import Facts, Scorer, View
from tiercache.scorers.rkv import redundancy
from tiercache.scorers.window import own_tokens, pooled, window_votes


class GlobalScore(Scorer):
    """Z = mix · M - (1 - mix) · R, with the memory s <- max(decay · s, s_new) and M its max-pool over `kernel` tokens.

    s_new: attention of the newest w queries over all that they see, the highest of the query heads that share a KV
    head, summed over the queries, divided by its maximum over the tokens before the window. R is R-KV's redundancy,
    divided by its maximum over the same tokens. The window's own tokens aren't remembered yet and rank above all
    others.

    The memory is updated at every event at which tokens move, before they are ranked.
    """

    needs_keys = True
    ordered = True
    remembers = True
    signal: GKV

    def __init__(self, signal: GKV, facts: Facts) -> None:
        super().__init__(signal, facts)
        self.query_window = signal.queries

    def fields(self) -> dict[str, torch.dtype]:
        return {"memory": self.wide}

    def remember(self, view: View) -> dict[str, Tensor]:
        own = own_tokens(view, self.signal.queries)
        layers = range(view.pos.shape[0])
        votes = torch.stack([window_votes(view, layer, self.wide, largest=True) for layer in layers])
        votes = _relative(votes.masked_fill(own, 0))
        return {"memory": torch.maximum(view.fields["memory"] * self.signal.decay, votes)}

    def score(self, view: View) -> Tensor:
        signal, own = self.signal, own_tokens(view, self.signal.queries)
        importance = pooled(view.fields["memory"].masked_fill(own, 0), signal.kernel, "max")
        layers = range(view.pos.shape[0])
        similar = torch.stack([self._redundancy(view, layer) for layer in layers]).masked_fill(own, 0)
        score = signal.mix * importance - (1 - signal.mix) * _relative(similar)
        return score.masked_fill(own, 2.0)  # above any other: the rest lies between -1 and 1

    def _redundancy(self, view: View, layer: int) -> Tensor:
        assert view.keys is not None, "this scorer needs keys"
        live = view.pos[layer] >= 0
        spared = live.new_full(live.shape[:-1], self.signal.spared, dtype=torch.long)
        return redundancy(view.keys[layer].to(self.wide), live, self.signal.threshold, spared)


def _relative(score: Tensor) -> Tensor:
    """Divided by its maximum over the tokens; nothing stays nothing."""
    return score / score.amax(-1, keepdim=True).clamp_min(torch.finfo(score.dtype).tiny)
