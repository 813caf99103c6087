"""Attention of queries yet to come: Expected Attention (2510.00636)."""

import torch
from torch import Tensor

from tiercache.catalog import geometric
from tiercache.catalog.base import Signal
from tiercache.errors import PolicyError
from tiercache.scorers.base import Facts, Scorer, View
from tiercache.scorers.pairs import from_pairs, mean_turn, to_pairs


class ExpectedAttention(Scorer):
    """(p_i + epsilon) |v_i|, p = mean over the group of softmax_i(c m.k_i + c^2 k_i' S k_i / 2), c the logits' scale.

    m and S are mean and covariance (of the population) of the newest queries before RoPE, both turned by the mean
    rotation over the next `future` positions. The softmax is over the candidates. S is never built: k' S k is the
    mean square of (q - m).k over the same queries.
    """

    needs_keys = True

    def __init__(self, signal: Signal, facts: Facts) -> None:
        super().__init__(signal, facts)
        assert isinstance(signal, geometric.Expected)
        if facts.rope is None:
            raise PolicyError("scorer 'expected' needs rotary angles that depend on the position alone.")
        self.rope = facts.rope
        self.query_window = signal.queries
        self.epsilon = signal.epsilon
        self.future = torch.arange(signal.future)

    def score(self, view: View) -> Tensor:
        assert view.keys is not None, "this scorer needs keys"
        assert view.values is not None, "values come with the keys"
        assert view.queries is not None, "this scorer needs queries"
        assert view.query_pos is not None, "positions come with the queries"
        known = view.query_pos >= 0
        ahead = view.seen.unsqueeze(1) - view.query_pos
        turn = mean_turn(self.rope, self.future, view.pos.device, self.wide)
        layers = []
        for layer, keys in enumerate(view.keys):
            # As if all had been asked at the next position, and from there at every position of the future.
            queries = self.rope.turn(view.queries[layer].to(self.wide), ahead.unsqueeze(1))  # [R, Hq, w, d]
            queries = from_pairs(to_pairs(queries) * turn)
            grouped = queries.view(keys.shape[0], keys.shape[1], -1, *queries.shape[2:])
            share = self._share(grouped, known, keys.to(self.wide), view.candidate[layer], view.scaling)
            layers.append((share + self.epsilon) * view.values[layer].to(self.wide).norm(dim=-1))
        return torch.stack(layers)

    def _share(self, queries: Tensor, known: Tensor, keys: Tensor, candidate: Tensor, scaling: float) -> Tensor:
        """Queries [R, H, G, w, d], known [R, w], keys [R, H, S, d] -> expected attention [R, H, S]."""
        weight = known.to(keys) / known.sum(-1, keepdim=True).clamp_min(1)
        weight = weight[:, None, None, :, None]  # [R, 1, 1, w, 1]
        mean = (queries * weight).sum(3, keepdim=True)
        keys = keys.unsqueeze(2).transpose(-1, -2)  # [R, H, 1, d, S]
        spread = ((torch.matmul(queries - mean, keys) * scaling).square() * weight).sum(3)  # [R, H, G, S]
        logits = torch.matmul(mean, keys).squeeze(3) * scaling + spread / 2
        share = logits.masked_fill(~candidate.unsqueeze(2), float("-inf")).softmax(-1).mean(2)
        return share.masked_fill(~candidate, 0)  # also where a head has no candidate at all
