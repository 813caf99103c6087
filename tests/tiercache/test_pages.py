"""Quest: the bound holds for every key, all pages are the full cache, the chosen pages are those of a plain loop."""

import oracle
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import generate, loaded, prompts, requests, tiny
from torch import Tensor

from tiercache.errors import PolicyError
from tiercache.pages import PageBounds, page_bounds
from tiercache.policy import parse_policy
from tiercache.store import Geometry


@given(
    st.integers(0, 10**6), st.integers(1, 40), st.integers(1, 9), st.sampled_from([1, 2]), st.sampled_from([0.1, 30.0])
)
@settings(max_examples=100, deadline=None)
def test_no_key_of_a_page_exceeds_its_bound(seed: int, n: int, page: int, group: int, size: float) -> None:
    g = torch.Generator().manual_seed(seed)
    keys = torch.randn(1, 2, n, 8, generator=g, dtype=torch.float64) * size
    query = torch.randn(1, 2, group, 8, generator=g, dtype=torch.float64)
    bounds = PageBounds(Geometry(1, 2 * group, 2, 8, torch.float64), page, torch.device("cpu"))
    written = n // 2  # half as a prompt, half one by one
    bounds.reserve(1, n)
    if written:
        bounds.fill(0, keys[:, :, :written])
    for slot in range(written, n):
        bounds.add(0, keys[0, :, slot : slot + 1].unsqueeze(0), torch.tensor([slot]))
    got = page_bounds(query, bounds.low[0], bounds.high[0])
    products = query @ keys.transpose(2, 3)
    for start in range(0, n, page):
        true = products[..., start : start + page].amax(-1)
        assert (got[..., start // page] >= true - 1e-9 * size).all()
        if min(page, n - start) == 1:
            assert torch.allclose(got[..., start // page], true)


class Reader(oracle.Oracle):
    """Masks the pages that aren't among the best, page by page and head by head."""

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        out = super().attend(layer, query, key, value, scaling)
        reading = self.policy.reading
        if query.shape[2] > 1 or layer < reading.dense_layers:
            return out
        budget, total = reading.read_budget, self.keys[layer].shape[2]
        count = max(3, (budget.tokens or int(budget.ratio * total)) // reading.pages)
        starts = range(0, total, reading.pages)
        for h in range(query.shape[1]):
            heads = (
                [h]
                if not reading.share_pages
                else [x for x in range(query.shape[1]) if x // self.group == h // self.group]
            )
            keys = self.keys[layer][0, h // self.group]

            def bound(start: int, heads: list[int] = heads, keys: Tensor = keys) -> float:
                box = keys[start : start + reading.pages]
                return max(
                    sum(
                        max(float(q * m), float(q * M))
                        for q, m, M in zip(query[0, x, 0], box.amin(0), box.amax(0), strict=True)
                    )
                    for x in heads
                )

            best = sorted(starts, key=lambda s: (s + reading.pages < total, -bound(s), s))[:count]
            read = [i for s in sorted(best) for i in range(s, min(s + reading.pages, total))]
            weights = torch.softmax(query[0, h] @ keys[read].T * scaling, -1)
            out[0, :, h] = weights @ self.values[layer][0, h // self.group, read]
        return out


QUEST = {"name": "quest", "read_budget": 24, "pages": 6, "dense_layers": 1}


@pytest.mark.parametrize("extra", [{}, {"share_pages": True}, {"read_budget": 0.4, "dense_layers": 0}], ids=str)
def test_same_tokens_as_the_slow_reference(extra: dict[str, object]) -> None:
    policy = parse_policy({**QUEST, **extra})
    for request in requests(prompts(40, 11), new=32):
        expected, _ = oracle.generate(tiny("llama"), policy, request.prompt, 32, request.seed, Reader)
        assert list(generate(loaded("llama"), [request], policy)[0].tokens) == expected


def test_all_pages_are_the_full_cache_and_few_are_not() -> None:
    batch = requests(prompts(40, 11, 63), new=32)
    full = [c.tokens for c in generate(loaded("llama"), batch, "full")]
    assert [c.tokens for c in generate(loaded("llama"), batch, {**QUEST, "read_budget": 4096})] == full
    assert [c.tokens for c in generate(loaded("llama"), batch, QUEST)] != full


def test_rows_do_not_depend_on_their_neighbours_and_nothing_is_evicted() -> None:
    batch = requests(prompts(40, 11, 63, 25), new=32)
    together = generate(loaded("llama"), batch, QUEST, max_batch=3)
    assert [c.tokens for c in together] == [generate(loaded("llama"), [r], QUEST)[0].tokens for r in batch]
    assert all(c.ledger.evicted_tokens == 0 for c in together)


def test_pages_go_with_a_budget_and_without_eviction() -> None:
    for entry, words in [
        ({"name": "h2o", "budget": 0.5, "pages": 16, "read_budget": 64}, "nothing is evicted"),
        ({"name": "quest", "read_budget": 64, "positions": "cache"}, "keys at true positions"),
        ({"name": "quest", "read_budget": 64, "pages": None}, "go together"),
        ({"name": "quest"}, "read_budget: 'quest' needs it"),
    ]:
        with pytest.raises(PolicyError, match=words):
            parse_policy(entry)


def test_bounds_count_as_metadata() -> None:
    """A least and a greatest key for each page: over 4 tokens a page, half of the keys and values' own bytes."""
    request = requests(prompts(40), new=16)
    plain, paged = (
        generate(loaded("llama"), request, policy)[0].ledger.metadata_bytes_peak
        for policy in ("full", {"name": "quest", "pages": 4, "read_budget": 16})
    )
    assert paged - plain == 55 * loaded("llama").geometry.token_bytes // 4
