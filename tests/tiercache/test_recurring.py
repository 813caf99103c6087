"""RaaS, LazyEviction and DefensiveKV against loops that share no code with them, in isolation and in the engine."""

import math
import random
from itertools import pairwise

import numpy as np
import oracle
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import generate, loaded, prompts, requests, tiny

from tiercache.cache import TieredCache
from tiercache.catalog.recurring import Defensive as DefensiveSignal
from tiercache.catalog.recurring import Lazy, Raas
from tiercache.errors import PolicyError
from tiercache.policy import parse_policy
from tiercache.ranking import window_sums
from tiercache.scorers import Facts, Observed, ObservedPrefill, Part, View
from tiercache.scorers.defensive import Defensive
from tiercache.scorers.lazy import Recurrence
from tiercache.scorers.raas import LastUse, buckets
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


@EXAMPLES
@given(
    seed=st.integers(0, 10**6),
    rows=st.integers(1, 3),
    heads=st.integers(1, 3),
    group=st.integers(1, 3),
    slots=st.integers(1, 12),
    page=st.sampled_from([1, 2, 3, 4, 16]),
    rule=st.sampled_from([{"threshold": 1e-4}, {"threshold": 0.17}, {"top": 0.5}, {"top": 0.3}]),
    scope=st.sampled_from(["head", "layer"]),
    tiers=st.integers(1, 2),
)
def test_raas_scores_as_the_loops_do(
    seed: int, rows: int, heads: int, group: int, slots: int, page: int, rule: dict, scope: str, tiers: int
) -> None:
    rng, dim, scaling = random.Random(seed), 3, 0.7
    torch.manual_seed(seed)
    signal = Raas(scorer="raas", scope=scope, page=page, **rule)
    scorer = LastUse(signal, facts(1, heads, group, dim))
    live = rng.sample(range(30), rng.randint(1, slots))
    each = [rng.sample(live, len(live)) + [-1] * (slots - len(live)) for _ in range(rows)]  # some slots may be free
    for row in each:
        rng.shuffle(row)
    if scope == "head":  # heads hold different tokens
        table = [[[i if rng.random() < 0.7 or i == live[0] else -1 for i in row] for _ in range(heads)] for row in each]
    else:
        table = [[row] * heads for row in each]
    pos = torch.tensor(table, dtype=torch.int32)
    keys = torch.randn(rows, heads, slots, dim, dtype=torch.float64) * 2
    fields = {name: torch.zeros(pos.shape, dtype=dtype) for name, dtype in scorer.fields().items()}
    cut = rng.randint(0, slots) if tiers == 2 else slots
    spans = [slice(0, cut), slice(cut, slots)][:tiers]
    loops = [Pages(signal) for _ in range(rows)]
    for now in range(30, 30 + rng.randint(1, 4)):
        query = torch.randn(rows, heads, group, dim, dtype=torch.float64)
        steps = torch.tensor([now + row for row in range(rows)])
        parts = [Part({k: v[..., s] for k, v in fields.items()}, pos[..., s], keys[:, :, s], None) for s in spans]
        scorer.observe(Observed(0, query, parts, steps, {}, scaling))
        for r in range(rows):
            by_head = [{int(i): keys[r, h, s].numpy() for s, i in enumerate(pos[r, h]) if i >= 0} for h in range(heads)]
            loops[r].step(by_head, list(query[r].numpy()), now + r, scaling)
    got = scorer.score(view(pos[None], {k: v[None] for k, v in fields.items()}, [40] * rows))[0]
    for r, h, s in np.ndindex(rows, heads, slots):
        if pos[r, h, s] >= 0:
            assert got[r, h, s].item() == pytest.approx(loops[r].score(h, int(pos[r, h, s])), abs=1e-9)
        else:
            assert fields["used"][r, h, s] == 0, "a free slot stays ready for a new token"


def test_pages_are_numbered_without_gaps() -> None:
    pos = torch.tensor([[5000, 3, 16, 2, 5001], [-1, 40, -1, 41, 7]])
    assert buckets(pos, 16).tolist() == [[2, 0, 1, 0, 2], [0, 2, 0, 2, 1]]


