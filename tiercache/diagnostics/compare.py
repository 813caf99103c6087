"""What a policy changes in the model's output: attention outputs, next-token distributions, chosen tokens."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from tiercache.requests import Sampling
from tiercache.sampling import sample

ROWS = 64  # of logits at a time: a vocabulary is wide


def output_error(
    logits: Tensor, values: Tensor, held: Tensor, stored: Sequence[tuple[Tensor, Tensor, Tensor]] = ()
) -> Tensor:
    """Relative error of attention outputs when only what is held is read: |o' - o| / |o|, [..., rows].

    Args:
        logits: [..., rows, n] of the full cache, causal; values: [..., n, d].
        held: bool [..., rows, n].
        stored: for each format, the tokens that are quantised so at that step (bool [..., rows, n]), the logits of
            their keys and their values, as they are read from there.
    """
    exact = torch.softmax(logits, -1) @ values.to(logits.dtype)
    for packed, rough_logits, _ in stored:
        logits = torch.where(packed, rough_logits, logits)
    weights = torch.softmax(logits.masked_fill(~held, float("-inf")), -1)
    out = torch.zeros_like(exact)
    precise = weights
    for packed, _, rough in stored:
        out = out + weights.masked_fill(~packed, 0) @ rough.to(logits.dtype)
        precise = precise.masked_fill(packed, 0)
    out = out + precise @ values.to(logits.dtype)
    scale = torch.linalg.vector_norm(exact, dim=-1).clamp_min(torch.finfo(exact.dtype).tiny)
    error: Tensor = torch.linalg.vector_norm(out - exact, dim=-1) / scale
    return error


def divergence(full: Tensor, policy: Tensor) -> Tensor:
    """KL(full || policy) in nats of next-token distributions, from logits [rows, vocab] -> [rows]."""
    wide = torch.float64 if full.dtype == torch.float64 else torch.float32
    p, q = (torch.log_softmax(side.to(wide), -1) for side in (full, policy))
    return (p.exp() * (p - q)).sum(-1).clamp_min(0)  # rounding can't make it negative


def compare_outputs(
    full: Tensor, policy: Tensor, head: Callable[[Tensor], Tensor], tokens: Sequence[int], sampling: Sampling, seed: int
) -> tuple[Tensor, int | None]:
    """(KL for each generated token, first divergent token) from last hidden states.

    The first token that the full cache would have chosen otherwise, given the same prefix and the same draw, is the
    first in which a full run would differ.

    Args:
        full, policy: last hidden states [len(tokens), hidden]: row t is what token t is chosen from.
        head: hidden states -> logits.
    """
    found: list[Tensor] = []
    first: int | None = None
    for start in range(0, len(tokens), ROWS):
        rows = slice(start, start + ROWS)
        exact = head(full[rows])
        found.append(divergence(exact, head(policy[rows])).cpu())
        chosen = sample(exact, [(sampling, seed, start + i) for i in range(len(exact))]).tolist()
        differing = (start + i for i, (a, b) in enumerate(zip(chosen, tokens[rows], strict=True)) if a != b)
        first = next(differing, None) if first is None else first
    return torch.cat(found), first
