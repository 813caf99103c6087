"""LagKV, KeyDiff, Expected Attention and TriAttention against loops over numpy arrays, one token at a time."""

import cmath
import math
from pathlib import Path

import numpy as np
import oracle
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import generate, loaded, prompts, requests, tiny

from tiercache.catalog import geometric
from tiercache.errors import PolicyError
from tiercache.placement import trajectory
from tiercache.policy import parse_policy
from tiercache.rope import Rope
from tiercache.scorers import Facts, View
from tiercache.scorers.expected import ExpectedAttention
from tiercache.scorers.keydiff import KeyDiff
from tiercache.scorers.lagkv import LagKV
from tiercache.scorers.triattention import TriAttention, calibrate
from tiercache.store import Geometry

CLASSES = {"lagkv": LagKV, "keydiff": KeyDiff, "expected": ExpectedAttention, "triattention": TriAttention}

# The references: one (layer, KV head) of one sequence. keys, values [n, d]; queries are complex, [n, d / 2] each.


def lagkv(keys, values, chunk, weight=1.0):  # type: ignore[no-untyped-def]
    """Scores of tokens in `chunk` (indices), seen from those after it."""
    after = [i for i in range(max(chunk) + 1, max(chunk) + 1 + len(chunk)) if i < len(keys)]
    scores = dict.fromkeys(range(len(keys)), 0.0)
    for states, factor in ((keys, 1.0), (values, weight)):
        spread = {}
        for i in chunk:
            inside = []
            for c in range(states.shape[1]):
                low, high = min(states[j, c] for j in after), max(states[j, c] for j in after)
                inside.append((states[i, c] - low) / max(high - low, 1e-6))
            spread[i] = np.std(inside, ddof=1)
        total = sum(math.exp(s - max(spread.values())) for s in spread.values())
        for i in chunk:
            scores[i] += factor * math.exp(spread[i] - max(spread.values())) / total
    return scores


def keydiff(keys):  # type: ignore[no-untyped-def]
    mean = sum(k / np.linalg.norm(k) for k in keys) / len(keys)
    if np.linalg.norm(mean) < 1e-9:
        return None  # opposite keys cancel: there is no direction to compare with
    return {i: -float(k @ mean) / np.linalg.norm(k) / np.linalg.norm(mean) for i, k in enumerate(keys)}


def pairs(x):  # type: ignore[no-untyped-def]
    half = x.shape[-1] // 2
    return x[..., :half] + 1j * x[..., half:]


def before_rope(query, position, frequencies):  # type: ignore[no-untyped-def]
    return [z * cmath.exp(-1j * f * position) for z, f in zip(pairs(query), frequencies, strict=True)]


def expected(keys, values, queries, seen, frequencies, among, future=512, epsilon=0.0):  # type: ignore[no-untyped-def]
    """queries: for each query head of the group, [(query, position), …]; the covariance as a matrix."""
    half, total = len(frequencies), np.zeros(len(keys))
    if not among:
        return dict.fromkeys(range(len(keys)), 0.0)
    turn = [sum(cmath.exp(1j * f * (seen + o)) for o in range(future)) / future for f in frequencies]
    rotation = np.zeros((2 * half, 2 * half))
    for c, z in enumerate(turn):
        rotation[c, c] = rotation[half + c, half + c] = z.real
        rotation[c, half + c], rotation[half + c, c] = -z.imag, z.imag
    scale = (2 * half) ** -0.5
    for head in queries:
        plain = np.array([before_rope(q, p, frequencies) for q, p in head])
        plain = np.concatenate([plain.real, plain.imag], axis=1)
        mean, covariance = rotation @ plain.mean(0), rotation @ np.cov(plain.T, bias=True) @ rotation.T
        logits = {i: scale * keys[i] @ mean + scale**2 * keys[i] @ covariance @ keys[i] / 2 for i in among}
        top = max(logits.values())
        for i in among:
            total[i] += math.exp(logits[i] - top) / sum(math.exp(x - top) for x in logits.values()) / len(queries)
    return {i: (total[i] + epsilon) * np.linalg.norm(values[i]) for i in range(len(keys))}


