"""Choosing the next token of every running row at once."""

import torch
from torch import Tensor

from tiercache.scorers import mix


def sample(logits: Tensor, temperature: Tensor, top_p: Tensor, seeds: Tensor, counts: Tensor) -> Tensor:
    """logits [rows, vocab] -> token ids [rows].

    A row with temperature 0 takes the argmax. Otherwise a token is drawn by inverting the cumulative distribution,
    most probable first, over the smallest set that holds `top_p` of the mass. The one uniform number that this needs is
    a hash of (seed, tokens drawn so far), so a row's text depends neither on its neighbours nor on the device.

    Args:
        temperature, top_p: float [rows]. seeds, counts: int64 [rows].
    """
    greedy = logits.argmax(-1)
    if not bool((temperature > 0).any()):
        return greedy
    scaled = logits.double() / temperature.clamp_min(1e-6).unsqueeze(1)
    probabilities, order = torch.softmax(scaled, dim=-1).sort(dim=-1, descending=True, stable=True)
    cumulative = probabilities.cumsum(-1)
    inside = (cumulative - probabilities) < top_p.unsqueeze(1)  # the token that crosses the threshold still counts
    mass = (probabilities * inside).sum(-1, keepdim=True)
    point = uniform(seeds, counts).unsqueeze(1) * mass
    rank = torch.searchsorted(cumulative, point, right=True)
    last = inside.sum(-1, keepdim=True) - 1
    drawn = order.gather(1, torch.minimum(rank, last)).squeeze(1)
    return torch.where(temperature > 0, drawn, greedy)


def uniform(seeds: Tensor, counts: Tensor) -> Tensor:
    """One float64 in [0, 1) for each (seed, count)."""
    bits = mix(seeds ^ mix(counts + 1)) & ((1 << 53) - 1)
    return bits.double() / (1 << 53)
