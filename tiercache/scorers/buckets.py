"""Numbers for stretches of a sequence of which something is still there."""

import torch
from torch import Tensor


def buckets(number: Tensor) -> Tensor:
    """Numbers of stretches [..., slots], with gaps -> the same without, int64 below the number of slots, in order.

    So no size depends on how long the sequence is, which only the device knows.
    """
    ordered, order = number.sort(dim=-1)
    rank = (ordered.diff(dim=-1, prepend=ordered[..., :1]) != 0).cumsum(-1)
    return torch.empty_like(rank).scatter_(-1, order, rank)
