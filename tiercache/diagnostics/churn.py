"""Selection churn: how much of what is held changes from one look to the next."""

import torch
from torch import Tensor


def selection_churn(before: Tensor, after: Tensor) -> Tensor:
    """Jaccard distance of two sets, bool [..., n] each -> [...]; two empty sets are equal.

    The caller leaves out sinks and each look's own local band, which would only slide.
    """
    both, either = (before & after).sum(-1), (before | after).sum(-1)
    return torch.where(either > 0, 1 - both / either.clamp_min(1), 0.0)