def triattention(keys, places, centres, seen, frequencies, among, future=65536):  # type: ignore[no-untyped-def]
    """Greatest z over the query heads; centres: for each (mean complex [d / 2], mean lengths [d / 2])."""
    best = dict.fromkeys(range(len(keys)), -math.inf)
    offsets = [2**p for p in range(60) if 2**p <= future]
    for mean, length in centres if among else []:
        score = {}
        for i in among:
            key = before_rope(keys[i], places[i], frequencies)
            score[i] = 0.0
            for f, k, m, n in zip(frequencies, key, mean, length, strict=True):
                apart = [seen - 1 + o - places[i] for o in offsets]
                waves = [abs(m) * abs(k) * math.cos(f * a + cmath.phase(m) - cmath.phase(k)) for a in apart]
                score[i] += sum(waves) / len(waves) + (n - abs(m)) * abs(k)
        mu, sigma = np.mean(list(score.values())), np.std(list(score.values()))
        for i in among:
            best[i] = max(best[i], (score[i] - mu) / max(sigma, 1e-6))
    return best


# Random views -------------------------------------------------------------------------------------------------------


@st.composite
def shapes(draw):  # type: ignore[no-untyped-def]
    return {
        "layers": draw(st.integers(1, 3)),
        "rows": draw(st.integers(1, 3)),
        "heads": draw(st.integers(1, 3)),
        "group": draw(st.integers(1, 3)),
        "slots": draw(st.integers(2, 14)),
        "pairs": draw(st.integers(1, 4)),
        "queries": draw(st.integers(1, 6)),
        "seed": draw(st.integers(0, 2**31)),
        "coarse": draw(st.booleans()),  # few distinct values: ties and constant channels
        "sinks": draw(st.integers(0, 3)),
    }


