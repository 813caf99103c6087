"""SnapKV, TOVA, R-KV and G-KV against definitions in loops, in the engine against the oracle, and their properties."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import oracle
import pytest
import tiny
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoModelForCausalLM, LlamaConfig

from tiercache.catalog import SIGNALS
from tiercache.engine import Engine, Limits
from tiercache.errors import PolicyError
from tiercache.model import wrap
from tiercache.policy import parse_policy
from tiercache.scorers import Facts, Observed, ObservedPrefill, Part, Scorer, View, make_scorer
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
        candidate=positions >= 0,
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


def agree(view: View, got: Tensor, reference: Callable[[Head, list[int], tuple[int, int, int]], list[float]]) -> None:
    assert got.shape == view.pos.shape
    assert torch.isfinite(got).all()
    for place in places(view):
        one, held = head(view, *place)
        np.testing.assert_allclose(got[place][held].numpy(), reference(one, held, place), rtol=1e-9, atol=1e-12)


KERNELS = st.sampled_from([1, 3, 5, 7])


@settings(max_examples=120, deadline=None)
@given(views(), KERNELS, st.sampled_from(["avg", "max"]))
def test_snapkv_is_its_definition(drawn: tuple[View, int], kernel: int, kind: str) -> None:
    view, window = drawn
    made = scorer("snapkv", view, queries=window, kernel=kernel, pool=kind)
    agree(view, made.score(view), lambda one, *_: snapkv(one, made.signal))


@settings(max_examples=120, deadline=None)
@given(
    views(),
    KERNELS,
    st.sampled_from(["paper", "repository"]),
    st.sampled_from([0.0, 0.07, 0.1, 0.5, 1.0]),
    st.sampled_from([-0.51, 0.49, 0.87]),  # no cosine of the tied keys lies on a threshold
    st.integers(0, 3),
    st.sampled_from([0.0, 0.1, 0.5]),
)
def test_rkv_is_its_definition(
    drawn: tuple[View, int], kernel: int, recipe: str, mix: float, threshold: float, spared: int, share: float
) -> None:
    view, window = drawn
    options = {"mix": mix, "threshold": threshold, "spared": spared, "spared_share": share, "recipe": recipe}
    made = scorer("rkv", view, queries=window, kernel=kernel, **options)
    agree(view, made.score(view), lambda one, *_: rkv(one, made.signal))


@settings(max_examples=120, deadline=None)
@given(views(), KERNELS, st.sampled_from([0.0, 0.5, 0.8, 1.0]), st.sampled_from([0.0, 0.5, 1.0]), st.integers(0, 2))
def test_gkv_is_its_definition(drawn: tuple[View, int], kernel: int, decay: float, mix: float, spared: int) -> None:
    view, window = drawn
    made = scorer("gkv", view, queries=window, kernel=kernel, decay=decay, mix=mix, spared=spared, threshold=0.49)
    old, new = view.fields["memory"], made.remember(view)["memory"]
    assert set(made.fields()) == {"memory"}
    agree(view, new, lambda one, held, place: gkv_memory(one, made.signal, old[place][held].tolist()))
    view = replace(view, fields={"memory": new})
    agree(view, made.score(view), lambda one, held, place: gkv(one, made.signal, new[place][held].tolist()))


@settings(max_examples=120, deadline=None)
@given(views(), st.integers(1, 5), st.integers(0, 2**32))
def test_tova_is_the_newest_row_and_nothing_else(drawn: tuple[View, int], chunk: int, seed: int) -> None:
    view, _ = drawn
    made = scorer("tova", view)
    rng = torch.Generator().manual_seed(seed)
    layers, rows, heads, slots = view.pos.shape
    last = torch.full((heads, slots), 7.0, dtype=torch.float64)  # what an earlier step left
    weights = torch.rand(heads, 2, chunk, slots, dtype=torch.float64, generator=rng)
    real = 1 + seed % chunk
    made.observe_prefill(ObservedPrefill(0, {"last": last}, weights, torch.arange(chunk) < real, 0))
    for h in range(heads):
        for s in range(slots):
            assert float(last[h, s]) == pytest.approx(sum(float(w[real - 1, s]) for w in weights[h]) / 2)
    row = torch.rand(rows, heads, 3, slots, dtype=torch.float64, generator=rng)
    fields = [torch.full((rows, heads, part.shape[-1]), 7.0, dtype=torch.float64) for part in row.split(9, dim=-1)]
    parts = [
        Part({"last": field}, view.pos[0], view.pos[0], part)
        for field, part in zip(fields, row.split(9, -1), strict=True)
    ]
    made.observe(Observed(0, row, parts, view.seen, {}, 1.0))
    expected = (row[:, :, 0] + row[:, :, 1] + row[:, :, 2]) / 3
    torch.testing.assert_close(torch.cat(fields, dim=-1), expected)
    view = replace(view, fields={"last": expected.expand(layers, -1, -1, -1)})
    assert made.score(view) is view.fields["last"]


# Properties ----------------------------------------------------------------------------------------------------------


def total(name: str, view: View, **options: object) -> Tensor:
    """Scores, the memory's update included."""
    made = scorer(name, view, **options)
    fields = made.remember(view) if made.remembers else {}
    return made.score(replace(view, fields={**view.fields, **fields}))


