"""A chunk seen from the next one: LagKV (2504.04704)."""

import torch
from torch import Tensor

from tiercache.catalog import geometric
from tiercache.scorers.base import Scorer, View

EPSILON = 1e-6  # a channel that is constant in the reference would divide by zero


class LagKV(Scorer):
    """softmax_i std_c(k'_ic) + value_weight * softmax_i std_c(v'_ic), with x'_ic = (x_ic - lo_c) / (hi_c - lo_c).

    lo and hi are each channel's least and greatest value in the reference, i runs over the candidates, std is the
    sample's. The reference is what follows the last candidate, as many tokens as there are candidates or what there
    is: with `chunk` the chunk after the one that is ranked. With nothing to refer to all scores are 0.
    """

    needs_keys = True
    ordered = True

    def score(self, view: View) -> Tensor:
        assert isinstance(self.signal, geometric.LagKV)
        assert view.keys is not None, "this scorer needs keys"
        assert view.values is not None, "values come with the keys"
        reference = _following(view.candidate, view.pos >= 0)
        layers = []
        for layer, keys in enumerate(view.keys):
            candidate, ref = view.candidate[layer], reference[layer]
            parts = [self._spread(side, candidate, ref) for side in (keys, view.values[layer])]
            layers.append(parts[0] + self.signal.value_weight * parts[1])
        return torch.stack(layers)

    def _spread(self, states: Tensor, candidate: Tensor, reference: Tensor) -> Tensor:
        """Keys or values [R, H, S, d], masks [R, H, S] -> [R, H, S]."""
        states = states.to(self.wide)
        beside = ~reference.unsqueeze(-1)
        low = states.masked_fill(beside, float("inf")).amin(2, keepdim=True)
        high = states.masked_fill(beside, float("-inf")).amax(2, keepdim=True)
        spread = ((states - low) / (high - low).clamp_min(EPSILON)).std(-1)
        share = spread.masked_fill(~candidate, float("-inf")).softmax(-1)
        return share.masked_fill(~(candidate & reference.any(-1, keepdim=True)), 0)


def _following(candidate: Tensor, used: Tensor) -> Tensor:
    """Slots after the last candidate, as many as there are candidates: bool [L, R, H, S]; slots are in order."""
    slots = torch.arange(candidate.shape[-1], device=candidate.device)
    last = torch.where(candidate, slots, -1).amax(-1, keepdim=True)
    return used & (slots > last) & (slots <= last + candidate.sum(-1, keepdim=True))
