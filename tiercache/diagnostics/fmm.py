"""Future missed mass (2608.05326): how much of the attention to come falls on what is gone by now."""

from torch import Tensor


def future_missed_mass(mass: Tensor, held: Tensor, sinks: int = 0) -> tuple[Tensor, Tensor]:
    """The share of future attention on tokens that aren't held, [...]: as a ratio of sums, and as a mean of ratios.

    Tokens made after the event are in neither sum, so the caller leaves them out. Where no mass falls on any of them
    the result is NaN, as it is for the caller where too few steps follow (censored, not 0).

    Args:
        mass: [..., horizon, n], full-cache attention of the next steps on the n tokens that exist at the event.
        held: bool [..., n], what the policy can still read.
        sinks: first tokens that are left out.
    """
    mass, held = mass[..., sinks:], held[..., sinks:].unsqueeze(-2)
    total, missed = mass.sum(-1), mass.masked_fill(held, 0).sum(-1)
    return missed.sum(-1) / total.sum(-1), (missed / total).nanmean(-1)
