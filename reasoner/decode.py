"""Greedy decoding in a small loop, with eviction simulated by a mask.

A plain stand-in for an engine, used to accept freshly trained weights. It answers what a policy
does to the accuracy, not what it saves: evicted tokens stay in memory and are only masked out, and
true positions are kept. Problems of one batch may differ in length: prompts are padded on the left.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from reasoner.net import Block, Net, rotate


@dataclass
class Context:
    """The cached tokens of a batch, as a policy sees them. All tensors: [batch, tokens]."""

    score: Tensor  # attention received so far, averaged over layers and heads, prefill included
    live: Tensor  # bool: not evicted, not padding
    age: Tensor  # position id; the padding is negative
    prompt_tokens: Tensor  # [batch]
    budget_tokens: Tensor  # [batch] length of the reference chain, the unit of a relative budget
    step: int  # chain tokens so far
    random: torch.Generator

    @property
    def in_chain(self) -> Tensor:
        """bool [batch, tokens]: the token belongs to the chain."""
        return self.age >= self.prompt_tokens[:, None]


class Policy(Protocol):
    """Decides after each decoded token which cached tokens to evict."""

    def evict(self, context: Context) -> Tensor:
        """bool [batch, tokens]: True where a token leaves the cache now."""


@dataclass
class Decoded:
    """New token ids of each problem, and the share of its tokens that were live at the end."""

    ids: list[list[int]]
    kept: list[float] = field(default_factory=list)


@torch.no_grad()
def decode(
    net: Net,
    prompts: Sequence[Sequence[int]],
    chain_tokens: Sequence[int],
    policy: Policy | None = None,
    seed: int = 0,
    limit: int = 512,
    stop: int = 2,
) -> Decoded:
    """Decode greedily until `stop` or `limit` new tokens; chain_tokens sizes relative budgets."""
    s, batch = net.shape, len(prompts)
    width = max(map(len, prompts))
    ids = torch.tensor([[0] * (width - len(p)) + list(p) for p in prompts])
    lengths = torch.tensor([len(p) for p in prompts])
    limit = min(limit, max(chain_tokens) + 24)
    total = width + limit
    age = torch.arange(total)[None] - (width - lengths)[:, None]  # [batch, total]
    live = torch.zeros(batch, total, dtype=torch.bool)
    score = torch.zeros(batch, total)
    shape = (batch, s.kv_heads, total, s.head_dim)
    cache = [(torch.zeros(shape), torch.zeros(shape)) for _ in net.blocks]
    itself = torch.eye(total, dtype=torch.bool)  # lets padding attend to something
    generator = torch.Generator().manual_seed(seed)
    tracked = score if policy is not None else None
    open_rows = torch.ones(batch, dtype=torch.bool)
    new: list[list[int]] = [[] for _ in prompts]
    kept = [1.0] * batch
    start, end = 0, width
    live[:, :width] = age[:, :width] >= 0
    for step in range(limit):
        mask = live[:, None, :end] & (age[:, None, :end] <= age[:, start:end, None])
        mask |= itself[start:end, :end]
        logits = _forward(net, ids, age[:, start:end], cache, start, end, mask, tracked)
        chosen = logits.argmax(-1)
        for row in open_rows.nonzero().flatten().tolist():
            new[row].append(int(chosen[row]))
            if int(chosen[row]) == stop:
                kept[row] = live[row, :end].sum().item() / int(lengths[row] + step)
        open_rows &= chosen != stop
        if not open_rows.any():
            break
        if policy is not None:
            context = Context(
                score[:, :end],
                live[:, :end],
                age[:, :end],
                lengths,
                torch.tensor(chain_tokens),
                step,
                generator,
            )
            live[:, :end] &= ~policy.evict(context)
        start, end = end, end + 1
        live[:, start] = True
        ids = chosen[:, None]
    for row in open_rows.nonzero().flatten().tolist():
        kept[row] = live[row, :end].sum().item() / int(lengths[row] + end - width)
    return Decoded(new, kept)


def _forward(
    net: Net,
    ids: Tensor,
    positions: Tensor,
    cache: list[tuple[Tensor, Tensor]],
    start: int,
    end: int,
    mask: Tensor,
    score: Tensor | None,
) -> Tensor:
    """Logits [batch, vocab] of the last token; fills the cache and adds to `score`, if any.

    ids, positions: [batch, new]; mask: [batch, new, end]. The attention is written out because the
    fused kernel does not return its weights.
    """
    s, (batch, new) = net.shape, ids.shape
    cos, sin = net.rotation(positions)
    x = F.embedding(ids, net.embedding)
    bias = torch.zeros(batch, 1, new, end).masked_fill(~mask[:, None], -torch.inf)
    real = (positions >= 0).float()  # padding rows attend too, but nobody counts it
    for block, (keys, values) in zip(net.blocks, cache, strict=True):
        assert isinstance(block, Block)
        q, k, v = block.project(x)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        keys[:, :, start:end], values[:, :, start:end] = k, v
        # The queries of a group are rows of one product, so that no key is copied for them.
        rows = q.reshape(batch, s.kv_heads, -1, s.head_dim) / s.head_dim**0.5
        logits = (rows @ keys[:, :, :end].mT).view(batch, s.heads, new, end)
        weights = (logits + bias).softmax(-1)
        if score is not None:
            received = (weights.mean(dim=1) * real[:, :, None]).sum(1)
            score[:, :end] += received / s.layers
        mixed = weights.view(batch, s.kv_heads, -1, end) @ values[:, :, :end]
        mixed = mixed.view(batch, s.heads, new, s.head_dim)
        x = block.finish(x, mixed)
    return F.linear(net.final_norm(x[:, -1]), net.embedding)