@EXAMPLES
@given(pages=st.lists(st.tuples(st.integers(0, 100_000), st.integers(0, 10**6)), min_size=2, max_size=30, unique=True))
def test_the_sum_over_a_window_keeps_the_order_of_stamp_then_current_score(pages: list[tuple[int, int]]) -> None:
    """A window's score is a sum over its tokens; an old page with a high score must not come before a new one."""
    window = 16
    pos = torch.arange(window * len(pages), dtype=torch.int32)[torch.randperm(window * len(pages))].view(1, 1, 1, -1)
    index = pos.long() // window
    born = window * len(pages)
    fields = {
        "used": torch.tensor([born + stamp for stamp, _ in pages], dtype=torch.int32)[index],
        "current": torch.tensor([share / 10**6 for _, share in pages])[index],
    }
    scorer = LastUse(Raas(scorer="raas"), facts(1, 1, 1, 4, torch.float32))
    sums = window_sums(scorer.score(view(pos, fields, [born])), pos, window)
    of_page = {int(i): float(total) for i, total in zip(index.flatten(), sums.flatten(), strict=True)}
    best_first = sorted(range(len(pages)), key=lambda n: pages[n], reverse=True)
    assert sorted(of_page, key=of_page.__getitem__, reverse=True) == best_first
    assert len(set(of_page.values())) == len(pages), "no two merge"


def test_a_page_that_nobody_uses_is_as_old_as_its_newest_token() -> None:
    scorer = LastUse(Raas(scorer="raas", page=4), facts(1, 1, 1, 2))
    pos = torch.tensor([[[[0, 1, 2, 3, 4, 9]]]], dtype=torch.int32)
    fields = {name: torch.zeros(pos.shape, dtype=dtype) for name, dtype in scorer.fields().items()}
    assert scorer.score(view(pos, fields, [10])).flatten().tolist() == [4, 4, 4, 4, 8, 12]


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


def observe(scorer: Recurrence, fields: dict, pos: torch.Tensor, weights: torch.Tensor, now: list[int]) -> None:
    """pos [rows, heads, slots]; weights [rows, heads, group, slots]."""
    part = Part(fields, pos, torch.zeros(0), weights)
    scorer.observe(Observed(0, torch.zeros(0), [part], torch.tensor(now), {}, 1.0))


@pytest.mark.parametrize("formula", ["paper", "code"])
def test_lazy_known_answers(formula: str) -> None:
    """A prompt of two tokens, then tokens 2 to 9; token 0 is used at 3, 7, 8, token 2 at 3 and 4, the others never."""
    scorer = Recurrence(Lazy(scorer="lazy", threshold=0.1, formula=formula), facts(1, 1, 1, 2))
    fields = {name: torch.zeros(1, 1, 10, dtype=dtype) for name, dtype in scorer.fields().items()}
    first = {name: plane[0, :, :2] for name, plane in fields.items()}
    scorer.observe_prefill(ObservedPrefill(0, first, torch.ones(1, 1, 2, 2), torch.tensor([True, True]), 0))
    assert fields["used"].flatten().tolist() == [2, 2, 0, 0, 0, 0, 0, 0, 0, 0]
    for now in range(2, 10):
        pos = torch.tensor([[[i if i <= now else -1 for i in range(10)]]], dtype=torch.int32)
        weights = torch.zeros(1, 1, 1, 10, dtype=torch.float64)
        weights[..., 0] = 0.2 if now in (3, 7, 8) else 0.1  # at the threshold is not above it
        weights[..., 2] = 0.2 if now in (3, 4) else 0.0
        observe(scorer, fields, pos, weights, [now])
    assert fields["used"].flatten().tolist() == [9, 2, 5, 0, 0, 0, 0, 0, 0, 0]
    assert fields["interval"].flatten().tolist() == [4, 0, 1, 0, 0, 0, 0, 0, 0, 0]
    got = scorer.score(view(pos[None], {k: v[None] for k, v in fields.items()}, [10])).flatten().tolist()
    s = sigmoid
    paper = [2 * s(-1 / 4) + 2 * s(-1 / 4), 0, 2 * s(-5) + 2 * s(-1), 0, 0, 0, 0, 0, 0, 1]
    code = [2 * s(-1.25) + 2 * s(-3), 0, 2 * s(-6) + 2 * s(0), 0, 0, 0, 0, 0, 0, 2 * s(-1)]
    assert got == pytest.approx({"paper": paper, "code": code}[formula], abs=1e-12)