def view_of(shape, dtype=torch.float64, ordered=True):  # type: ignore[no-untyped-def]
    """A random view; some slots are free, the newest token and the first `sinks` are no candidates."""
    rng = torch.Generator().manual_seed(shape["seed"])

    def random(*size):  # type: ignore[no-untyped-def]
        x = torch.randn(*size, generator=rng, dtype=torch.float64)
        return ((x * 2).round() / 2 if shape["coarse"] else x).to(dtype)

    at, d = (shape["layers"], shape["rows"], shape["heads"]), 2 * shape["pairs"]
    slots = shape["slots"]
    seen = torch.randint(slots, 3 * slots, (shape["rows"],), generator=rng)
    pos = torch.full((*at, slots), -1, dtype=torch.int32)
    for row in range(shape["rows"]):
        live = int(torch.randint(2, slots + 1, (1,), generator=rng))
        for layer in range(at[0]):
            for head in range(at[2]):
                chosen = torch.randperm(int(seen[row]) - 1, generator=rng)[: live - 1]
                chosen = torch.cat([chosen, seen[row : row + 1] - 1])
                pos[layer, row, head, :live] = chosen.sort().values if ordered else chosen
    newest = (seen - 1).view(1, -1, 1, 1)
    candidate = (pos >= shape["sinks"]) & (pos < newest)
    window = shape["queries"]
    query_pos = torch.full((shape["rows"], window), -1)
    for row, n in enumerate(seen.tolist()):
        for p in range(max(0, n - window), n):
            query_pos[row, p % window] = p
    keys, values = random(*at, slots, d), random(*at, slots, d)
    keys = keys + 0.01  # no key of length 0
    queries = random(shape["layers"], shape["rows"], shape["heads"] * shape["group"], window, d)
    facts = Facts(Geometry(at[0], at[2] * shape["group"], at[2], d, dtype), Rope(1.7 / 3.0 ** torch.arange(d // 2)))
    zeros = torch.zeros_like(seen)
    asked = {"queries": queries, "query_pos": query_pos, "scaling": d**-0.5}
    return View(pos, {}, candidate, zeros, seen, zeros, keys=keys, values=values, **asked), facts


def places_of(view):  # type: ignore[no-untyped-def]
    layers, rows, heads, _ = view.pos.shape
    return [(layer, row, head) for layer in range(layers) for row in range(rows) for head in range(heads)]


def close(got, want):  # type: ignore[no-untyped-def]
    assert abs(float(got) - want) <= 1e-8 * max(1.0, abs(want)), (float(got), want)


def scorer_of(name, facts, **knobs):  # type: ignore[no-untyped-def]
    return CLASSES[name](geometric.SIGNALS[name](scorer=name, **knobs), facts)


@settings(max_examples=120, deadline=None)
@given(shapes(), st.sampled_from([0.0, 1.0, 2.5]), st.integers(1, 5))
def test_lagkv_is_the_papers_formula(shape, weight, most) -> None:  # type: ignore[no-untyped-def]
    view, facts = view_of(shape)
    chunk = view.candidate & (view.candidate.cumsum(-1) <= most)  # so that more or less than as many follow
    view = View(**{**vars(view), "candidate": chunk})
    score = scorer_of("lagkv", facts, value_weight=weight).score(view)
    assert score.isfinite().all()
    for place in places_of(view):
        live = (view.pos[place] >= 0).nonzero().flatten()
        chunk = [i for i in live.tolist() if view.candidate[place][i]]
        if not chunk:
            assert (score[place] == 0).all()
            continue
        want = lagkv(view.keys[place][live].numpy(), view.values[place][live].numpy(), chunk, weight)
        for i in chunk:
            close(score[place][i], want[i])


@settings(max_examples=120, deadline=None)
@given(shapes())
def test_keydiff_is_the_papers_formula(shape) -> None:  # type: ignore[no-untyped-def]
    view, facts = view_of(shape, ordered=False)
    score = scorer_of("keydiff", facts).score(view)
    assert score.isfinite().all()
    for place in places_of(view):
        live = (view.pos[place] >= 0).nonzero().flatten()
        want = keydiff(view.keys[place][live].numpy())
        for rank, slot in enumerate(live.tolist() if want else []):
            close(score[place][slot], want[rank])


def queries_of(view, place, group):  # type: ignore[no-untyped-def]
    layer, row, head = place
    known = [(j, p) for j, p in enumerate(view.query_pos[row].tolist()) if p >= 0]
    heads = range(head * group, (head + 1) * group)
    return [[(view.queries[layer, row, h, j].numpy(), p) for j, p in known] for h in heads]


@settings(max_examples=120, deadline=None)
@given(shapes(), st.sampled_from([1, 7, 512]), st.sampled_from([0.0, 0.02]))
def test_expected_attention_is_the_papers_formula(shape, future, epsilon) -> None:  # type: ignore[no-untyped-def]
    view, facts = view_of(shape, ordered=False)
    scorer = scorer_of("expected", facts, queries=shape["queries"], future=future, epsilon=epsilon)
    score = scorer.score(view)
    assert score.isfinite().all()
    frequencies = facts.rope.frequencies.tolist()
    for place in places_of(view):
        among = view.candidate[place].nonzero().flatten().tolist()
        if among:
            queries, seen = queries_of(view, place, shape["group"]), int(view.seen[place[1]])
            keys, values = view.keys[place].numpy(), view.values[place].numpy()
            want = expected(keys, values, queries, seen, frequencies, among, future, epsilon)
            for i in among:
                close(score[place][i], want[i])


def own_centres(queries, frequencies):  # type: ignore[no-untyped-def]
    plain = [np.array([before_rope(q, p, frequencies) for q, p in head]) for head in queries]
    return [(x.mean(0), np.abs(x).mean(0)) for x in plain]


@settings(max_examples=120, deadline=None)
@given(shapes(), st.sampled_from([1, 3, 64, 65536]), st.sampled_from(["head", "layer", "token"]))
def test_triattention_is_the_papers_formula(shape, future, scope) -> None:  # type: ignore[no-untyped-def]
    view, facts = view_of(shape, ordered=False)
    if scope != "head":  # then slots hold the same tokens in all heads
        same = {name: getattr(view, name)[:1, :, :1].expand_as(view.pos).clone() for name in ("pos", "candidate")}
        view = View(**{**vars(view), **same})
    scorer = scorer_of("triattention", facts, queries=shape["queries"], future=future, scope=scope)
    score = scorer.score(view).expand(view.pos.shape)
    assert score.isfinite().all()
    frequencies = facts.rope.frequencies.tolist()
    want = {}
    for place in places_of(view):
        among = view.candidate[place].nonzero().flatten().tolist()
        centres, seen = own_centres(queries_of(view, place, shape["group"]), frequencies), int(view.seen[place[1]])
        want[place] = triattention(
            view.keys[place].numpy(), view.pos[place].tolist(), centres, seen, frequencies, among, future
        )
    for layer, row, head in want:
        rivals = {
            "head": [(layer, row, head)],
            "layer": [p for p in want if p[:2] == (layer, row)],
            "token": [p for p in want if p[1] == row],
        }[scope]
        for i in view.candidate[layer, row, head].nonzero().flatten().tolist():
            # A head whose candidates score alike divides rounding errors by the floor of the deviation.
            got, best = float(score[layer, row, head, i]), max(want[p][i] for p in rivals)
            assert abs(got - best) <= 1e-6, (got, best)


# The engine against the oracle ---------------------------------------------------------------------------------------


def of_oracle(state, place, live, sides):  # type: ignore[no-untyped-def]
    layer, head = place
    return [np.array([getattr(state, side)[layer][0, head, i].numpy() for i in live]) for side in sides]


def newest_queries(state, place, window):  # type: ignore[no-untyped-def]
    layer, head = place
    places = range(max(0, state.seen - window), state.seen)
    heads = range(head * state.group, (head + 1) * state.group)
    return [[(state.queries[layer][0, h, p].numpy(), p) for p in places] for h in heads]


def lagkv_reference(state, place, live):  # type: ignore[no-untyped-def]
    rules = state.policy.placement
    start = rules.sinks + state.chunks * rules.chunk
    chunk = [rank for rank, i in enumerate(live) if start <= i < start + rules.chunk]
    scores = lagkv(*of_oracle(state, place, live, ("keys", "values")), chunk)
    return {i: scores[rank] for rank, i in enumerate(live)}


def keydiff_reference(state, place, live):  # type: ignore[no-untyped-def]
    scores = keydiff(*of_oracle(state, place, live, ("keys",)))
    return {i: scores[rank] for rank, i in enumerate(live)}


def expected_reference(state, place, live):  # type: ignore[no-untyped-def]
    keys, values = of_oracle(state, place, live, ("keys", "values"))
    knobs, among = state.policy.scorer, [rank for rank, i in enumerate(live) if not state.protected(i)]
    queries = newest_queries(state, place, knobs.queries)
    scores = expected(keys, values, queries, state.seen, state.frequencies, among, knobs.future, knobs.epsilon)
    return {i: scores[rank] for rank, i in enumerate(live)}


def triattention_reference(state, place, live):  # type: ignore[no-untyped-def]
    """With scope `token` the maximum is over all places; the oracle's mean of equals changes nothing."""
    knobs, among = state.policy.scorer, [rank for rank, i in enumerate(live) if not state.protected(i)]
    scores = []
    for each in state.live if knobs.scope == "token" else [place]:
        (keys,) = of_oracle(state, each, live, ("keys",))
        centres = own_centres(newest_queries(state, each, knobs.queries), state.frequencies)
        scores.append(triattention(keys, live, centres, state.seen, state.frequencies, among, knobs.future))
    return {i: max(score[rank] for score in scores) for rank, i in enumerate(live)}


POLICIES = {
    "lagkv": {"name": "lagkv", "chunk": 8, "chunk_keep": 0.5},
    "lagkv-layer": {"name": "lagkv", "chunk": 5, "chunk_keep": 0.4, "sinks": 2, "scope": "layer"},
    "keydiff": {"name": "keydiff", "budget": 16},
    "keydiff-tiered": {"name": "keydiff", "budget": 0.6, "hbm": 0.5, "every": 4, "scope": "token"},
    "expected": {"name": "expected_attention", "budget": 0.5, "every": 8, "queries": 12},
    "expected-each-step": {"name": "expected_attention", "budget": 14, "every": 1, "future": 16, "epsilon": 0.01},
    "triattention": {"name": "triattention", "budget": 28, "every": 4, "queries": 9},
    "triattention-head": {"name": "triattention", "budget": 12, "pin_prompt": False, "every": 3, "scope": "head"},
}


@pytest.fixture(autouse=True)
def references(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in CLASSES:
        monkeypatch.setitem(oracle.REFERENCES, name, globals()[f"{name}_reference"])


@pytest.mark.parametrize("name", POLICIES)
def test_the_engine_agrees_with_the_slow_reference(name: str) -> None:
    policy = parse_policy(POLICIES[name])
    for request in requests(prompts(21, 5), new=24):
        want, state = oracle.generate(tiny("llama"), policy, request.prompt, 24, request.seed)
        got = generate(loaded("llama"), [request], policy)[0]
        assert list(got.tokens) == want
        assert {len(live) for live in state.live.values()} == {got.ledger.hbm_tokens + got.ledger.ddr_tokens}
        assert {len(dead) for dead in state.dead.values()} == {got.ledger.evicted_tokens}
        assert got.ledger.evicted_tokens or len(request.prompt) == 5, "the longer one must have lost something"


@pytest.mark.parametrize("name", POLICIES)
def test_batches_and_prefill_chunks_change_nothing(name: str) -> None:
    """On the family whose heads are larger than hidden size over heads."""
    batch = requests(prompts(40, 5, 33, 17), new=16)
    alone = generate(loaded("qwen3"), batch, POLICIES[name], max_batch=1)
    together = generate(loaded("qwen3"), batch, POLICIES[name], max_batch=4, prefill_chunk=7)
    assert [c.tokens for c in together] == [c.tokens for c in alone]
    assert [c.ledger for c in together] == [c.ledger for c in alone]


# Properties ---------------------------------------------------------------------------------------------------------


def kept(policy, tokens):  # type: ignore[no-untyped-def]
    return list(trajectory(parse_policy(policy), tokens, 0))[-1].live


def test_lagkv_keeps_the_known_number_of_tokens() -> None:
    """Ten chunks after the sinks: nine halved, the last a reference only."""
    assert kept({"name": "lagkv", "chunk_keep": 0.5}, 4 + 128 * 10) == 708
    assert kept({"name": "lagkv", "chunk_keep": 1.0}, 4 + 128 * 10) == 1284
    assert kept({"name": "lagkv", "chunk_keep": 0.5}, 4 + 128 * 2 - 1) == 259
    assert kept({"name": "lagkv", "chunk_keep": 0.5}, 4 + 128 * 2) == 4 + 64 + 128


def test_lagkv_looks_one_chunk_ahead_and_no_further() -> None:
    shape = {"layers": 1, "rows": 1, "heads": 2, "group": 1, "slots": 12, "pairs": 2, "queries": 1, "seed": 3}
    view, facts = view_of({**shape, "coarse": False, "sinks": 0})
    candidate = torch.zeros_like(view.candidate)
    candidate[..., :4] = True
    pos = torch.arange(12, dtype=torch.int32).expand(view.pos.shape)
    view = View(**{**vars(view), "candidate": candidate, "pos": pos})
    before = scorer_of("lagkv", facts).score(view)
    for place, differs in ((8, False), (7, True), (4, True)):
        keys = view.keys.clone()
        keys[..., place, :] = 9.0
        after = scorer_of("lagkv", facts).score(View(**{**vars(view), "keys": keys}))
        assert (not torch.equal(before[..., :4], after[..., :4])) == differs


def test_keydiff_evicts_the_most_common_direction_first() -> None:
    keys = torch.tensor([[1.0, 0, 0, 0], [1, 0.1, 0, 0], [1, 0, 0.1, 0], [0, 0, 0, 5], [-1, 0, 0, 0]])
    view, facts = view_of({**dict.fromkeys(("layers", "rows", "heads", "group", "queries"), 1), **FIVE})
    pos = torch.arange(5, dtype=torch.int32).view(1, 1, 1, 5)
    score = scorer_of("keydiff", facts).score(
        View(**{**vars(view), "pos": pos, "keys": keys.double()[None, None, None]})
    )
    assert score.flatten().argsort().tolist()[-2:] == [3, 4]


FIVE = {"slots": 5, "pairs": 2, "seed": 1, "coarse": False, "sinks": 0}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("name", CLASSES)
def test_narrow_types_are_computed_in_float32(name: str, dtype: torch.dtype) -> None:
    shape = {"layers": 2, "rows": 2, "heads": 2, "group": 2, "slots": 12, "pairs": 3, "queries": 5, "seed": 5}
    shape |= {"coarse": True, "sinks": 1}  # multiples of one half, less 0.01: nearly exact in bfloat16
    narrow, wide = view_of(shape, dtype), view_of(shape)
    exact = View(**{**vars(narrow[0]), **{n: getattr(narrow[0], n).double() for n in ("keys", "values", "queries")}})
    got = scorer_of(name, narrow[1]).score(narrow[0])
    want = scorer_of(name, wide[1]).score(exact)
    assert got.dtype == torch.float32
    torch.testing.assert_close(got.double()[exact.candidate], want[exact.candidate], atol=1e-3, rtol=1e-3)


def test_triattention_reads_the_centres_that_calibration_wrote(tmp_path: Path) -> None:
    """With a file of the sequence's own centres the choice is that of the online estimate over the same tokens."""
    text, path = prompts(30)[0], tmp_path / "centres.safetensors"
    model = loaded("llama")
    calibrate(model, [text], path)
    found = TriAttention(parse_policy({"name": "triattention", "budget": 9, "centres": str(path)}).scorer, model.facts)
    assert found.query_window == 0
    _, state = oracle.generate(tiny("llama"), parse_policy("full"), text, 1, 0)
    for layer in range(2):
        for h in range(4):
            plain = np.array([before_rope(state.queries[layer][0, h, p], p, state.frequencies) for p in range(30)])
            mean, length = (side[layer, h] for side in found.centres)
            np.testing.assert_allclose(pairs(mean.numpy()), plain.mean(0), atol=1e-6)
            np.testing.assert_allclose(length.numpy(), np.abs(plain).mean(0), atol=1e-6)
    knobs = {"name": "triattention", "budget": 20, "pin_prompt": False, "every": 0}
    online, filed = (
        generate(model, requests([text], new=20), {**knobs, **more})[0].tokens
        for more in ({"queries": 30}, {"centres": str(path)})
    )
    assert online == filed


def test_a_file_of_centres_belongs_to_a_policy_and_to_a_model(tmp_path: Path) -> None:
    path = tmp_path / "centres.safetensors"
    with pytest.raises(PolicyError, match=r"policy\.centres: can't be read"):
        parse_policy({"name": "triattention", "budget": 9, "centres": str(path)})
    calibrate(loaded("llama"), prompts(12), path)
    policy = parse_policy({"name": "triattention", "budget": 9, "centres": str(path)})
    assert policy.label == f"triattention budget=9 centres={path}"
    assert parse_policy({"name": "triattention", "budget": 9, "centres": policy.scorer.centres}).scorer == policy.scorer
    with pytest.raises(PolicyError, match="another model"):
        generate(loaded("qwen3"), requests(prompts(12), new=4), policy)
    calibrate(loaded("llama"), prompts(13), path)
    assert parse_policy({"name": "triattention", "budget": 9, "centres": str(path)}).config() != policy.config()
    with pytest.raises(PolicyError, match="not the file"):
        generate(loaded("llama"), requests(prompts(12), new=4), policy)
    path.write_bytes(b"nonsense")
    with pytest.raises(PolicyError, match="no file of centres"):
        generate(loaded("llama"), requests(prompts(12), new=4), policy)
    with pytest.raises(PolicyError, match="at least one token"):
        calibrate(loaded("llama"), [], path)


@pytest.mark.parametrize("name", ["expected", "triattention"])
def test_a_model_without_plain_rotary_angles_is_refused(name: str) -> None:
    _, facts = view_of({**dict.fromkeys(("layers", "rows", "heads", "group", "queries"), 1), **FIVE})
    with pytest.raises(PolicyError, match="rotary angles"):
        scorer_of(name, Facts(facts.geometry))
