"""EpiKV and its variants over keys and values against loops, and the engine against the oracle."""

import math
from collections.abc import Iterator

import numpy as np
import oracle
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import assert_alone_as_together, generate, loaded, prompts, requests, tiny

from tiercache.catalog import hidden as catalog
from tiercache.errors import PolicyError
from tiercache.placement import RowTiers, protected_intervals, recent_tokens
from tiercache.policy import parse_policy
from tiercache.scorers import Facts, View
from tiercache.scorers.epikv import EpiKV
from tiercache.scorers.epikv_kv import EpiKVCache
from tiercache.store import Geometry


def epikv(states, kind, rolling, band_a, band_b):  # type: ignore[no-untyped-def]
    """states: layer (from 1) -> [n, hidden]. Scores of all n tokens, each from what came before it."""

    def signal(layer, t):  # type: ignore[no-untyped-def]
        moves = [math.dist(states[layer][p], states[layer][p - 1]) for p in range(max(1, t - rolling + 1), t + 1)]
        if kind == "variance":
            return sum(moves) / len(moves) if moves else 0.0
        return (moves[-1] - np.mean(moves)) / (np.std(moves) + 1e-6) if len(moves) > 1 else 0.0

    tokens = range(len(states[band_a[0]]))
    return [np.mean([signal(n, t) for n in band_a]) - np.mean([signal(n, t) for n in band_b]) for t in tokens]


def epikv_kv(keys, values, places, prompt, kind, lag, rolling):  # type: ignore[no-untyped-def]
    """keys, values [n, d] of the live tokens at `places`, ascending; scores in that order."""
    if kind in ("kv-key", "kv-val"):
        spread = [float(np.var(x)) for x in (keys if kind == "kv-key" else values)]
        return [float(np.mean(spread[max(0, t - rolling + 1) : t + 1])) for t in range(len(places))]
    chunk = [math.floor((p - prompt) / lag) for p in places]
    scores = []
    for t in range(len(places)):
        earlier = [c for c in chunk if c < chunk[t]]
        score = 0.0
        for side in (keys, values)[: 1 if kind == "lag-kv-key" else 2] if earlier else ():
            reference = np.array([x for x, c in zip(side, chunk, strict=True) if c == max(earlier)])
            low, high = reference.min(0), reference.max(0)
            score += float(np.std((side[t] - low) / np.maximum(high - low, 1e-6), ddof=1))
        scores.append(score)
    return scores


def facts_of(layers, hidden=6, heads=2, dtype=torch.float64):  # type: ignore[no-untyped-def]
    weight = torch.zeros(hidden, 4)
    return Facts(Geometry(layers, heads, heads, 4, dtype), None, lambda _: weight)


def fresh_state(scorer, rows):  # type: ignore[no-untyped-def]
    return {name: torch.zeros(rows, *shape, dtype=dtype) for name, (shape, dtype) in scorer.state().items()}


def observe(scorer, states, sizes):  # type: ignore[no-untyped-def]
    """states: index of a layer -> [rows, n, hidden], handed over in pieces of these sizes -> [rows, n]."""
    first = next(iter(states.values()))
    state, found, start = fresh_state(scorer, first.shape[0]), [], 0
    for size in sizes:
        part = {layer: x[:, start : start + size] for layer, x in states.items()}
        found.append(scorer.observe_hidden(part, state)["epiphany"])
        start += size
    assert start == first.shape[1]
    return torch.cat(found, dim=1)


@st.composite
def streams(draw):  # type: ignore[no-untyped-def]
    """Hidden states of a few rows, and how they are cut."""
    sizes = draw(st.lists(st.integers(1, 9), min_size=1, max_size=6))
    layers, rows = draw(st.integers(2, 6)), draw(st.integers(1, 3))
    rng = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    states = {n: torch.randn(rows, sum(sizes), 6, generator=rng, dtype=torch.float64) for n in range(layers)}
    if draw(st.booleans()):  # some tokens that don't move at all
        states = {n: x.round().clamp(-1, 0) for n, x in states.items()}
    numbers = st.lists(st.integers(1, layers), min_size=1, max_size=3, unique=True)
    band = draw(numbers)
    return states, sizes, band, draw(numbers.filter(lambda other: {*other} != {*band})), draw(st.integers(2, 8))


