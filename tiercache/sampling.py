"""Choosing the next token of every running row at once."""

from collections.abc import Sequence

import torch
from torch import Tensor

from tiercache.mixing import mix
from tiercache.requests import Sampling


def sample(logits: Tensor, rows: Sequence[tuple[Sampling, int, int]]) -> Tensor:
    """logits [rows, vocab] and, for each row, its sampling, its seed and the tokens drawn so far -> token ids [rows].

    A row with temperature 0 takes the argmax. Otherwise a token is drawn by inverting the cumulative distribution,
    most probable first, over the smallest set that holds `top_p` of the mass. The one uniform number that this needs is
    a hash of (seed, tokens drawn so far), so a row's text depends neither on its neighbours nor on the device.
    """
    greedy = logits.argmax(-1)
    if not any(sampling.temperature > 0 for sampling, _, _ in rows):
        return greedy
    device = logits.device
    temperature = torch.tensor([s.temperature for s, _, _ in rows], dtype=torch.float64, device=device)
    top_p = torch.tensor([s.top_p for s, _, _ in rows], dtype=torch.float64, device=device)
    seeds, counts = torch.tensor([[seed, count] for _, seed, count in rows], device=device).unbind(1)
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
