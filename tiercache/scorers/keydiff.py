"""Keys unlike the others: KeyDiff (2504.15364)."""

import torch
import torch.nn.functional as F
from torch import Tensor

from tiercache.scorers.base import Scorer, View


class KeyDiff(Scorer):
    """-cos(k_i, mean of k_j / |k_j|), j over all tokens of the head that are there, protected ones too.

    Keys are taken as they are stored, after RoPE.
    """

    needs_keys = True

    def score(self, view: View) -> Tensor:
        assert view.keys is not None, "this scorer needs keys"
        # Layer by layer, as a wide copy of all keys at once could be larger than the cache itself.
        return torch.stack([self._layer(*layer) for layer in zip(view.keys, view.pos >= 0, strict=True)])

    def _layer(self, keys: Tensor, used: Tensor) -> Tensor:
        """Keys [R, H, S, d], used [R, H, S] -> [R, H, S]."""
        units = F.normalize(keys.to(self.wide), dim=-1) * used.unsqueeze(-1)
        mean = units.sum(2, keepdim=True) / used.sum(-1)[..., None, None].clamp_min(1)
        return -(units * F.normalize(mean, dim=-1)).sum(-1)