@pytest.mark.parametrize("name", WINDOWED)
@settings(max_examples=40, deadline=None)
@given(drawn=views(), seed=st.integers(0, 2**32))
def test_neither_the_rings_order_nor_the_batch_matters(name: str, drawn: tuple[View, int], seed: int) -> None:
    view, window = drawn
    assert view.queries is not None
    assert view.query_pos is not None
    assert view.keys is not None
    expected = total(name, view, queries=window)
    order = torch.randperm(window, generator=torch.Generator().manual_seed(seed))
    turned = replace(view, queries=view.queries[:, :, :, order], query_pos=view.query_pos[:, order])
    torch.testing.assert_close(total(name, turned, queries=window), expected)
    for row in range(view.pos.shape[1]):
        one = slice(row, row + 1)
        alone = replace(
            view,
            pos=view.pos[:, one],
            fields={"memory": view.fields["memory"][:, one]},
            candidate=view.candidate[:, one],
            seeds=view.seeds[one],
            seen=view.seen[one],
            prompt=view.prompt[one],
            keys=view.keys[:, one],
            queries=view.queries[:, one],
            query_pos=view.query_pos[one],
        )
        torch.testing.assert_close(total(name, alone, queries=window), expected[:, one])


@pytest.mark.parametrize("name", WINDOWED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_narrow_types_are_computed_wide(name: str, dtype: torch.dtype, data: st.DataObject) -> None:
    view, window = data.draw(views(dtype))
    assert view.keys is not None
    assert view.queries is not None
    made = scorer(name, view, dtype, queries=window, **({} if name == "snapkv" else {"threshold": 0.4937}))
    view = replace(view, fields={"memory": view.fields["memory"].float()})
    if made.remembers:
        view = replace(view, fields=made.remember(view))
        assert view.fields["memory"].dtype == torch.float32
    got = made.score(view)
    assert got.dtype == torch.float32
    # The same numbers in float64: whatever is lost is lost to float32, not to the type of the keys.
    exact = replace(view, keys=view.keys.double(), queries=view.queries.double())
    wide = scorer(name, view, queries=window, **({} if name == "snapkv" else {"threshold": 0.4937}))
    torch.testing.assert_close(got.double(), wide.score(exact).double(), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", WINDOWED)
@settings(max_examples=40, deadline=None)
@given(drawn=views())
def test_the_windows_own_tokens_come_first(name: str, drawn: tuple[View, int]) -> None:
    view, window = drawn
    score = total(name, view, queries=window)
    for place in places(view):
        one, held = head(view, *place)
        own = [s for s, mine in zip(held, one.own(window), strict=True) if mine]
        past = [s for s in held if s not in own]
        assert not past or score[place][own].min() > score[place][past].max()


@settings(max_examples=40, deadline=None)
@given(views())
def test_heads_repeated_for_queries_score_as_grouped_ones(drawn: tuple[View, int]) -> None:
    """Multi-head attention with each KV head stored twice is grouped attention with groups of two."""
    view, window = drawn
    assert view.queries is not None
    assert view.keys is not None
    for name in WINDOWED:
        grouped = replace(view, queries=view.queries.repeat_interleave(2, dim=2))
        fields = {"memory": view.fields["memory"].repeat_interleave(2, dim=2)}
        keys, pos = view.keys.repeat_interleave(2, dim=2), view.pos.repeat_interleave(2, dim=2)
        repeated = replace(grouped, keys=keys, pos=pos, fields=fields)
        got = total(name, repeated, queries=window)
        if view.queries.shape[2] == view.pos.shape[2]:  # both query heads of a pair are the same
            torch.testing.assert_close(got, total(name, grouped, queries=window).repeat_interleave(2, dim=2))


def plain_view(keys: Tensor, queries: Tensor) -> View:
    """One layer, row and head: keys [n, d], queries [w, d] of the last w tokens."""
    n, w = len(keys), len(queries)
    pos = torch.arange(n, dtype=torch.int32).view(1, 1, 1, n)
    return View(
        pos=pos,
        fields={"memory": torch.zeros(1, 1, 1, n, dtype=keys.dtype)},
        candidate=pos >= 0,
        seeds=torch.zeros(1, dtype=torch.long),
        seen=torch.tensor([n]),
        prompt=torch.tensor([n]),
        keys=keys.view(1, 1, 1, n, -1),
        queries=queries.view(1, 1, 1, w, -1),
        query_pos=torch.arange(n - w, n).view(1, w),
        scaling=1.0,
    )


def test_the_newest_of_several_equal_keys_is_spared() -> None:
    keys = torch.eye(12, dtype=torch.float64)
    keys[5] = keys[8] = keys[2]  # far apart, and nothing else resembles anything
    view = plain_view(keys, torch.zeros(2, 12, dtype=torch.float64))
    score = total("rkv", view, queries=2, kernel=1)[0, 0, 0]
    assert score[2] < score[5] < score[8]
    assert score[8] == score[9]  # as good as one that resembles nothing
    equal = total("rkv", view, queries=2, kernel=1, spared=0)[0, 0, 0]
    assert equal[2] == equal[5] == equal[8] < equal[9]


def test_of_a_pair_of_equal_keys_neither_counts_against_the_other() -> None:
    """Each is the newest key that resembles the other."""
    keys = torch.eye(12, dtype=torch.float64)
    keys[8] = keys[2]
    view = plain_view(keys, torch.zeros(2, 12, dtype=torch.float64))
    score = total("rkv", view, queries=2, kernel=1)[0, 0, 0]
    assert score[2] == score[8] == score[9]


@settings(max_examples=40, deadline=None)
@given(views())
def test_rkv_without_redundancy_is_pooled_window_attention(drawn: tuple[View, int]) -> None:
    view, window = drawn
    first = replace(view, queries=view.queries[:, :, :: view.queries.shape[2] // view.pos.shape[2]])  # groups of one
    got = total("rkv", first, queries=window, kernel=1, mix=1.0)
    votes = total("snapkv", first, queries=window, kernel=1)
    existing = (view.query_pos >= 0).sum(-1).view(1, -1, 1, 1)
    past = (view.pos >= 0) & (view.pos < (view.seen - window).view(1, -1, 1, 1))
    torch.testing.assert_close(got[past], (votes / existing)[past])


def test_a_memory_fades_by_decay_and_never_below_what_is_seen_now() -> None:
    torch.manual_seed(0)
    view = plain_view(torch.randn(9, 4).double(), torch.randn(2, 4).double())
    made = scorer("gkv", view, queries=2)
    now = made.remember(view)["memory"]
    assert float(now.max()) == 1.0
    assert (now[..., -2:] == 0).all()
    high = made.remember(replace(view, fields={"memory": torch.ones_like(now)}))["memory"]
    torch.testing.assert_close(high, now.clamp_min(0.8))


@pytest.mark.parametrize("kernel", [0, 2, -3])
def test_a_kernel_is_odd(kernel: int) -> None:
    with pytest.raises(PolicyError, match="kernel"):
        parse_policy({"name": "snapkv", "budget": 64, "kernel": kernel})


def test_a_window_knob_is_not_the_placements() -> None:
    policy = parse_policy({"name": "snapkv", "budget": 64, "queries": 16})
    assert (policy.placement.window, policy.scorer.queries) == (1, 16)  # type: ignore[attr-defined]


# In the engine -------------------------------------------------------------------------------------------------------


def oracle_head(state: oracle.Oracle, place: tuple[int, int], live: list[int]) -> Head:
    layer, number = place
    mine = state.queries[layer][0, number * state.group : (number + 1) * state.group].numpy()
    first = max(0, state.seen - state.policy.scorer.queries)  # type: ignore[attr-defined]
    keys = state.keys[layer][0, number].numpy()
    queries = {p: mine[:, p] for p in range(first, state.seen)}
    return Head(keys[live], live, queries, state.seen, keys.shape[1] ** -0.5)


def snapkv_live(state: oracle.Oracle, place: tuple[int, int], live: list[int]) -> dict[int, float]:
    return dict(zip(live, snapkv(oracle_head(state, place, live), state.policy.scorer), strict=True))


def rkv_live(state: oracle.Oracle, place: tuple[int, int], live: list[int]) -> dict[int, float]:
    return dict(zip(live, rkv(oracle_head(state, place, live), state.policy.scorer), strict=True))


def tova_live(state: oracle.Oracle, place: tuple[int, int], live: list[int]) -> dict[int, float]:
    layer, number = place
    rows = [state.rows[layer, number * state.group + g] for g in range(state.group)]
    return {i: sum(row[i] for row in rows) / state.group for i in live}


class Remembering(oracle.Oracle):
    """With G-KV's memory of each token, and when each place's was last updated."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.memory: dict[tuple[int, int], dict[int, float]] = {place: {} for place in self.live}
        self.updated: dict[tuple[int, int], int] = {}


def gkv_live(state: oracle.Oracle, place: tuple[int, int], live: list[int]) -> dict[int, float]:
    assert isinstance(state, Remembering)
    one, memory = oracle_head(state, place, live), state.memory[place]
    ranked = len(live) > state.limit() or state.policy.placement.tiered  # tiers are ranked though nothing leaves
    if ranked and state.updated.get(place) != state.seen:
        old = [memory.get(i, 0.0) for i in live]
        memory.update(zip(live, gkv_memory(one, state.policy.scorer, old), strict=True))
        state.updated[place] = state.seen
    return dict(zip(live, gkv(one, state.policy.scorer, [memory.get(i, 0.0) for i in live]), strict=True))


oracle.REFERENCES.update({"snapkv": snapkv_live, "tova": tova_live, "rkv": rkv_live, "gkv": gkv_live})

POLICIES = {
    "snapkv": {"name": "snapkv", "budget": 16, "queries": 6, "recent": 6},
    "snapkv-max": {"name": "snapkv", "budget": 0.6, "queries": 4, "recent": 4, "kernel": 3, "pool": "max"},
    "snapkv-pinned-layer": {
        "name": "snapkv_d",
        "budget": 0.4,
        "queries": 4,
        "recent": 4,
        "every": 5,
        "pin_prompt": True,
        "scope": "layer",
    },
    "snapkv-d": {"name": "snapkv_d", "budget": 16, "queries": 4, "recent": 4, "every": 5},
    "snapkv-unprotected": {"name": "snapkv_d", "budget": 12, "queries": 16, "recent": 1, "every": 4},
    "tova": {"name": "tova", "budget": 14},
    "tova-one": {"name": "tova", "budget": 1},
    "tova-ratio": {"name": "tova", "budget": 0.5},
    "tova-head": {"name": "tova", "budget": 14, "scope": "head", "every": 3},
    "tova-tiered": {"name": "tova", "budget": 0.6, "hbm": 0.5, "every": 4},
    "rkv": {"name": "rkv", "budget": 16, "queries": 4, "recent": 4, "every": 6, "kernel": 3},
    "rkv-repository": {
        "name": "rkv",
        "budget": 0.5,
        "queries": 4,
        "recent": 4,
        "every": 5,
        "recipe": "repository",
        "mix": 0.07,
        "spared_share": 0.1,
        "threshold": 0.2,
    },
    "gkv": {"name": "gkv", "budget": 16, "queries": 4, "recent": 4, "every": 5},
    "gkv-layer": {"name": "gkv", "budget": 0.5, "queries": 4, "recent": 4, "every": 4, "scope": "layer"},
    "gkv-tiered": {"name": "gkv", "budget": 18, "queries": 4, "recent": 4, "every": 4, "hbm": 0.5, "mix": 0.9},
    "gkv-each-step": {"name": "gkv", "budget": 14, "queries": 4, "recent": 4, "every": 1, "decay": 0.95},
}


@pytest.mark.parametrize("name", POLICIES)
def test_the_engine_keeps_what_the_slow_reference_keeps(name: str) -> None:
    policy = parse_policy(POLICIES[name])
    for request in tiny.requests(tiny.prompts(21, 5), new=28):
        model = tiny.tiny("llama")
        expected, state = oracle.generate(model, policy, request.prompt, 28, request.seed, Remembering)
        got = tiny.generate(tiny.loaded("llama"), [request], policy)[0]
        assert list(got.tokens) == expected
        assert {len(tokens) for tokens in state.live.values()} == {got.ledger.hbm_tokens + got.ledger.ddr_tokens}
        assert {len(tokens) for tokens in state.dead.values()} == {got.ledger.evicted_tokens}


@pytest.mark.parametrize("name", ["snapkv", "snapkv-d", "tova", "tova-tiered", "rkv", "gkv-layer", "gkv-each-step"])
def test_neither_batch_nor_chunk_changes_a_token(name: str) -> None:
    policy = parse_policy(POLICIES[name])
    batch = tiny.requests(tiny.prompts(21, 5, 33, 12), new=14)
    alone = [c.tokens for c in tiny.generate(tiny.loaded("llama"), batch, policy, max_batch=1)]
    assert [c.tokens for c in tiny.generate(tiny.loaded("llama"), batch, policy, max_batch=4)] == alone
    assert [c.tokens for c in tiny.generate(tiny.loaded("llama"), batch, policy, prefill_chunk=7)] == alone


def test_the_memory_decides() -> None:
    """The control of the tests above: without it other tokens are kept."""
    batch = tiny.requests(tiny.prompts(21, 33), new=28)
    kept, forgot = (
        [c.tokens for c in tiny.generate(tiny.loaded("llama"), batch, {**POLICIES["gkv"], "decay": decay, "mix": 1.0})]
        for decay in (1.0, 0.0)
    )
    assert kept != forgot


def test_tova_keeps_the_same_tokens_in_all_heads_of_a_layer_only() -> None:
    policy = parse_policy({"name": "tova", "budget": 12})
    request = tiny.requests(tiny.prompts(21), new=28)[0]
    _, state = oracle.generate(tiny.tiny("llama"), policy, request.prompt, 28, request.seed)
    assert state.live[0, 0] == state.live[0, 1]
    assert state.live[1, 0] == state.live[1, 1]
    assert state.live[0, 0] != state.live[1, 0]


def test_snapkv_never_evicts_what_was_generated() -> None:
    request = tiny.requests(tiny.prompts(40), new=30)[0]
    policy = {"name": "snapkv", "budget": 16, "queries": 8, "recent": 8}
    ledger = tiny.generate(tiny.loaded("llama"), [request], policy)[0].ledger
    assert (ledger.hbm_tokens, ledger.evicted_tokens) == (16 + 29, 40 - 16)


@pytest.mark.parametrize("name", ["snapkv", "snapkv_d", "tova", "rkv", "gkv"])
def test_a_budget_beyond_the_sequence_changes_nothing(name: str) -> None:
    batch = tiny.requests(tiny.prompts(21, 5), new=24)
    full = [c.tokens for c in tiny.generate(tiny.loaded("llama"), batch, "full")]
    policy = {"name": name, "budget": 512, "every": 3}
    assert [c.tokens for c in tiny.generate(tiny.loaded("llama"), batch, policy)] == full


class Largest(TorchDispatchMode):
    """The number of elements of the largest tensor that any operation yields."""

    elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple | list) else [out]:
            if isinstance(tensor, Tensor):
                self.elements = max(self.elements, tensor.numel())
        return out


PROMPT = 3000


@pytest.fixture(scope="module")
def long_engine() -> Callable[[int], Engine]:
    torch.manual_seed(0)
    shape = {**tiny.SHAPE, "hidden_size": 32, "max_position_embeddings": 4096}
    model = wrap(AutoModelForCausalLM.from_config(LlamaConfig(**shape)).float().eval(), None, torch.device("cpu"))
    return lambda chunk: Engine(model, Limits(prefill_chunk=chunk))


@pytest.mark.parametrize("chunk", [64, 512])
@pytest.mark.parametrize("name", ["snapkv", "rkv", "gkv"])
def test_a_long_prompt_never_becomes_a_square(long_engine: Callable[[int], Engine], name: str, chunk: int) -> None:
    request = tiny.requests(tiny.prompts(PROMPT), new=2)
    policy = parse_policy({"name": name, "budget": 256})
    with Largest() as largest:
        done = list(long_engine(chunk).run(request, policy))
    assert done[0].ledger.evicted_tokens == PROMPT - 256
    queries = policy.scorer.queries  # type: ignore[attr-defined]
    assert queries * PROMPT <= largest.elements < PROMPT**2 / 2


def test_every_scorer_here_is_tested() -> None:
    from tiercache.catalog import windowed

    assert set(windowed.SIGNALS) == {"tova", *WINDOWED} <= set(oracle.REFERENCES) & set(SIGNALS)