def epikv_of(facts, **knobs):  # type: ignore[no-untyped-def]
    return EpiKV(catalog.EpiKV(scorer="epikv", **knobs), facts)


@settings(max_examples=150, deadline=None)
@given(streams(), st.sampled_from(["zscore", "variance", "band"]))
def test_epikv_is_the_papers_formula_however_the_prompt_is_cut(stream, kind) -> None:  # type: ignore[no-untyped-def]
    states, sizes, a, b, rolling = stream
    scorer = epikv_of(facts_of(len(states)), signal=kind, rolling=rolling, band_a=a, band_b=b)
    assert scorer.hidden_layers == tuple(sorted({n - 1 for n in (*a, *b)}))
    seen = {layer: states[layer] for layer in scorer.hidden_layers}
    got = observe(scorer, seen, sizes)
    for row in range(got.shape[0]):
        want = epikv({n + 1: x[row].numpy() for n, x in states.items()}, kind, rolling, a, b)
        np.testing.assert_allclose(got[row].numpy(), want, atol=1e-7)
    torch.testing.assert_close(got, observe(scorer, seen, [sum(sizes)]), atol=1e-9, rtol=0)
    torch.testing.assert_close(got, observe(scorer, seen, [1] * sum(sizes)), atol=1e-9, rtol=0)


@settings(max_examples=100, deadline=None)
@given(streams(), st.sampled_from(["zscore", "variance", "band"]), st.data())
def test_epikv_is_causal(stream, kind, data) -> None:  # type: ignore[no-untyped-def]
    states, sizes, a, b, rolling = stream
    scorer = epikv_of(facts_of(len(states)), signal=kind, rolling=rolling, band_a=a, band_b=b)
    seen = {layer: states[layer] for layer in scorer.hidden_layers}
    cut = data.draw(st.integers(0, sum(sizes)))
    changed = {layer: torch.cat([x[:, :cut], x[:, cut:] * 3 + layer], dim=1) for layer, x in seen.items()}
    before, after = (observe(scorer, each, sizes) for each in (seen, changed))
    torch.testing.assert_close(before[:, :cut], after[:, :cut], atol=0, rtol=0)


def test_epikv_does_change_when_the_token_itself_does() -> None:
    scorer = epikv_of(facts_of(2), band_a=(1,), band_b=(2,))
    rng = torch.Generator().manual_seed(0)
    states = {n: torch.randn(1, 8, 6, generator=rng, dtype=torch.float64) for n in (0, 1)}
    before = observe(scorer, states, [8])
    states[0][:, 5] *= 4
    after = observe(scorer, states, [8])
    assert (before[:, :5] == after[:, :5]).all()
    assert (before[:, 5:] != after[:, 5:]).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_narrow_hidden_states_are_computed_in_float32(dtype: torch.dtype) -> None:
    rng = torch.Generator().manual_seed(1)
    states = {n: torch.randn(2, 40, 6, generator=rng).to(dtype) for n in (0, 1)}
    got = observe(epikv_of(facts_of(2, dtype=dtype)), states, [13, 27])
    assert got.dtype == torch.float32
    exact = observe(epikv_of(facts_of(2)), {n: x.double() for n, x in states.items()}, [40])
    torch.testing.assert_close(got.double(), exact, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("depth", "kind", "watched"),
    [
        (32, "zscore", [10, 21]),
        (32, "variance", [10, 21]),
        (32, "band", [*range(7, 14), *range(18, 26)]),
        (28, "zscore", [9, 18]),
        (64, "zscore", [20, 42]),
        (3, "zscore", [1, 2]),
        (2, "zscore", [1, 2]),
        (2, "band", [1, 2]),
        (1, "zscore", [1]),
    ],
)
def test_layers_are_scaled_to_the_depth(depth: int, kind: str, watched: list[int]) -> None:
    assert [n + 1 for n in epikv_of(facts_of(depth), signal=kind).hidden_layers] == watched


