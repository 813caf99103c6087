"""The definitions in loops: SnapKV, TOVA, R-KV and G-KV."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor

from tiercache.policy import parse_policy
from tiercache.scorers import Facts, Scorer, View, make_scorer
from tiercache.store import Geometry

WINDOWED = ("snapkv", "rkv", "gkv")


# The references: one (layer, row, KV head) at a time -----------------------------------------------------------------


@dataclass
class Head:
    """What a KV head holds: keys [n, d] of the live tokens at `pos`, sorted; the newest queries {position: [G, d]}."""

    keys: np.ndarray
    pos: list[int]
    queries: dict[int, np.ndarray]
    seen: int
    scaling: float

    def own(self, size: int) -> list[bool]:
        return [p > self.seen - 1 - size for p in self.pos]

    def logits(self, group: Callable[[np.ndarray], np.ndarray] | None = None) -> list[np.ndarray]:
        """For each query its logits [G or 1, n], -inf for what comes after it."""
        rows = []
        for at, heads in self.queries.items():
            row = heads @ self.keys.T * self.scaling
            row[:, [p > at for p in self.pos]] = -math.inf
            rows.append(row if group is None else group(row)[None])
        return rows


def soft(row: np.ndarray) -> np.ndarray:
    """Softmax of a vector; zeros if there is nothing to see."""
    if not len(row) or row.max() == -math.inf:
        return np.zeros_like(row)
    e = np.exp(row - row.max())
    return e / e.sum()


def pool(values: list[float], kernel: int, kind: str) -> list[float]:
    half, n = kernel // 2, len(values)
    near = [[values[j] for j in range(i - half, i + half + 1) if 0 <= j < n] for i in range(n)]
    return [max(some) if kind == "max" else sum(some) / kernel for some in near]


def before_window(values: np.ndarray, own: list[bool]) -> list[float]:
    """The window stands last, so what is left is a prefix."""
    return [float(v) for v, mine in zip(values, own, strict=True) if not mine]


def snapkv(head: Head, signal) -> list[float]:  # type: ignore[no-untyped-def]
    own = head.own(signal.queries)
    votes = np.zeros(len(head.pos))
    for row in head.logits():
        votes += sum(soft(one) for one in row) / len(row)
    past = pool(before_window(votes, own), signal.kernel, signal.pool)
    return past + [signal.queries + 1.0] * sum(own)


def similarity(head: Head, threshold: float, spared: int, first_spared: bool = False) -> np.ndarray:
    n = len(head.pos)
    length = [math.sqrt(sum(x * x for x in key)) or 1.0 for key in head.keys.tolist()]
    dots = (head.keys @ head.keys.T).tolist()
    cosine = [[0.0 if i == j else dots[i][j] / length[i] / length[j] for j in range(n)] for i in range(n)]
    for i in range(n):
        close = [j for j in range(n) if cosine[i][j] > threshold]
        for j in close[len(close) - min(spared, len(close)) :]:
            cosine[i][j] = 0.0
        if first_spared and not close:
            cosine[i][0] = 0.0
    return soft(np.array(cosine).mean(0))


def rkv(head: Head, signal) -> list[float]:  # type: ignore[no-untyped-def]
    own = head.own(signal.queries)
    past = len(own) - sum(own)
    rows = [row[0] for row in head.logits(lambda row: row.max(0))]
    if signal.recipe == "repository":
        mean = sum(soft(row[:past]) for row in rows) / len(rows)
        importance = pool(list(mean), signal.kernel, "max")
    else:
        each = [pool(list(soft(row)[:past]), signal.kernel, "max") for row in rows]
        importance = [sum(column) / len(rows) for column in zip(*each, strict=True)]
    spared = max(signal.spared, math.floor(signal.spared_share * len(own) + 1e-9))
    similar = similarity(head, signal.threshold, spared, signal.recipe == "repository")
    scores = [signal.mix * a - (1 - signal.mix) * b for a, b in zip(importance, similar[:past], strict=True)]
    return scores + [2.0] * sum(own)


def gkv_memory(head: Head, signal, old: list[float]) -> list[float]:  # type: ignore[no-untyped-def]
    own = head.own(signal.queries)
    past = len(own) - sum(own)
    votes = np.zeros(len(own))
    for row in head.logits():
        votes += np.max([soft(one) for one in row], axis=0)
    most = max(votes[:past], default=0.0) or 1.0
    new = [v / most for v in votes[:past]] + [0.0] * sum(own)
    return [max(signal.decay * a, b) for a, b in zip(old, new, strict=True)]


def gkv(head: Head, signal, memory: list[float]) -> list[float]:  # type: ignore[no-untyped-def]
    own = head.own(signal.queries)
    past = len(own) - sum(own)
    importance = pool(memory[:past], signal.kernel, "max")
    similar = similarity(head, signal.threshold, signal.spared)[:past]
    most = max(similar, default=0.0) or 1.0
    scores = [signal.mix * a - (1 - signal.mix) * b / most for a, b in zip(importance, similar, strict=True)]
    return scores + [2.0] * sum(own)


# Random views --------------------------------------------------------------------------------------------------------


@st.composite
def views(draw: st.DrawFn, dtype: torch.dtype = torch.float64) -> tuple[View, int]:
    """A view and its number of queries: rows of different lengths, some heads with fewer tokens, keys that repeat."""
    layers, rows, heads, group = (draw(st.integers(1, most)) for most in (2, 3, 3, 3))
    dim, slots, window = draw(st.sampled_from([2, 4, 6])), draw(st.integers(1, 24)), draw(st.integers(1, 10))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    tied, ragged = draw(st.booleans()), draw(st.booleans())
    seen = [slots + int(rng.integers(0, 30)) for _ in range(rows)]
    pos = np.full((layers, rows, heads, slots), -1)
    for place in np.ndindex(layers, rows, heads):
        held = int(rng.integers(1, slots + 1)) if ragged else slots
        older = rng.choice(seen[place[1]] - 1, held - 1, replace=False) if held > 1 else []
        pos[place][:held] = sorted([*older, seen[place[1]] - 1])
    numbers = rng.integers(-1, 2, size=5000).astype(float) if tied else rng.normal(size=5000)
    keys = np.resize(numbers, (layers, rows, heads, slots, dim))
    # A slot of the ring that nothing was written to holds garbage.
    queries = np.full((layers, rows, heads * group, window, dim), math.nan)
    query_pos = np.full((rows, window), -1)
    for row, end in enumerate(seen):
        for p in range(max(0, end - window), end):
            queries[:, row, :, p % window] = rng.permutation(numbers)[: layers * heads * group * dim].reshape(
                layers, -1, dim
            )
            query_pos[row, p % window] = p
    positions = torch.tensor(pos, dtype=torch.int32)
    view = View(
        pos=positions,
        fields={"memory": torch.tensor(rng.random(pos.shape), dtype=torch.float64) * (positions >= 0)},
        may_move=positions >= 0,
        seeds=torch.zeros(rows, dtype=torch.long),
        seen=torch.tensor(seen),
        prompt=torch.tensor(seen),
        keys=torch.tensor(keys, dtype=dtype),
        queries=torch.tensor(queries, dtype=dtype),
        query_pos=torch.tensor(query_pos),
        scaling=dim**-0.5,
    )
    return view, window


def scorer(name: str, view: View, dtype: torch.dtype = torch.float64, **options: object) -> Scorer:
    assert view.queries is not None
    layers, _, heads, _ = view.pos.shape
    policy = parse_policy({"name": name, "budget": 0.5, **options})
    geometry = Geometry(layers, view.queries.shape[2], heads, view.queries.shape[4], dtype)
    return make_scorer(policy, Facts(geometry))


def head(view: View, layer: int, row: int, number: int) -> tuple[Head, list[int]]:
    """One head of a view as the references want it, and the slots that it uses."""
    assert view.queries is not None
    assert view.query_pos is not None
    assert view.keys is not None
    held = [s for s, p in enumerate(view.pos[layer, row, number].tolist()) if p >= 0]
    group = view.queries.shape[2] // view.pos.shape[2]
    mine = view.queries[layer, row, number * group : (number + 1) * group].double().numpy()
    queries = {p: mine[:, slot] for slot, p in enumerate(view.query_pos[row].tolist()) if p >= 0}
    keys = view.keys[layer, row, number].double().numpy()[held]
    pos = [int(view.pos[layer, row, number, s]) for s in held]
    return Head(keys, pos, queries, int(view.seen[row]), view.scaling), held


def places(view: View) -> list[tuple[int, int, int]]:
    return list(np.ndindex(*view.pos.shape[:3]))


# Properties ----------------------------------------------------------------------------------------------------------


def total(name: str, view: View, **options: object) -> Tensor:
    """Scores, the memory's update included."""
    made = scorer(name, view, **options)
    fields = made.remember(view) if made.remembers else {}
    return made.score(replace(view, fields={**view.fields, **fields}))
