"""Chance: the control that any signal must beat (2609.03430)."""

import torch
from torch import Tensor

from tiercache.mixing import mix
from tiercache.scorers.base import Scorer, View


class Random(Scorer):
    """A number drawn once for each token: evicting the lowest keeps a uniform random subset at every length.

    The draw is a hash of (sequence seed, position) and, within the scope, of layer and KV head: it depends neither on
    the batch nor on the device, and needs no state.
    """

    shared = True  # the scope is in the draw itself

    def score(self, view: View) -> Tensor:
        pos = view.pos.long()
        layers, _, heads, _ = pos.shape
        state = view.seeds.view(1, -1, 1, 1) ^ mix(pos + 1)
        if self.signal.scope == "head":
            place = torch.arange(1, layers * heads + 1, device=pos.device).view(layers, 1, heads, 1)
            state = state ^ mix(place << 32)
        elif self.signal.scope == "layer":
            state = state ^ mix(torch.arange(1, layers + 1, device=pos.device).view(layers, 1, 1, 1) << 32)
        return mix(state) & 0xFFFFFF  # 24 bits: exact in float32
