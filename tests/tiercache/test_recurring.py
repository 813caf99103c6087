"""RaaS and LazyEviction against loops."""

import random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from recurring_reference import EXAMPLES, Pages, facts, lazy_score, sigmoid, view

from tiercache.catalog.recurring import Lazy, Raas
from tiercache.ranking import window_sums
from tiercache.scorers import Observed, ObservedPrefill, Part
from tiercache.scorers.buckets import buckets
from tiercache.scorers.lazy import Recurrence
from tiercache.scorers.raas import LastUse


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
    assert buckets(pos // 16).tolist() == [[2, 0, 1, 0, 2], [0, 2, 0, 2, 1]]


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
