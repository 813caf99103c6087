"""Muon for the matrices, AdamW for the rest: the optimiser that makes the circuits form in minutes.

Muon (Jordan et al., 2024) replaces the momentum of a matrix by its nearest orthogonal matrix, found
with a few Newton-Schulz steps. All directions then move at the same speed, including the rare ones
that a retrieval circuit starts from.
"""

import math
from typing import Any

import torch
from torch import Tensor
from torch.optim import AdamW, Optimizer

from reasoner.net import Block, Net

MUON_RATE = 0.02
ADAM_RATE = 3e-3
MOMENTUM = 0.95
NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)  # a quintic that pushes singular values towards 1


def orthogonalise(matrix: Tensor, steps: int = 5) -> Tensor:
    """Approximately U V^T of `matrix` [..., rows, columns] = U S V^T."""
    a, b, c = NEWTON_SCHULZ
    tall = matrix.size(-2) > matrix.size(-1)
    x = matrix.mT if tall else matrix  # the Gram matrix is the smaller one
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    result: Tensor = x.mT if tall else x
    return result


class Muon(Optimizer):
    """Each group's `splits` lists the row counts of its fused parts, orthogonalised one by one."""

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update every parameter by its orthogonalised Nesterov momentum."""
        for group in self.param_groups:
            momenta = []
            for p in group["params"]:
                momentum = self.state[p].setdefault("momentum", torch.zeros_like(p))
                momentum.lerp_(p.grad, 1 - MOMENTUM)
                momenta.append(p.grad.lerp(momentum, MOMENTUM))
            stacked = torch.stack(momenta)  # [layers, rows, columns]
            parts = torch.split(stacked, group["splits"], dim=1)
            updates = torch.cat([orthogonalise(part) * _aspect(part) for part in parts], dim=1)
            for p, update in zip(group["params"], updates, strict=True):
                p.sub_(group["lr"] * update)


def build_optimizers(net: Net) -> list[Optimizer]:
    """Muon on the matrices of the blocks, AdamW on the embedding and the norms."""
    s = net.shape
    blocks = [block for block in net.blocks if isinstance(block, Block)]
    groups: list[dict[str, Any]] = [
        {"params": [b.qkv for b in blocks], "splits": s.qkv_splits},
        {"params": [b.gate_up for b in blocks], "splits": [s.feed_forward] * 2},
        {"params": [b.out for b in blocks], "splits": [s.hidden]},
        {"params": [b.down for b in blocks], "splits": [s.hidden]},
    ]
    matrices = {id(p) for group in groups for p in group["params"]}
    rest = [p for p in net.parameters() if id(p) not in matrices]
    adam = AdamW(rest, lr=ADAM_RATE, betas=(0.9, 0.95), weight_decay=0.0)
    optimizers: list[Optimizer] = [Muon(groups, {"lr": MUON_RATE}), adam]
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["peak_lr"] = group["lr"]
    return optimizers


def set_rate(optimizers: list[Optimizer], factor: float) -> None:
    """Scale every learning rate to `factor` of its peak."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = factor * group["peak_lr"]


def _aspect(part: Tensor) -> float:
    return math.sqrt(max(1.0, part.size(-2) / part.size(-1)))
