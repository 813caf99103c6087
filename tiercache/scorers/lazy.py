"""Recurring use: LazyEviction (2506.15969)."""

import torch
from torch import Tensor

from tiercache.catalog.recurring import Lazy
from tiercache.scorers.base import Observed, ObservedPrefill, Scorer, View

NEVER = 1e-6  # stands for an interval of 0: any time since is then infinitely long


class Recurrence(Scorer):
    """S(i) = 2s(-(t - TS)/MRI) + 2s(-1/MRI), s the logistic function.

    TS(i) is the last decode step at which the token's attention was above the threshold, MRI(i) the longest gap between
    two such steps. A token that has never come back has MRI 0: it scores 1 at the step of its use and 0 after it.

    Our decisions: the terms are added. A step is a use if any query head of the group crosses the threshold. A
    generated token's first use is the step that wrote it; every prompt token's is the prompt's last. Prefill rows are
    not counted: the paper follows decode steps.
    """

    needs_attention = True
    needs_positions = True
    signal: Lazy

    def fields(self) -> dict[str, torch.dtype]:
        return {"used": torch.int32, "interval": torch.int32}  # used: TS + 1, so that 0 means never

    def observe_prefill(self, seen: ObservedPrefill) -> None:
        # A chunk without a real query leaves everything as it is; padding's slots stay 0.
        used = seen.fields["used"]
        end = (seen.start + seen.counted.sum()) * seen.counted.any()
        real = torch.arange(used.shape[1], device=used.device) < end
        used.copy_(torch.where(real, end, used))

    def observe(self, seen: Observed) -> None:
        for part in seen.parts:
            assert part.weights is not None, "this scorer needs attention"
            used, interval = part.fields["used"], part.fields["interval"]
            now = (seen.now + 1).to(used).view(-1, 1, 1)
            hit = part.weights.amax(2) > self.signal.threshold
            gap = now - _last(used, part.pos)
            interval.copy_(torch.where(hit, torch.maximum(interval, gap), interval))
            used.copy_(torch.where(hit, now, used))

    def score(self, view: View) -> Tensor:
        since = (view.seen.view(1, -1, 1, 1) - _last(view.fields["used"], view.pos)).to(self.wide)
        interval = view.fields["interval"].to(self.wide)
        ages = since / interval.clamp_min(NEVER)
        if self.signal.formula == "code":
            again = torch.where(interval > 0, torch.sigmoid(1 - interval), 0.0)
            return 2 * torch.sigmoid(-1 - ages) + 2 * again
        return 2 * torch.sigmoid(-ages) + 2 * torch.sigmoid(-1 / interval.clamp_min(NEVER))


def _last(used: Tensor, pos: Tensor) -> Tensor:
    """TS + 1 with the step that wrote a token as its first use; 0 for a free slot."""
    return torch.maximum(used, pos + 1)
