"""The eviction policies that fresh weights are accepted against.

They bracket what the model is for. Half of the chain kept by accumulated attention must fail,
since a register is read once and without notice; so must half of it kept at random; but taking away
the few tokens that matter least must cost next to nothing. The prompt is always protected.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from reasoner.decode import Context


@dataclass(frozen=True)
class HeavyHitters:
    """H2O (arXiv 2306.14048): half of the budget for the highest scored, half for the newest.

    With `heavy` at zero it is a sliding window: StreamingLLM (arXiv 2309.17453), where the whole
    prompt serves as the sink.
    """

    share: float = 0.5  # of the length of the reference chain
    heavy: float = 0.5  # of the budget

    def evict(self, context: Context) -> Tensor:
        """Keep live chain tokens within the budget."""
        budget = (self.share * context.budget_tokens).long()
        chain = context.live & context.in_chain
        heavy = (self.heavy * budget).long()
        oldest_recent = context.prompt_tokens + context.step - (budget - heavy)
        recent = chain & (context.age >= oldest_recent[:, None])
        older = chain & ~recent
        room = (budget - recent.sum(1)).clamp(min=0)
        return older & (_rank(-context.score, older) >= room[:, None])


@dataclass(frozen=True)
class RandomHalf:
    """Each chain token leaves with probability `share` once it is older than the window."""

    share: float = 0.5
    window: int = 32

    def evict(self, context: Context) -> Tensor:
        """Decide on the one token that leaves the window in this step."""
        leaving = context.in_chain & (_chain_age(context) == self.window)
        draw = torch.rand(len(leaving), 1, generator=context.random)
        return leaving & (draw < self.share)


@dataclass(frozen=True)
class LowestScored:
    """Every `period` steps evict the lowest scored, so that `share` of all are gone in total.

    Eligible are the chain tokens but the first `sinks` and the last `window`.
    """

    share: float = 0.03
    period: int = 16
    sinks: int = 4
    window: int = 32

    def evict(self, context: Context) -> Tensor:
        """Top the evictions up to the share."""
        if context.step == 0 or context.step % self.period:
            return torch.zeros_like(context.live)
        place = context.age - context.prompt_tokens[:, None]  # in the chain
        eligible = (place >= self.sinks) & (_chain_age(context) >= self.window)
        target = (self.share * eligible.sum(1)).long()
        due = target - (eligible & ~context.live).sum(1)
        candidates = eligible & context.live
        return candidates & (_rank(context.score, candidates) < due[:, None])


def _chain_age(context: Context) -> Tensor:
    """How many tokens ago each token was decoded: [batch, tokens]."""
    return context.prompt_tokens[:, None] + context.step - context.age


def _rank(key: Tensor, among: Tensor) -> Tensor:
    """Rank of each token by ascending key among the candidates; others rank last."""
    return key.masked_fill(~among, torch.inf).argsort(dim=1).argsort(dim=1)
