"""Decode attention as the formula has it."""

import math

import torch
from torch import Tensor
from torch.testing import assert_close

from tiercache.attention import Partial


def plain(
    query: Tensor, keys: Tensor, values: Tensor, extents: list[int], bias: Tensor | None, scaling: float
) -> tuple[Tensor, Tensor, Tensor]:
    """In float64, a row and a head at a time, over what the row holds."""
    rows, heads, group, dim = query.shape
    out, lse = torch.zeros(rows, heads, group, dim, dtype=torch.float64), torch.full((rows, heads, group), -math.inf)
    weights = torch.zeros(rows, heads, group, keys.shape[2], dtype=torch.float64)
    for row, n in enumerate(extents):
        for head in range(heads):
            logits = query[row, head].double() @ keys[row, head, :n].double().T * scaling
            if bias is not None:
                logits = logits + bias.expand_as(weights)[row, head, :, :n]
            for g in range(group):
                if n and logits[g].max() > -math.inf:
                    weights[row, head, g, :n] = logits[g].softmax(-1)
                    lse[row, head, g] = logits[g].logsumexp(-1)
            out[row, head] = weights[row, head, :, :n] @ values[row, head, :n].double()
    return out, lse, weights


def close(part: Partial, expected: tuple[Tensor, Tensor, Tensor], size: float = 1.0) -> None:
    """Equal to float32's accuracy, for queries of this size."""
    for found, right in zip((part.out, part.lse, part.weights), expected, strict=True):
        assert found is not None
        assert_close(found.double(), right.double(), rtol=2e-5, atol=2e-6 * size)
