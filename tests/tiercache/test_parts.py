"""Properties of the parts: quantiser, attention, scorers, sampling."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import unsigned_mix
from torch import Tensor
from torch.testing import assert_close

from tiercache import attention
from tiercache.attention import combine, partial_attention, prefill_attention, softmax_attention
from tiercache.mixing import mix
from tiercache.policy import parse_policy
from tiercache.quantize import dequantize, quantize
from tiercache.requests import Sampling
from tiercache.sampling import sample, uniform
from tiercache.scorers import Facts, ObservedPrefill, Scorer, View, make_scorer
from tiercache.store import Geometry, gather

F64 = torch.float64


def scorer(name: str, dtype: torch.dtype = F64, **knobs: object) -> Scorer:
    return make_scorer(parse_policy({"name": name, "budget": 0.5, **knobs}), Facts(Geometry(2, 4, 2, 8, dtype)))


def random_score(pos: torch.Tensor, seeds: torch.Tensor, scope: str = "head") -> torch.Tensor:
    none = torch.zeros_like(seeds)
    return scorer("random", scope=scope).score(View(pos, {}, pos >= 0, seeds, none, none))


@given(st.integers(0, 2**32), st.sampled_from([1e-6, 1.0, 1e4]))
@settings(max_examples=30, deadline=None)
def test_quantiser_error_is_at_most_half_a_step(seed: int, size: float) -> None:
    x = torch.randn(3, 5, 32, generator=torch.Generator().manual_seed(seed)) * size
    codes, scale, zero = quantize(x)
    error = (dequantize(codes, scale, zero, torch.float32) - x).abs()
    assert (error <= scale * 0.5 * (1 + 1e-3) + 1e-6 * size).all()
    assert codes.dtype == torch.uint8


def test_quantiser_is_exact_on_constants_and_has_no_nan() -> None:
    x = torch.full((2, 8), 3.25)
    assert torch.equal(dequantize(*quantize(x), torch.float32), x)


def test_quantising_again_changes_nothing() -> None:
    once = dequantize(*quantize(torch.randn(64, 32, generator=torch.Generator().manual_seed(1))), torch.float32)
    assert_close(dequantize(*quantize(once), torch.float32), once, rtol=0, atol=1e-6)


@given(st.integers(0, 2**32), st.integers(0, 9), st.integers(0, 9), st.sampled_from([1.0, 80.0]))
@settings(max_examples=40, deadline=None)
def test_merging_parts_equals_one_softmax(seed: int, a: int, b: int, size: float) -> None:
    """Also with an empty part and with logits that would overflow without the maximum taken out."""
    g = torch.Generator().manual_seed(seed)
    q = torch.randn(2, 2, 3, 8, generator=g, dtype=F64) * size
    k, v = (torch.randn(2, 2, a + b + 1, 8, generator=g, dtype=F64) for _ in "kv")
    whole, weights = softmax_attention(q, k, v, None, 0.3)
    cuts = [(0, a), (a, a + b), (a + b, a + b + 1)]
    parts = []
    for start, stop in cuts:
        if start == stop:  # an empty tier holds slots that are all masked
            keys, values = k[:, :, :1], v[:, :, :1]
            parts.append(partial_attention(q, keys, values, torch.full((2, 1, 1, 1), -math.inf, dtype=F64), 0.3))
        else:
            parts.append(partial_attention(q, k[:, :, start:stop], v[:, :, start:stop], None, 0.3))
    out, shares = combine(parts)
    assert_close(out, whole)
    for (start, stop), part, share in zip(cuts, parts, shares, strict=True):
        if start < stop:
            assert_close(part.weights * share.unsqueeze(-1), weights[..., start:stop])
        else:
            assert (share == 0).all()


@pytest.mark.parametrize("block", [2**24, 100, 1])
def test_prefill_mass_equals_the_full_matrix_and_leaves_padding_out(
    block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "BLOCK_WEIGHTS", block)
    g = torch.Generator().manual_seed(0)
    rows, heads, kv_heads, n, d = 2, 4, 2, 11, 8
    q = torch.randn(rows, heads, n, d, generator=g, dtype=F64)
    k, v = (torch.randn(rows, kv_heads, n, d, generator=g, dtype=F64) for _ in "kv")
    lengths = [11, 6]
    masses = torch.zeros(rows, kv_heads, n, dtype=F64)
    outs = []
    for start, stop in [(0, 4), (4, 8), (8, 11)]:
        places = torch.arange(start, stop)
        visible = torch.arange(stop) <= places.unsqueeze(1)
        counted = places < torch.tensor(lengths).unsqueeze(1)

        def observe(row: int, first: int, weights: Tensor, stop: int = stop, counted: Tensor = counted) -> None:
            fields, part = {"mass": masses[row, :, :stop]}, counted[row, first : first + weights.shape[2]]
            scorer("h2o").observe_prefill(ObservedPrefill(0, fields, weights, part, first))

        outs.append(prefill_attention(q[:, :, start:stop], k[:, :, :stop], v[:, :, :stop], visible, 0.5, observe))
    for row, length in enumerate(lengths):
        full = torch.zeros(heads, length, length, dtype=F64)
        for h in range(heads):
            logits = q[row, h, :length] @ k[row, h // 2, :length].T * 0.5
            full[h] = torch.softmax(logits.masked_fill(~torch.ones(length, length).tril().bool(), -math.inf), -1)
            assert_close(torch.cat(outs, 2)[row, h, :length], full[h] @ v[row, h // 2, :length])
        assert_close(masses[row, :, :length], full.view(2, 2, length, length).sum((1, 2)))
        assert (masses[row, :, length:] == 0).all()


def test_mix_is_splitmix64() -> None:
    values = [0, 1, 2, 12345, 2**62, -1, -(2**63)]
    got = [x & (2**64 - 1) for x in mix(torch.tensor(values)).tolist()]
    assert got == [unsigned_mix(x) for x in values]


def test_random_scores_differ_by_head_or_are_shared() -> None:
    pos = torch.arange(50, dtype=torch.int32).expand(2, 3, 2, 50)
    seeds = torch.tensor([1, 2, 1])
    head = random_score(pos, seeds)
    token = random_score(pos, seeds, "token")
    assert torch.equal(head[:, 0], head[:, 2]), "the same seed draws the same numbers"
    assert not torch.equal(head[:, 0], head[:, 1])
    assert not torch.equal(head[0, 0, 0], head[1, 0, 0])
    assert not torch.equal(head[0, 0, 0], head[0, 0, 1])
    assert torch.equal(token[0, 0, 0], token[1, 0, 1])


def test_random_eviction_keeps_a_uniform_subset() -> None:
    """Each of 20 tokens survives a budget of 10 equally often: within five standard errors over 4,000 seeds."""
    seeds = torch.arange(4000)
    pos = torch.arange(20, dtype=torch.int32).expand(1, 4000, 1, 20)
    score = random_score(pos, seeds)
    kept = torch.zeros(4000, 20).scatter_(1, score[0, :, 0].argsort(-1)[:, 10:], 1.0).mean(0)
    assert ((kept - 0.5).abs() < 5 * math.sqrt(0.25 / 4000)).all()


def test_uniform_numbers_are_uniform() -> None:
    draws = uniform(torch.arange(10_000), torch.zeros(10_000, dtype=torch.long))
    assert 0 <= draws.min() < draws.max() < 1
    assert abs(draws.mean() - 0.5) < 5 * math.sqrt(1 / 12 / 10_000)
    histogram = torch.histc(draws, bins=10, min=0, max=1) / 10_000
    assert ((histogram - 0.1).abs() < 5 * math.sqrt(0.09 / 10_000)).all()


def test_sampled_frequencies_follow_the_softmax_and_top_p_cuts_the_tail() -> None:
    n = 20_000
    logits = torch.tensor([2.0, 1.0, 0.0, -1.0]).expand(n, 4)

    def frequencies(temperature: float, top_p: float) -> torch.Tensor:
        drawn = sample(logits, [(Sampling(temperature, top_p), seed, 5) for seed in range(n)])
        return torch.bincount(drawn, minlength=4) / n

    expected = torch.softmax(logits[0] / 0.7, -1)
    assert_close(frequencies(0.7, 1.0), expected, rtol=0, atol=5 * math.sqrt(0.25 / n))
    cut = torch.softmax(logits[0], -1)[:2]  # 0.644 + 0.237 reach 0.8; the crossing token counts
    assert_close(frequencies(1.0, 0.8)[:2], cut / cut.sum(), rtol=0, atol=5 * math.sqrt(0.25 / n))
    assert frequencies(1.0, 0.8)[2:].sum() == 0
    assert frequencies(1.0, 1e-9)[0] == 1


def test_greedy_rows_are_untouched_by_sampled_neighbours() -> None:
    logits = torch.randn(6, 50, generator=torch.Generator().manual_seed(0))
    drawn = sample(logits, [(Sampling(temperature=row % 2), row, 0) for row in range(6)])
    assert torch.equal(drawn[::2], logits.argmax(-1)[::2])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_mass_is_kept_in_full_precision(dtype: torch.dtype) -> None:
    assert scorer("h2o", dtype).fields() == {"mass": F64 if dtype == F64 else torch.float32}


@pytest.mark.parametrize("content", [(), (8,), (3, 4)])
@pytest.mark.parametrize("view", ["whole", "row", "first rows", "some slots", "list of rows", "some content"])
def test_slots_are_gathered_whole_wherever_they_lie(content: tuple[int, ...], view: str) -> None:
    g = torch.Generator().manual_seed(len(content))
    plane = torch.randn(2, 5, 3, 11, *content, generator=g)
    views = {
        "whole": plane,
        "row": plane[:, 1],
        "first rows": plane[:, :3],
        "some slots": plane[:, 2:, :, 4:9],
        "list of rows": plane[:, [4, 0]],
        "some content": plane[..., :2] if content else plane,
    }
    some = views[view]
    places = 2 if view == "row" else 3
    index = torch.randint(0, some.shape[places], (*some.shape[:places], 6), generator=g)
    wide = index.view(*index.shape, *[1] * len(some.shape[places + 1 :])).expand(
        *index.shape, *some.shape[places + 1 :]
    )
    assert torch.equal(gather(some, index), some.gather(places, wide))