def test_layers_can_be_chosen_and_must_exist() -> None:
    assert epikv_of(facts_of(32), band_a=(11,), band_b=(22, 23)).hidden_layers == (10, 21, 22)
    with pytest.raises(PolicyError, match="band_b: the model has 4 layers"):
        epikv_of(facts_of(4), band_b=(5,))
    for bad in ([], 0, "0-3", "13-7", "all", "1-2-x", True, 2.5):
        with pytest.raises(PolicyError, match="band_a"):
            parse_policy({"name": "epikv", "budget": 64, "band_a": bad})
    for written, read in ((10, (10,)), ("7-9", (7, 8, 9)), ("7,9-11", (7, 9, 10, 11)), ([3, 4], (3, 4))):
        assert parse_policy({"name": "epikv", "budget": 64, "band_a": written}).scorer.band_a == read
    assert parse_policy({"name": "epikv", "budget": 64, "band_a": "7-9"}).label == "epikv budget=64 band_a=7-9"


@pytest.mark.parametrize("name", ["epikv", "epikv_kv"])
@pytest.mark.parametrize(("budget", "recent"), [(2048, 128), (512, 128), (256, 64), (100, 25)])
def test_the_newest_quarter_is_protected_up_to_128(name: str, budget: int, recent: int) -> None:
    placement = parse_policy({"name": name, "budget": budget}).placement
    row = RowTiers(prompt=10, seen=3000, hbm=3000)
    assert recent_tokens(placement, row) == recent
    assert protected_intervals(placement, row) == [(0, 10), (3000 - recent, 3000)]


# Keys and values ----------------------------------------------------------------------------------------------------

KINDS = ["lag-kv", "lag-kv-key", "kv-key", "kv-val"]


@st.composite
def caches(draw):  # type: ignore[no-untyped-def]
    """A view of random keys and values, in order; heads keep different tokens, and some fewer than others."""
    layers, rows, heads = (draw(st.integers(1, 3)) for _ in range(3))
    slots, dim = draw(st.integers(1, 20)), 2 * draw(st.integers(1, 4))
    rng = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    seen = torch.randint(slots, 3 * slots + 1, (rows,), generator=rng)
    prompt = (seen * torch.rand(rows, generator=rng)).long().clamp_min(1)
    pos = torch.full((layers, rows, heads, slots), -1, dtype=torch.int32)
    for place in np.ndindex(layers, rows, heads):
        live = int(torch.randint(1, slots + 1, (1,), generator=rng))
        pos[place][:live] = torch.randperm(int(seen[place[1]]), generator=rng)[:live].sort().values
    keys, values = (torch.randn(*pos.shape, dim, generator=rng, dtype=torch.float64) for _ in range(2))
    if draw(st.booleans()):
        keys, values = keys.round(), values.round()
    zeros = torch.zeros_like(seen)
    view = View(pos, {}, pos >= 0, zeros, seen, prompt, keys=keys, values=values)
    return view, Facts(Geometry(layers, heads, heads, dim, torch.float64)), draw(st.integers(1, 6))


def cache_scorer(facts, kind, size):  # type: ignore[no-untyped-def]
    return EpiKVCache(catalog.EpiKVCache(scorer="epikv_kv", signal=kind, lag=size, rolling=size), facts)


@settings(max_examples=150, deadline=None)
@given(caches(), st.sampled_from(KINDS))
def test_variants_are_the_papers_formulas(cache, kind) -> None:  # type: ignore[no-untyped-def]
    view, facts, size = cache
    score = cache_scorer(facts, kind, size).score(view)
    assert score.isfinite().all()
    for place in np.ndindex(*view.pos.shape[:3]):
        places = [p for p in view.pos[place].tolist() if p >= 0]
        keys, values = (x[place][: len(places)].numpy() for x in (view.keys, view.values))
        want = epikv_kv(keys, values, places, int(view.prompt[place[1]]), kind, size, size)
        np.testing.assert_allclose(score[place][: len(places)].numpy(), want, atol=1e-9, rtol=1e-9)


@settings(max_examples=100, deadline=None)
@given(caches(), st.sampled_from(KINDS), st.data())
def test_variants_are_causal(cache, kind, data) -> None:  # type: ignore[no-untyped-def]
    view, facts, size = cache
    scorer, cut = cache_scorer(facts, kind, size), data.draw(st.integers(0, int(view.seen.max())))
    later = (view.pos >= cut).unsqueeze(-1)
    changed = {name: torch.where(later, x * 5 + 1, x) for name, x in (("keys", view.keys), ("values", view.values))}
    before, after = scorer.score(view), scorer.score(View(**{**vars(view), **changed}))
    earlier = (view.pos >= 0) & (view.pos < cut)
    torch.testing.assert_close(before[earlier], after[earlier], atol=0, rtol=0)


