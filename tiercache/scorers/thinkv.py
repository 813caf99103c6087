"""Thoughts by the sparsity of attention, and their representatives by k-means: ThinKV (2510.01290)."""

import torch
from torch import Tensor

from tiercache.catalog.thoughts import ThinKV as Signal
from tiercache.scorers.base import Facts, Observed, Scorer, View
from tiercache.thoughts import EXECUTION, REASONING, TRANSITION


class ThinKV(Scorer):
    """Kind of a thought: how sparse the newest query's attention is when the thought ends.

    Sparsity is the share of keys below `faint` of the row's maximum; the row is the softmax of the largest logit of
    each group, averaged over KV heads and over a few layers. Below `execution_below` a thought executes, above
    `transition_above` it is a transition, between them it reasons.

    Which tokens of a shrinking thought stay: its keys (after RoPE) are clustered into as many clusters as tokens may
    stay, separately for each layer and KV head, and the token nearest to each centre stays. Clusters begin at evenly
    spaced tokens, so the result is the same at each run.
    """

    observes = True
    needs_keys = True
    needs_positions = True

    def __init__(self, signal: Signal, facts: Facts) -> None:
        super().__init__(signal, facts)
        self.own = signal
        last, count = facts.geometry.layers - 1, signal.thought_layers
        spread = range(count) if count > 1 else [0.5]
        self.layers = sorted({round(last * i / max(1, count - 1)) for i in spread})

    def state(self) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
        return {"sparsity": ((len(self.layers),), self.wide)}

    def observe(self, seen: Observed) -> None:
        if seen.layer not in self.layers:
            return
        device = seen.query.device
        keys = torch.cat([part.keys.to(device) for part in seen.parts], dim=2)
        held = torch.cat([part.pos.to(device) for part in seen.parts], dim=2) >= 0
        logits = torch.matmul(seen.query, keys.transpose(2, 3)).to(self.wide).amax(2) * seen.scaling
        logits = logits.masked_fill(~held, float("-inf"))
        row = torch.softmax(logits, dim=-1)
        faint = (row < self.own.faint * row.amax(-1, keepdim=True)) & held
        share = faint.sum(-1).to(self.wide) / held.sum(-1)
        seen.state["sparsity"][:, self.layers.index(seen.layer)] = share.mean(1)

    def thought(self, state: dict[str, Tensor]) -> int:  # type: ignore[override]
        sparsity = float(state["sparsity"].mean())
        if sparsity < self.own.execution_below:
            return EXECUTION
        return TRANSITION if sparsity > self.own.transition_above else REASONING

    def score(self, view: View) -> Tensor:
        """1 for representatives, 0 for others; candidates are the tokens of the shrinking thought."""
        assert view.keys is not None, "this scorer needs keys"
        layers, rows, heads, _ = view.pos.shape
        score = torch.zeros(view.pos.shape, dtype=self.wide, device=view.pos.device)
        for row in range(rows):
            count = int(view.candidate[0, row, 0].sum())
            place = torch.where(view.candidate[:, row], view.pos[:, row], 2**31 - 1).argsort(-1)[..., :count]
            keys = view.keys[:, row].to(self.wide)
            index = place.unsqueeze(-1).expand(-1, -1, -1, keys.shape[-1])
            keep = view.keep[row] if view.keep else 0
            chosen = representatives(keys.gather(2, index).flatten(0, 1), keep).view(layers, heads, count)
            score[:, row].scatter_(-1, place, chosen.to(self.wide))
        return score


def representatives(points: Tensor, clusters: int, rounds: int = 10) -> Tensor:
    """The point nearest to each of `clusters` centres: points [B, n, d] -> bool [B, n].

    Lloyd's algorithm from evenly spaced points; an empty cluster keeps its centre and marks none.
    """
    batch, n, _ = points.shape
    if clusters <= 0 or n == 0:
        return torch.zeros(batch, n, dtype=torch.bool, device=points.device)
    first = torch.arange(min(clusters, n), device=points.device) * n // min(clusters, n)
    centres = points[:, first]
    for _ in range(rounds):
        member = torch.cdist(points, centres).argmin(-1)  # [B, n]
        one = torch.nn.functional.one_hot(member, centres.shape[1]).to(points.dtype)
        size = one.sum(1).unsqueeze(-1)
        mean = one.transpose(1, 2) @ points / size.clamp_min(1)
        centres = torch.where(size > 0, mean, centres)
    distance = torch.cdist(points, centres)
    member = distance.argmin(-1)
    own = torch.nn.functional.one_hot(member, centres.shape[1]).bool()
    distance = distance.masked_fill(~own, float("inf"))
    # Two members are equally far from their mean, up to rounding: the newer one stands for both.
    close = own & (distance <= distance.amin(1, keepdim=True) * (1 + 1e-6))
    order = torch.arange(1, n + 1, device=points.device).view(1, n, 1)
    nearest = (close * order).argmax(1)  # [B, clusters]
    filled = own.any(1)
    marked = torch.zeros(batch, n, dtype=torch.long, device=points.device)
    return marked.scatter_add_(1, nearest, filled.long()) > 0
