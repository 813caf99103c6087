"""The worst case of use: DefensiveKV (2510.13334) with CriticalKV's value sizes and guarantee (2502.03805)."""

import torch
import torch.nn.functional as F
from torch import Tensor

from tiercache.catalog.recurring import Defensive as Declared
from tiercache.scorers.base import Facts, Scorer, View

TINY = 1e-30  # keeps 0 / 0 at 0


class Defensive(Scorer):
    """s(i) = max(m(i), mean of m) * n(i), m(i) = max over the group and the newest queries of the pooled attention.

    Attention is of each query over all live tokens it may see; then columns before the window are averaged along the
    sequence, which keeps each query's sum. n(i) = mean over the group of ||v(i) W_O||_1, W_O the query head's share of
    the output projection. The tokens that lead the mean attention up to the guarantee come before all of these, the
    window before them.

    Our decisions: guaranteed tokens are ranked by mean attention, so that where they exceed the budget the first stay,
    as the authors' cap has it; the window's own attention counts towards the guarantee (`released`: the window
    before it does); value sizes aren't normalised (`released`: over the KV heads).
    """

    needs_keys = True
    ordered = True
    signal: Declared

    def __init__(self, signal: Declared, facts: Facts) -> None:
        super().__init__(signal, facts)
        self.query_window = signal.queries

    def score(self, view: View) -> Tensor:
        # Layer by layer: all at once would hold layers x heads x queries x tokens.
        return torch.stack([self._layer(view, layer) for layer in range(view.pos.shape[0])])

    def _layer(self, view: View, layer: int) -> Tensor:
        """[R, H, S]"""
        assert view.values is not None, "this scorer needs values"
        pos, start = view.pos[layer], (view.seen - self.signal.queries).view(-1, 1, 1)
        before = (pos >= 0) & (pos < start)  # columns older than the window
        weights = self._attention(view, layer)
        asked = _asked(view).sum(-1).clamp_min(1).view(-1, 1, 1)
        mean = weights.mean(2).sum(2) / asked  # [R, H, S]
        kept = weights * before.unsqueeze(2).unsqueeze(2)
        worst = self._pooled(kept, before).amax((2, 3))
        floor = worst.sum(-1, keepdim=True) / before.sum(-1, keepdim=True).clamp_min(1)
        score = torch.maximum(worst, floor) * self._value_size(view.values[layer], pos >= 0, layer)
        measured = before & (pos >= start - self.signal.queries) if self.signal.released else ~before
        bias = (mean * measured).sum(-1).mean(1)
        return self._ordered(score, mean * before, bias, before)

    def _attention(self, view: View, layer: int) -> Tensor:
        """Of the newest queries over all live tokens: [R, H, G, w, S], 0 for a query that isn't there."""
        assert view.queries is not None, "this scorer needs queries"
        assert view.keys is not None, "this scorer needs keys"
        assert view.query_pos is not None, "queries have positions"
        keys, queries = view.keys[layer].to(self.wide), view.queries[layer].to(self.wide)
        rows, heads = keys.shape[:2]
        queries = queries.view(rows, heads, -1, *queries.shape[2:])  # [R, H, G, w, d]
        logits = queries @ keys.unsqueeze(2).transpose(3, 4) * view.scaling
        pos = view.pos[layer].view(rows, heads, 1, 1, -1)
        visible = (pos >= 0) & (pos <= view.query_pos.view(rows, 1, 1, -1, 1))
        weights = torch.softmax(logits.masked_fill(~visible, float("-inf")), dim=-1)
        return weights.masked_fill(~visible, 0)

    def _pooled(self, weights: Tensor, before: Tensor) -> Tensor:
        """The average along the slots, each query's sum as it was. Beyond the ends there are zeros."""
        kernel, shape = self.signal.kernel, weights.shape
        pooled = F.avg_pool1d(weights.flatten(0, 3).unsqueeze(1), kernel, stride=1, padding=kernel // 2).view(shape)
        pooled = pooled * before.unsqueeze(2).unsqueeze(2)
        return pooled / pooled.sum(-1, keepdim=True).clamp_min(TINY) * weights.sum(-1, keepdim=True)

    def _value_size(self, values: Tensor, live: Tensor, layer: int) -> Tensor:
        """n: [R, H, S], 0 for a free slot. One query head at a time, since each makes tokens x hidden numbers."""
        if self.facts.output_weight is None:
            return values.new_ones(values.shape[:3], dtype=self.wide)
        heads, dim = values.shape[1], values.shape[3]
        weight = self.facts.output_weight(layer).detach().to(values.device, self.wide)
        blocks = weight.T.reshape(heads, -1, dim, weight.shape[0])  # [H, G, d, hidden]
        values = values.to(self.wide)
        sizes = [
            torch.stack([(values[:, head] @ block).abs().sum(-1) for block in blocks[head]]).mean(0)
            for head in range(heads)
        ]
        size = torch.stack(sizes, dim=1) * live
        return size / size.sum(1, keepdim=True).clamp_min(TINY) if self.signal.released else size

    def _ordered(self, score: Tensor, mean: Tensor, bias: Tensor, before: Tensor) -> Tensor:
        """The window, then guaranteed tokens, then the others by score; float64, so that none merge."""
        shares = mean / mean.sum(-1, keepdim=True).clamp_min(TINY)
        best = shares.sort(dim=-1, descending=True, stable=True)
        needed = (self.signal.guarantee - bias).view(-1, 1, 1)
        reached = best.values.cumsum(-1) >= needed
        # The token that reaches the share is not guaranteed; where none does, none is.
        leads = ~reached & reached.any(-1, keepdim=True)
        guaranteed = torch.zeros_like(leads).scatter_(-1, best.indices, leads) & before
        score, shares = score.double(), shares.double()
        top = score.masked_fill(~before, 0).amax((1, 2), keepdim=True)
        score = torch.where(guaranteed, top + shares, score)
        return torch.where(before, score, top + 2)


def _asked(view: View) -> Tensor:
    """Which of the window's queries are there: bool [R, w]."""
    assert view.query_pos is not None, "queries have positions"
    return view.query_pos >= 0
