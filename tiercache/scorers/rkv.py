"""R-KV (2505.24133): important, and unlike the rest."""

import torch
from torch import Tensor

from tiercache.catalog.windowed import RKV
from tiercache.scorers.base import Facts, Scorer, View
from tiercache.scorers.window import own_tokens, pooled, softmax, window_logits

BLOCK = 128  # rows of the similarity matrix at a time: it is never whole
FEW = 4  # spared keys up to which they are searched one after the other


class ImportanceAndRedundancy(Scorer):
    """Z = mix · I - (1 - mix) · R.

    I: logits of the newest w queries, the highest of the query heads that share a KV head; softmax over all that a
    query sees; max-pooled over `kernel` neighbours; averaged over the queries. R: see `redundancy`. The window's own
    tokens get no attention, stand outside the pool, and rank above all others.
    """

    needs_keys = True
    ordered = True
    signal: RKV

    def __init__(self, signal: RKV, facts: Facts) -> None:
        super().__init__(signal, facts)
        self.query_window = signal.queries

    def score(self, view: View) -> Tensor:
        own = own_tokens(view, self.signal.queries)
        return torch.stack([self._layer(view, layer, own[layer]) for layer in range(view.pos.shape[0])])

    def _layer(self, view: View, layer: int, own: Tensor) -> Tensor:
        """Scores of one layer, [R, H, S]."""
        assert view.keys is not None, "this scorer needs keys"
        signal, live = self.signal, view.pos[layer] >= 0
        similar = redundancy(
            view.keys[layer].to(self.wide),
            live,
            signal.threshold,
            (live.sum(-1).double() * signal.spared_share + 1e-9).long().clamp_min(signal.spared),
            first_spared=signal.recipe == "repository",
        )
        score = signal.mix * self._importance(view, layer, own) - (1 - signal.mix) * similar
        return score.masked_fill(own, 2.0)  # above any other: the rest lies between -1 and 1

    def _importance(self, view: View, layer: int, own: Tensor) -> Tensor:
        """[R, H, S]."""
        assert view.query_pos is not None, "queries have positions"
        own = own.unsqueeze(2)
        voters = (view.query_pos >= 0).sum(-1).clamp_min(1).view(-1, 1, 1)
        logits = window_logits(view, layer, self.wide).amax(2)  # [R, H, w, S]
        if self.signal.recipe == "repository":
            attention = softmax(logits.masked_fill(own, float("-inf"))).sum(2) / voters
            return pooled(attention, self.signal.kernel, "max")
        attention = softmax(logits).masked_fill(own, 0)
        return pooled(attention, self.signal.kernel, "max").sum(2) / voters


def redundancy(keys: Tensor, live: Tensor, threshold: float, spared: Tensor, first_spared: bool = False) -> Tensor:
    """How much each key resembles the others, softmax over the live ones: [R, H, S].

    Cosines of all pairs; no key counts for itself, and none against the `spared` newest keys that resemble it by more
    than `threshold`. Then the mean over all keys. So the newest of several copies isn't redundant and the oldest is the
    most; of a pair, with one spared, neither is.

    Args:
        keys: [R, H, S, d], sorted by position; live: bool [R, H, S]; spared: int64 [R, H].
        first_spared: a key that resembles none doesn't count against the first key.
    """
    # Newest first, so that the newest of a row's close keys is the first that a search finds.
    live = live.flip(-1)
    unit = keys / keys.norm(dim=-1, keepdim=True).clamp_min(torch.finfo(keys.dtype).tiny)
    unit = unit.flip(2).masked_fill_(~live.unsqueeze(-1), 0)
    # A sum of cosines is a cosine with the sum; only what is not to count needs the pairs.
    total = torch.matmul(unit, unit.sum(2).unsqueeze(-1)).squeeze(-1) - unit.square().sum(-1)
    for start in range(0, keys.shape[2], BLOCK):
        cosine = torch.matmul(unit[:, :, start : start + BLOCK], unit.transpose(2, 3))  # [R, H, block, S]
        cosine.diagonal(start, -2, -1).zero_()
        close = cosine > threshold
        if threshold < 0:
            close &= live.unsqueeze(2)
        if first_spared:
            total[..., -1] -= (cosine[..., -1] * ~close.any(-1)).sum(-1)
        _spare(total, cosine, close, spared)
    mean = (total / live.sum(-1, keepdim=True).clamp_min(1)).flip(-1)
    return softmax(mean.masked_fill(~live.flip(-1), float("-inf")))


def _spare(total: Tensor, cosine: Tensor, close: Tensor, spared: Tensor) -> None:
    """Takes each row's cosines with its first `spared` close keys out of `total`."""
    most = int(spared.max())
    if most > FEW:
        rank = close.cumsum(-1, dtype=torch.int32)
        total -= cosine.masked_fill(~close | (rank > spared[..., None, None]), 0).sum(2)
        return
    for taken in range(most):
        found, first = close.max(-1)
        counts = found & (spared > taken).unsqueeze(-1)
        total.scatter_add_(-1, first, -cosine.gather(-1, first.unsqueeze(-1)).squeeze(-1) * counts)
        close.scatter_(-1, first.unsqueeze(-1), False)