@EXAMPLES
@given(
    seed=st.integers(0, 10**6),
    rows=st.integers(1, 3),
    heads=st.integers(1, 3),
    group=st.integers(1, 3),
    steps=st.integers(0, 12),
    chunk=st.integers(1, 6),
    formula=st.sampled_from(["paper", "code"]),
)
def test_lazy_scores_as_the_loops_do(
    seed: int, rows: int, heads: int, group: int, steps: int, chunk: int, formula: str
) -> None:
    rng = random.Random(seed)
    torch.manual_seed(seed)
    prompts = [rng.randint(1, 6) for _ in range(rows)]
    longest = -(-max(prompts) // chunk) * chunk
    slots = max(longest, max(prompts) + steps) + 1
    scorer = Recurrence(Lazy(scorer="lazy", threshold=0.3, formula=formula), facts(1, heads, group, 2))
    fields = {name: torch.zeros(rows, heads, slots, dtype=dtype) for name, dtype in scorer.fields().items()}
    for start in range(0, longest, chunk):
        for r, length in enumerate(prompts):
            counted = torch.arange(start, start + chunk) < length
            planes = {name: plane[r, :, : start + chunk] for name, plane in fields.items()}
            weights = torch.rand(heads, group, chunk, start + chunk)
            scorer.observe_prefill(ObservedPrefill(0, planes, weights, counted, start))
    hits: dict[tuple[int, int, int], list[int]] = {}
    order = [rng.sample(range(length + steps), length + steps) for length in prompts]  # any slot may hold any token
    slot_of = [[*range(length), *[i for i in row if i >= length]] for row, length in zip(order, prompts, strict=True)]
    pos = torch.full((rows, heads, slots), -1, dtype=torch.int32)
    for r, length in enumerate(prompts):
        for i in range(length):
            pos[r, :, slot_of[r][i]] = i
    for step in range(steps):
        weights = torch.zeros(rows, heads, group, slots, dtype=torch.float64)
        for r, length in enumerate(prompts):
            now = length + step
            pos[r, :, slot_of[r][now]] = now
            for h, i in np.ndindex(heads, now + 1):
                given_weights = torch.rand(group, dtype=torch.float64) * rng.choice([0.1, 1.0])
                weights[r, h, :, slot_of[r][i]] = given_weights
                if max(given_weights.tolist()) > 0.3:
                    hits.setdefault((r, h, i), []).append(now)
        observe(scorer, fields, pos, weights, [length + step for length in prompts])
    seen = [length + steps for length in prompts]
    got = scorer.score(view(pos[None], {k: v[None] for k, v in fields.items()}, seen))[0]
    assert not got.isnan().any()
    for r, h, s in np.ndindex(rows, heads, slots):
        i = int(pos[r, h, s])
        if i >= 0:
            born = max(i, prompts[r] - 1)
            used = [now for now in hits.get((r, h, i), []) if now > born]
            assert got[r, h, s].item() == pytest.approx(lazy_score(used, born, seen[r] - 1, formula), abs=1e-12)
        else:
            assert fields["used"][r, h, s] == fields["interval"][r, h, s] == 0


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


def asked(scorer_view: View) -> list[list[int]]:
    assert scorer_view.query_pos is not None
    return [[n for n, at in enumerate(row) if at >= 0] for row in scorer_view.query_pos.tolist()]


@EXAMPLES
@given(
    seed=st.integers(0, 10**6),
    layers=st.integers(1, 2),
    rows=st.integers(1, 2),
    heads=st.integers(1, 3),
    group=st.integers(1, 3),
    slots=st.integers(1, 18),
    window=st.integers(1, 6),
    kernel=st.sampled_from([1, 3, 5]),
    guarantee=st.sampled_from([0.0, 0.3, 0.6, 0.9]),
    released=st.booleans(),
    projected=st.booleans(),
)
def test_defensive_scores_as_the_loops_do(
    seed: int,
    layers: int,
    rows: int,
    heads: int,
    group: int,
    slots: int,
    window: int,
    kernel: int,
    guarantee: float,
    released: bool,
    projected: bool,
) -> None:
    rng, dim, scaling = random.Random(seed), 4, 0.5
    torch.manual_seed(seed)
    wide = {"dtype": torch.float64}
    weights = torch.randn(layers, 7, heads * group * dim, **wide)
    output = {"output_weight": lambda layer: weights[layer]} if projected else {}
    signal = DefensiveSignal(scorer="defensive", queries=window, kernel=kernel, guarantee=guarantee, released=released)
    scorer = Defensive(signal, facts(layers, heads, group, dim, **output))
    assert scorer.query_window == window
    seen = [slots + rng.randint(0, 5) for _ in range(rows)]
    pos = torch.full((layers, rows, heads, slots), -1, dtype=torch.int32)
    for layer, r, h in np.ndindex(layers, rows, heads):
        newest = list(range(max(0, seen[r] - window), seen[r]))[-slots:]
        older = [i for i in range(newest[0]) if rng.random() < 0.8][: slots - len(newest)]
        held = torch.tensor(older + newest, dtype=torch.int32)
        pos[layer, r, h, : len(held)] = held
    keys, values = (torch.randn(layers, rows, heads, slots, dim, **wide) * 2 for _ in range(2))
    queries = torch.randn(layers, rows, heads * group, window, dim, **wide) * 2
    places = [[at if (at := seen[r] - 1 - n) >= 0 else -1 for n in range(window)] for r in range(rows)]
    for row in places:
        rng.shuffle(row)
    full = view(
        pos, {}, seen, keys=keys, values=values, queries=queries, query_pos=torch.tensor(places), scaling=scaling
    )
    got = scorer.score(full)
    assert got.isfinite().all()
    for layer, r in np.ndindex(layers, rows):
        counts = [int((pos[layer, r, h] >= 0).sum()) for h in range(heads)]
        real = asked(full)[r]
        expected = defensive_layer(
            signal,
            [keys[layer, r, h, : counts[h]].numpy() for h in range(heads)],
            [values[layer, r, h, : counts[h]].numpy() for h in range(heads)],
            queries[layer, r][:, real].numpy(),
            [places[r][n] for n in real],
            [pos[layer, r, h, : counts[h]].tolist() for h in range(heads)],
            weights[layer].numpy() if projected else None,
            seen[r],
            scaling,
        )
        for h in range(heads):
            assert got[layer, r, h, : counts[h]].tolist() == pytest.approx(expected[h], abs=1e-9)


def one_query(attention: list[float], dtype: torch.dtype = torch.float64, **knobs: object) -> torch.Tensor:
    """Scores of a single head whose one query gives its tokens exactly this attention; the last token is the window."""
    n = len(attention)
    query = torch.tensor(attention, dtype=torch.float64).log().to(dtype).view(1, 1, 1, 1, n)
    scorer = Defensive(DefensiveSignal(scorer="defensive", queries=1, kernel=1, **knobs), facts(1, 1, 1, n, dtype))
    pos = torch.arange(n, dtype=torch.int32).view(1, 1, 1, n)
    keys = torch.eye(n, dtype=dtype).view(1, 1, 1, n, n)
    return scorer.score(
        view(pos, {}, [n], keys=keys, values=keys, queries=query, query_pos=torch.tensor([[n - 1]]), scaling=1.0)
    ).flatten()


def test_nobody_is_below_the_average() -> None:
    """Before the window: 0.01, 0.6, 0.09, 0.1; their mean is 0.2."""
    got = one_query([0.01, 0.6, 0.09, 0.1, 0.2], guarantee=0.0)
    assert got.tolist() == pytest.approx([0.2, 0.6, 0.2, 0.2, 2.6])


def test_guaranteed_are_those_before_the_token_that_reaches_the_share() -> None:
    """The window holds 0.2, so 0.7 are left to reach; shares of the rest are 0.0125, 0.5, 0.1875 and 0.3."""
    got = one_query([0.01, 0.4, 0.15, 0.24, 0.2], guarantee=0.9)
    assert got.tolist() == pytest.approx([0.2, 0.4 + 0.5, 0.2, 0.24, 2.4])  # 0.5 + 0.3 reaches it
    two = one_query([0.01125, 0.45, 0.16875, 0.27, 0.1], guarantee=1.0)  # the same shares, 0.9 left to reach
    assert two.tolist() == pytest.approx([0.225, 0.45 + 0.5, 0.225, 0.45 + 0.3, 2.45])
    low = one_query([0.01, 0.4, 0.15, 0.24, 0.2], guarantee=0.1)
    assert low.tolist() == pytest.approx([0.2, 0.4, 0.2, 0.24, 2.4]), "nothing is left to guarantee"


def test_a_head_that_looks_at_nothing_before_the_window_guarantees_nothing() -> None:
    """Its shares are 0 and never reach anything; `released` measures the window's own attention elsewhere, as 0."""
    signal = DefensiveSignal(scorer="defensive", queries=1, kernel=1, released=True)
    scorer = Defensive(signal, facts(1, 2, 1, 4))
    pos = torch.arange(4, dtype=torch.int32).expand(1, 1, 2, 4).contiguous()
    keys = torch.eye(4, dtype=torch.float64).expand(1, 1, 2, 4, 4).contiguous()
    query = torch.tensor([[-5000.0, -5000, -5000, 0], [0, 0, -5000, 0]], dtype=torch.float64).view(1, 1, 2, 1, 4)
    places = torch.tensor([[3]])
    got = scorer.score(view(pos, {}, [4], keys=keys, values=keys, queries=query, query_pos=places, scaling=1.0))
    assert got[0, 0, 0, :3].tolist() == [0, 0, 0]
    assert got[0, 0, 1, 0] > 0.3


def test_guaranteed_come_before_any_other_and_the_window_before_them() -> None:
    got = one_query([0.3, 0.05, 0.25, 0.1, 0.2, 0.1], guarantee=0.7)
    ranked = got.argsort(descending=True).tolist()
    assert ranked[0] == 5
    assert ranked[1:3] == [0, 2]
    assert (got[[0, 2]] > got[[1, 3, 4]].max()).all()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("attention", [[1.0], [0.5, 0.5], [0.999999, 1e-6], [1e-30, 1.0]])
@pytest.mark.parametrize("released", [False, True])
def test_defensive_with_at_most_one_candidate_has_no_nan(
    dtype: torch.dtype, attention: list[float], released: bool
) -> None:
    got = one_query(attention, dtype, released=released)
    assert got.isfinite().all()
    assert got.argmax() == len(attention) - 1, "the window comes first"


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_raas_and_lazy_with_one_slot_have_no_nan(dtype: torch.dtype) -> None:
    pos = torch.tensor([[[7]]], dtype=torch.int32)
    raas = LastUse(Raas(scorer="raas"), facts(1, 1, 2, 4, dtype))
    lazy = Recurrence(Lazy(scorer="lazy"), facts(1, 1, 2, 4, dtype))
    for scorer in (raas, lazy):
        fields = {name: torch.zeros(1, 1, 1, dtype=kind) for name, kind in scorer.fields().items()}
        part = Part(fields, pos, torch.ones(1, 1, 1, 4, dtype=dtype), torch.ones(1, 1, 2, 1))
        query = torch.ones(1, 1, 2, 4, dtype=dtype)
        scorer.observe(Observed(0, query, [part], torch.tensor([7]), {}, 0.5))
        planes = {name: plane[None] for name, plane in fields.items()}
        assert scorer.score(view(pos[None], planes, [8])).isfinite().all()
        assert fields["used"].item() == 8, "the only page and the only token are used"


# In the engine -------------------------------------------------------------------------------------------------------


class Remembering(oracle.Oracle):
    """Feeds what each scorer remembers from step to step."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.pages = {layer: Pages(self.policy.scorer) for layer in range(self.layers)}  # type: ignore[arg-type]
        self.hits: dict[tuple[tuple[int, int], int], list[int]] = {}

    def step(self) -> None:
        if self.seen == self.prompt:
            return
        if self.policy.scorer.scorer == "raas":
            for layer, pages in self.pages.items():
                places = [(layer, h) for h in range(self.kv_heads)]
                keys = [{i: self.keys[layer][0, h, i].numpy() for i in self.live[layer, h]} for _, h in places]
                newest = self.queries[layer][0, :, -1].view(self.kv_heads, self.group, -1).numpy()
                pages.step(keys, list(newest), self.seen - 1, self.scaling)
        if self.policy.scorer.scorer == "lazy":
            for place in self.live:
                for i in self.live[place]:
                    heads = [place[1] * self.group + g for g in range(self.group)]
                    if max(self.rows[place[0], h][i] for h in heads) > self.policy.scorer.threshold:
                        self.hits.setdefault((place, i), []).append(self.seen - 1)

    @property
    def scaling(self) -> float:
        return self.keys[0].shape[-1] ** -0.5


def raas_reference(state: Remembering, place: tuple[int, int], live: list[int]) -> dict[int, float]:
    return {i: state.pages[place[0]].score(place[1], i) for i in live}


def lazy_reference(state: Remembering, place: tuple[int, int], live: list[int]) -> dict[int, float]:
    scores = {}
    for i in live:
        born = max(i, state.prompt - 1)
        used = [now for now in state.hits.get((place, i), []) if now > born]
        scores[i] = lazy_score(used, born, state.seen - 1, state.policy.scorer.formula)
    return scores


def defensive_reference(state: oracle.Oracle, place: tuple[int, int], live: list[int]) -> dict[int, float]:
    layer, signal = place[0], state.policy.scorer
    pos = [sorted(state.before[layer, h]) for h in range(state.kv_heads)]
    places = list(range(max(0, state.seen - signal.queries), state.seen))
    scores = defensive_layer(
        signal,
        [state.keys[layer][0, h, pos[h]].numpy() for h in range(state.kv_heads)],
        [state.values[layer][0, h, pos[h]].numpy() for h in range(state.kv_heads)],
        state.queries[layer][0][:, places].numpy(),
        places,
        pos,
        state.model.model.layers[layer].self_attn.o_proj.weight.detach().numpy(),
        state.seen,
        state.keys[layer].shape[-1] ** -0.5,
    )
    return dict(zip(pos[place[1]], scores[place[1]], strict=True))


oracle.REFERENCES.update(raas=raas_reference, lazy=lazy_reference, defensive=defensive_reference)

LAZY = {"name": "lazyeviction", "recent": 5, "every": 6, "threshold": 0.05}
WINDOW = {"queries": 4, "recent": 4}
POLICIES = {
    "raas": {"name": "raas", "budget": 24},
    "raas-small": {"name": "raas", "budget": 26, "window": 4, "page": 4, "threshold": 0.15},
    "raas-top": {"name": "raas", "budget": 0.4, "window": 4, "page": 4, "top": 0.3},
    "raas-head": {"name": "raas", "budget": 24, "window": 2, "page": 2, "threshold": 0.1, "scope": "head"},
    "raas-tiered": {"name": "raas", "budget": 0.6, "hbm": 0.5, "window": 4, "page": 4, "threshold": 0.15},
    "lazy": {**LAZY, "budget": 16},
    "lazy-code": {**LAZY, "budget": 0.5, "formula": "code"},
    "lazy-layer": {**LAZY, "budget": 14, "scope": "layer", "every": 1},
    "lazy-tiered": {**LAZY, "budget": 0.6, "hbm": 0.4},
    "defensive": {"name": "defensivekv", "budget": 9, **WINDOW},
    "defensive-head": {"name": "defensivekv", "budget": 0.4, "share": "head", "released": True, **WINDOW},
    "defensive-d": {"name": "defensivekv_d", "budget": 14, "every": 5, **WINDOW},
    "defensive-d-head": {"name": "defensivekv_d", "budget": 12, "share": "head", "every": 7, "kernel": 3, **WINDOW},
}


@pytest.mark.parametrize("name", POLICIES)
def test_same_tokens_and_survivors_as_the_slow_reference(name: str) -> None:
    policy = parse_policy(POLICIES[name])
    for request in requests(prompts(21, 5), new=30):
        expected, state = oracle.generate(tiny("llama"), policy, request.prompt, 30, request.seed, kind=Remembering)
        got = generate(loaded("llama"), [request], policy)[0]
        assert list(got.tokens) == expected
        live = [len(tokens) for tokens in state.live.values()]
        assert sum(live) == len(live) * (got.ledger.hbm_tokens + got.ledger.ddr_tokens)
        assert sum(map(len, state.dead.values())) == len(live) * got.ledger.evicted_tokens
    assert got.ledger.evicted_tokens > 0 or policy.schedule.every == 0


@pytest.mark.parametrize("name", POLICIES)
def test_batch_of_four_equals_batch_of_one(name: str) -> None:
    batch = requests(prompts(5, 30, 24, 17), new=20)
    alone = generate(loaded("qwen3"), batch, POLICIES[name], max_batch=1)
    together = generate(loaded("qwen3"), batch, POLICIES[name], max_batch=4, prefill_chunk=7)
    assert [c.tokens for c in together] == [c.tokens for c in alone]
    assert [c.ledger for c in together] == [c.ledger for c in alone]


@pytest.mark.parametrize("budget", [20, 48, 0.2])
def test_raas_never_evicts_the_prompt(budget: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even where the prompt alone exceeds the budget; and what shares a page with its end stays as well."""
    settle, evicted = TieredCache.settle, []

    def checked(cache: TieredCache) -> None:
        settle(cache)
        for row, tier in enumerate(cache.tiers):
            cache.sequences[row].write_positions(cache.hbm, row)
            held = cache.hbm.planes["pos"][:, row, :, : cache.hbm.extents[row]].sort(dim=-1).values
            pinned = min(-(-tier.prompt // 4) * 4, tier.seen)
            assert (held[..., :pinned] == torch.arange(pinned)).all()
            evicted.append(tier.evicted)

    monkeypatch.setattr(TieredCache, "settle", checked)
    policy = {"name": "raas", "budget": budget, "window": 4, "page": 4, "threshold": 0.15}
    generate(loaded("llama"), requests(prompts(33, 21, 6), new=40), policy, max_batch=2)
    assert max(evicted) > 10


def test_budgets_that_hold_everything_change_nothing() -> None:
    batch = requests(prompts(20, 9), new=24)
    full = [c.tokens for c in generate(loaded("llama"), batch, "full")]
    for name in ("raas", "lazyeviction", "defensivekv", "defensivekv_d"):
        policy = {"name": name, "budget": 400}
        assert [c.tokens for c in generate(loaded("llama"), batch, policy)] == full


def test_presets_are_the_papers() -> None:
    raas = parse_policy({"name": "raas", "budget": 1024})
    assert (raas.placement.window, raas.scorer.page, raas.scorer.threshold) == (16, 16, 1e-4)
    assert (raas.placement.pin_prompt, raas.scorer.scope, raas.schedule.every) == (True, "layer", 1)
    lazy = parse_policy({"name": "lazyeviction", "budget": 1024})
    assert lazy.placement.recent == lazy.schedule.every == 175
    defensive = parse_policy({"name": "defensivekv", "budget": 0.2})
    assert (defensive.scorer.queries, defensive.scorer.kernel, defensive.scorer.guarantee) == (32, 5, 0.9)
    assert (defensive.placement.recent, defensive.schedule.every) == (32, 0)
    assert parse_policy({"name": "defensivekv_d", "budget": 512}).schedule.every == 128


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": "raas", "budget": 64, "threshold": 1.0},
        {"name": "raas", "budget": 64, "top": 0.0},
        {"name": "raas", "budget": 64, "page": 0},
        {"name": "lazyeviction", "budget": 400, "formula": "other"},
        {"name": "defensivekv", "budget": 64, "kernel": 4},
        {"name": "defensivekv", "budget": 64, "queries": 0},
        {"name": "defensivekv"},
    ],
)
def test_values_out_of_range_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(PolicyError, match=r"policy\."):
        parse_policy(wrong)
