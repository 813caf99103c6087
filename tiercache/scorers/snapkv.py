"""SnapKV (2404.14469): the newest queries vote on what to keep."""

import torch
from torch import Tensor

from tiercache.catalog.windowed import SnapKV
from tiercache.scorers.base import Facts, Scorer, View
from tiercache.scorers.window import own_tokens, pooled, window_votes


class ObservationWindow(Scorer):
    """c(i) = sum over the newest w queries t of a(t, i), pooled over `kernel` neighbours.

    The softmax runs over all that a query sees, the window's own tokens included. Those get no votes, stand outside the
    pool, and rank above all others. Query heads that share a KV head are averaged; the paper has no grouped heads, and
    their sum would rank alike.
    """

    needs_keys = True
    ordered = True
    signal: SnapKV

    def __init__(self, signal: SnapKV, facts: Facts) -> None:
        super().__init__(signal, facts)
        self.query_window = signal.queries

    def score(self, view: View) -> Tensor:
        own = own_tokens(view, self.signal.queries)
        layers = range(view.pos.shape[0])
        votes = torch.stack([window_votes(view, layer, self.wide) for layer in layers])
        votes = pooled(votes.masked_fill(own, 0), self.signal.kernel, self.signal.pool)
        return votes.masked_fill(own, self.signal.queries + 1.0)  # no token can get more than a vote of each query
