"""Accumulated attention: H2O (2306.14048), and with scope `token` the four-tier hierarchy (2605.09490)."""

import torch
from torch import Tensor

from tiercache.scorers.base import ObservedPrefill, Scorer, View


class AttentionMass(Scorer):
    """A(i) = sum over queries t >= i of a(t, i), prefill rows included.

    Summed over the query heads that share a KV head. The sum is not divided by age, as in both papers, so old tokens
    have had more time to collect.
    """

    needs_attention = True
    accumulates = "mass"

    def fields(self) -> dict[str, torch.dtype]:
        return {"mass": self.wide}

    def observe_prefill(self, seen: ObservedPrefill) -> None:
        seen.fields["mass"].add_(torch.einsum("hgcn,c->hn", seen.weights, seen.counted.to(seen.weights)))

    def score(self, view: View) -> Tensor:
        return view.fields["mass"]
