"""TOVA (2401.06104): the newest query decides."""

import torch
from torch import Tensor

from tiercache.scorers.base import ObservedPrefill, Scorer, View


class LastAttention(Scorer):
    """s(i) = a(t, i) of the newest query t, averaged over the query heads that share a KV head.

    With scope `layer`, as in the paper, the mean is over all heads of the layer. Nothing stays from step to step. The
    field is the sum over the heads that share a KV head.
    """

    needs_attention = True
    accumulates = "last"
    retains = 0.0

    def fields(self) -> dict[str, torch.dtype]:
        return {"last": self.wide}

    def observe_prefill(self, seen: ObservedPrefill) -> None:
        newest = seen.counted.sum().sub(1).clamp_min(0).view(1)  # a tensor: nobody waits for the device
        seen.fields["last"].copy_(seen.weights.index_select(2, newest).squeeze(2).sum(1))

    def score(self, view: View) -> Tensor:
        g = self.facts.geometry
        return view.fields["last"] / (g.query_heads // g.kv_heads)
