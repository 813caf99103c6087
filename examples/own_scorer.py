"""Attention that fades: what a token has received counts half after every `half_life` queries."""

import torch

from tiercache.scorers import Facts, Observed, ObservedPrefill, Scorer, View


class FadingAttention(Scorer):
    needs_attention = True

    def __init__(self, signal, facts: Facts, half_life: float = 32) -> None:
        super().__init__(signal, facts)
        self.keep = 0.5 ** (1 / half_life)

    def fields(self) -> dict[str, torch.dtype]:
        return {"mass": self.wide}  # one number beside each token

    def observe_prefill(self, seen: ObservedPrefill) -> None:
        later = seen.counted.flip(0).cumsum(0).flip(0) - 1  # queries of this chunk after each of its queries
        fade = self.keep ** later.to(seen.weights) * seen.counted
        mass = seen.fields["mass"].mul_(self.keep ** int(seen.counted.sum()))
        mass.add_(torch.einsum("hgcn,c->hn", seen.weights, fade))

    def observe(self, seen: Observed) -> None:
        for part in seen.parts:
            part.fields["mass"].mul_(self.keep).add_(part.weights.sum(2))

    def score(self, view: View) -> torch.Tensor:
        return view.fields["mass"]