# The engine against the oracle ---------------------------------------------------------------------------------------

OUTPUTS: list[list[torch.Tensor]] = []  # of each decoder layer, one tensor for each forward pass of the oracle


@pytest.fixture
def recorded() -> Iterator[None]:
    """Outputs of the decoder layers themselves: transformers' last hidden state has been through the final norm."""
    layers = tiny("llama").model.layers
    OUTPUTS[:] = [[] for _ in layers]
    hooks = [
        layer.register_forward_hook(lambda _, __, out, found=found: found.append(out))
        for layer, found in zip(layers, OUTPUTS, strict=True)
    ]
    yield
    for hook in hooks:
        hook.remove()


def epikv_reference(state, place, live):  # type: ignore[no-untyped-def]
    knobs = state.policy.scorer
    states = {n: torch.cat(found, dim=1)[0].numpy() for n, found in enumerate(OUTPUTS, start=1)}
    scores = epikv(states, knobs.signal, knobs.rolling, knobs.band_a or (1,), knobs.band_b or (2,))
    return {i: scores[i] for i in live}


def epikv_kv_reference(state, place, live):  # type: ignore[no-untyped-def]
    knobs, (layer, head) = state.policy.scorer, place
    keys, values = (np.array([x[layer][0, head, i].numpy() for i in live]) for x in (state.keys, state.values))
    scores = epikv_kv(keys, values, live, state.prompt, knobs.signal, knobs.lag, knobs.rolling)
    return dict(zip(live, scores, strict=True))


SMALL = {"recent_cap": 4, "rolling": 6}
POLICIES = {
    "zscore": {"name": "epikv", "budget": 28, **SMALL},
    "variance": {"name": "epikv", "budget": 28, "signal": "variance", "every": 3, **SMALL},
    "band": {
        "name": "epikv",
        "budget": 16,
        "signal": "band",
        "pin_prompt": False,
        "band_a": [2],
        "band_b": [1, 2],
        **SMALL,
    },
    "tiered": {"name": "epikv", "budget": 0.5, "hbm": 0.5, "every": 4, **SMALL},
    **{kind: {"name": "epikv_kv", "budget": 28, "signal": kind, "lag": 5, **SMALL} for kind in KINDS},
    "lag-kv-head": {"name": "epikv_kv", "budget": 14, "scope": "head", "pin_prompt": False, "lag": 5, **SMALL},
}


@pytest.mark.parametrize("name", POLICIES)
def test_the_engine_agrees_with_the_slow_reference(name: str, recorded: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(oracle.REFERENCES, "epikv", epikv_reference)
    monkeypatch.setitem(oracle.REFERENCES, "epikv_kv", epikv_kv_reference)
    policy = parse_policy(POLICIES[name])
    for request in requests(prompts(21, 5), new=32):
        for found in OUTPUTS:
            found.clear()
        want, state = oracle.generate(tiny("llama"), policy, request.prompt, 32, request.seed)
        got = generate(loaded("llama"), [request], policy, prefill_chunk=8)[0]
        assert list(got.tokens) == want
        assert {len(live) for live in state.live.values()} == {got.ledger.hbm_tokens + got.ledger.ddr_tokens}
        assert {len(dead) for dead in state.dead.values()} == {got.ledger.evicted_tokens}
        assert got.ledger.evicted_tokens > 0


@pytest.mark.parametrize("name", POLICIES)
def test_batches_and_prefill_chunks_change_nothing(name: str) -> None:
    """On the family whose heads are larger than hidden size over heads."""
    batch = requests(prompts(40, 5, 33, 17), new=16)
    assert_alone_as_together(loaded("qwen3"), batch, POLICIES[name], max_batch=4, prefill_chunk=7)


def test_the_order_of_layers_matters() -> None:
    """The control: with the bands exchanged other tokens stay, so the tests above can see a wrong layer."""
    batch = requests(prompts(21), new=32)
    knobs = {"name": "epikv", "budget": 12, "pin_prompt": False, "recent_cap": 2}
    one, other = (
        generate(loaded("llama"), batch, {**knobs, "band_a": [a], "band_b": [b]})[0].tokens for a, b in ((1, 2), (2, 1))
    )
    assert one != other
