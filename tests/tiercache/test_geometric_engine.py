"""LagKV, KeyDiff, Expected Attention and TriAttention in the engine against the oracle, and their calibration."""

from pathlib import Path

import numpy as np
import oracle
import pytest
import torch
from geometric_reference import (
    CLASSES,
    before_rope,
    expected,
    keydiff,
    lagkv,
    own_centres,
    pairs,
    scorer_of,
    triattention,
    view_of,
)
from tiny import assert_alone_as_together, generate, loaded, prompts, requests, tiny

from tiercache.errors import PolicyError
from tiercache.placement import trajectory
from tiercache.policy import parse_policy
from tiercache.scorers import Facts, View
from tiercache.scorers.triattention import TriAttention, calibrate

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
    assert_alone_as_together(loaded("qwen3"), batch, POLICIES[name], max_batch=4, prefill_chunk=7)


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
    view = View(**{**vars(view), "may_move": candidate, "pos": pos})
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


def test_of_two_candidates_rounding_does_not_choose() -> None:
    """Each head's z is 1 and -1: where heads disagree both are as good, whoever runs beside."""
    policy = {"name": "triattention", "budget": 0.3, "queries": 4, "pin_prompt": False, "every": 1}
    batch = requests(prompts(21, 5, 13), new=16)
    together = generate(loaded("llama"), batch, policy)
    assert together[1].tokens == generate(loaded("llama"), batch[1:2], policy)[0].tokens
