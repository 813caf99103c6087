"""Attention recall: how much of the full cache's attention falls on tokens that the policy still has."""

from torch import Tensor


def attention_recall(weights: Tensor, held: Tensor) -> Tensor:
    """weights [..., n], held bool [..., n] -> [...]; exactly 1 where nothing is gone."""
    return 1 - weights.masked_fill(held, 0).sum(-1)
