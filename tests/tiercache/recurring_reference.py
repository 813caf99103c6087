"""What the tests of RaaS, LazyEviction and DefensiveKV share."""

import math
from itertools import pairwise

import numpy as np
import torch
from hypothesis import settings

from tiercache.catalog.recurring import Defensive as DefensiveSignal
from tiercache.catalog.recurring import Raas
from tiercache.scorers import Facts, View
from tiercache.store import Geometry

EXAMPLES = settings(max_examples=120, deadline=None)


def facts(layers: int, heads: int, group: int, dim: int, dtype: torch.dtype = torch.float64, **more: object) -> Facts:
    return Facts(Geometry(layers, heads * group, heads, dim, dtype), **more)


def view(pos: torch.Tensor, fields: dict[str, torch.Tensor], seen: list[int], **more: object) -> View:
    rows = torch.tensor(seen)
    return View(pos, fields, pos >= 0, torch.zeros_like(rows), rows, torch.zeros_like(rows), **more)


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x > -700 else 0.0


# RaaS ----------------------------------------------------------------------------------------------------------------


class Pages:
    """RaaS for one row and layer in loops: what each KV head's pages score, and when each was last used."""

    def __init__(self, signal: Raas) -> None:
        self.signal = signal
        self.used: dict[tuple[int, int], int] = {}  # (KV head, position) -> step
        self.current: dict[tuple[int, int], float] = {}

    def step(self, keys: list[dict[int, np.ndarray]], queries: list[np.ndarray], now: int, scaling: float) -> None:
        """keys: of each KV head by position; queries: of each KV head [group, d]."""
        shares = [self.shares(keys[h], queries[h], scaling) for h in range(len(keys))]
        if self.signal.scope != "head":
            mean = {page: sum(s[page] for s in shares) / len(shares) for page in shares[0]}
            shares = [mean] * len(shares)
        for h, share in enumerate(shares):
            for i in keys[h]:
                score = share[i // self.signal.page]
                self.current[h, i] = score
                if self.is_used(score, share):
                    self.used[h, i] = now

    def shares(self, keys: dict[int, np.ndarray], queries: np.ndarray, scaling: float) -> dict[int, float]:
        bounds = {}
        for page in {i // self.signal.page for i in keys}:
            inside = [keys[i] for i in keys if i // self.signal.page == page]
            best = -math.inf
            for q in queries:
                bound = sum(max(q[c] * k[c] for k in inside) for c in range(len(q)))
                best = max(best, bound)
            bounds[page] = math.exp(best * scaling)
        return {page: bound / sum(bounds.values()) for page, bound in bounds.items()}

    def is_used(self, score: float, share: dict[int, float]) -> bool:
        if self.signal.top is None:
            return score > self.signal.threshold
        better = sum(1 for other in share.values() if other > score + 1e-14)
        return better < max(1, math.ceil(self.signal.top * len(share) - 1e-9))

    def score(self, h: int, i: int) -> float:
        last_of_page = (i // self.signal.page + 1) * self.signal.page - 1
        stamp = max(self.used.get((h, i), -1), last_of_page)
        return stamp + 1 + self.current.get((h, i), 0.0) / 2


# LazyEviction --------------------------------------------------------------------------------------------------------


def lazy_score(hits: list[int], born: int, now: int, formula: str) -> float:
    """hits: the steps of use after the first, `born`; now: the newest token's position."""
    steps = [born, *hits]
    longest = max((b - a for a, b in pairwise(steps)), default=0)
    since = now - steps[-1]
    if longest == 0:
        recent = -math.inf if since else 0.0
        if formula == "code":
            return 2 * sigmoid(recent - 1)
        return 2 * sigmoid(recent)
    if formula == "code":
        return 2 / (1 + math.exp(1 + since / longest)) + 2 / (1 + math.exp(longest - 1))
    return 2 * sigmoid(-since / longest) + 2 * sigmoid(-1 / longest)


# DefensiveKV ---------------------------------------------------------------------------------------------------------


def defensive_layer(
    signal: DefensiveSignal,
    keys: list[np.ndarray],
    values: list[np.ndarray],
    queries: np.ndarray,
    query_pos: list[int],
    pos: list[list[int]],
    weight: np.ndarray | None,
    seen: int,
    scaling: float,
) -> list[list[float]]:
    """One row and layer in loops: scores of each KV head's tokens, which are sorted by position.

    keys, values: of each KV head [tokens, d]; queries [query heads, n, d] at query_pos; weight [hidden, heads * d].
    """
    heads, group = len(keys), len(queries) // len(keys)
    start = seen - signal.queries
    old = [sum(1 for i in each if i < start) for each in pos]  # tokens before the window come first
    worst, mean, inside, earlier = [], [], [], []
    for h in range(heads):
        n = len(pos[h])
        best, total = np.zeros(n), np.zeros(n)
        for g in range(group):
            for q, at in zip(queries[h * group + g], query_pos, strict=True):
                logits = [float(q @ keys[h][j]) * scaling if pos[h][j] <= at else -math.inf for j in range(n)]
                top = max(logits)
                row = np.array([math.exp(x - top) for x in logits])
                row /= row.sum()
                total += row
                half = signal.kernel // 2
                pooled = np.zeros(n)
                for j in range(old[h]):
                    near = [row[x] for x in range(j - half, j + half + 1) if 0 <= x < old[h]]
                    pooled[j] = sum(near) / signal.kernel
                if pooled.sum() > 0:
                    pooled *= row[: old[h]].sum() / pooled.sum()
                best = np.maximum(best, pooled)
        average = total / (group * len(query_pos))
        worst.append(best)
        mean.append(average[: old[h]])
        inside.append(average[old[h] :].sum())
        earlier.append(sum(average[j] for j in range(old[h]) if pos[h][j] >= start - signal.queries))
    longest = max(len(each) for each in pos)
    size = np.zeros((heads, longest))
    for h in range(heads):
        for j in range(len(pos[h])):
            norms = []
            for g in range(group):
                if weight is None:
                    norms.append(1.0)
                else:
                    d = values[h].shape[1]
                    block = weight[:, (h * group + g) * d : (h * group + g + 1) * d]
                    norms.append(np.abs(block @ values[h][j]).sum())
            size[h, j] = sum(norms) / group
    if signal.released and weight is not None:
        size = size / size.sum(0)
    scores = []
    for h in range(heads):
        floor = worst[h][: old[h]].sum() / max(1, old[h])
        scores.append([max(worst[h][j], floor) * size[h, j] for j in range(old[h])])
    top = max([0.0, *[s for each in scores for s in each]])
    bias = sum(earlier if signal.released else inside) / heads
    result = []
    for h in range(heads):
        shares = mean[h] / mean[h].sum() if old[h] else mean[h]
        ranked = sorted(range(old[h]), key=lambda j: -shares[j])
        running, chosen, reached = 0.0, [], False
        for j in ranked:
            running += shares[j]
            if running >= signal.guarantee - bias:
                reached = True
                break
            chosen.append(j)
        final = [top + shares[j] if reached and j in chosen else scores[h][j] for j in range(old[h])]
        result.append(final + [top + 2] * (len(pos[h]) - old[h]))
    return result
