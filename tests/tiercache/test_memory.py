"""Memory that is really saved: what stores allocate, what a prompt takes before the policy acts, who is admitted."""

import pytest
from tiny import loaded, prompts, requests

from tiercache.cache import TieredCache
from tiercache.engine import Engine, Limits
from tiercache.policy import parse_policy
from tiercache.prefill import prefill
from tiercache.requests import Request, RunStats

QUARTER = {"name": "streaming", "budget": 0.25, "positions": "true"}


def run(policy: object, batch: list[Request], **limits: int) -> tuple[dict[str, tuple[int, ...]], RunStats]:
    engine = Engine(loaded("llama"), Limits(**limits))
    done = {c.key: c.tokens for c in engine.run(batch, parse_policy(policy))}  # type: ignore[arg-type]
    assert engine.stats is not None
    return done, engine.stats


def repeated(count: int, *lengths: int, new: int = 12) -> list[Request]:
    """Each prompt this often, with seeds of their own."""
    texts = prompts(*lengths)
    batch = requests([text for text in texts for _ in range(count)], new=new)
    return [Request(r.key, r.prompt, r.sampling, seed=100 + i) for i, r in enumerate(batch)]


@pytest.mark.parametrize(
    "policy",
    [
        "full",
        {"name": "random", "budget": 0.5, "pin_prompt": False},
        {"name": "h2o", "budget": 0.5},
        {"name": "snapkv_d", "budget": 10, "queries": 4, "recent": 4, "every": 3},
        {"name": "epikv", "budget": 0.5},
        {"name": "quest", "pages": 4, "read_budget": 12, "dense_layers": 0},
        {"name": "qevict", "budget": {"bytes": 0.5}, "window": 2, "every": 4},
        {"name": "adakv", "budget": 0.5, "every": 3},
    ],
    ids=lambda policy: policy if isinstance(policy, str) else str(policy["name"]),
)
def test_repeats_of_a_prompt_are_prefilled_once_and_differ_by_their_seeds_alone(policy: object) -> None:
    batch = repeated(3, 23, 40, 9)
    together, stats = run(policy, batch)
    assert stats.prefill_tokens == 23 + 40 + 9
    assert together == {r.key: run(policy, [r])[0][r.key] for r in batch}
    staggered, stats = run(policy, batch, max_batch=2)
    assert staggered == together


def test_repeats_of_long_prompts_are_prefilled_once_too() -> None:
    """Each alone is more than half of what goes through the model at once."""
    batch = repeated(4, 700, 600)
    together, stats = run("full", batch)
    assert stats.prefill_tokens == 700 + 600
    assert len(together) == 8


def test_a_policy_that_keeps_a_quarter_runs_four_times_the_rows() -> None:
    """Long chains from short prompts, so that what is kept decides and not the prompts."""
    batch = requests(prompts(*[8] * 32), new=120)
    token = loaded("llama").geometry.token_bytes
    budget = 8 * 127 * token
    full, quarter = (run(policy, batch, hbm_kv_budget=budget, max_batch=32)[1] for policy in ("full", QUARTER))
    assert full.max_rows == 8
    assert 28 <= quarter.max_rows <= 32
    assert full.allocated_bytes_peak < 1.5 * budget


def test_prompts_wait_where_they_would_not_fit_before_the_policy_acts() -> None:
    """Sixteen prompts of 100 tokens, of which 25 stay: two are prefilled at a time beside those that run."""
    batch = requests(prompts(*[100] * 16), new=8)
    token = loaded("llama").geometry.token_bytes
    budget = 300 * token
    held: list[int] = []

    def probe(cache: TieredCache, first: int, keys: object, hidden: object) -> None:
        held.append(sum(tiers.hbm for tiers in cache.tiers))

    engine = Engine(loaded("llama"), Limits(max_batch=16, hbm_kv_budget=budget))
    done = list(engine.run(batch, parse_policy(QUARTER), probe))
    assert len(done) == 16
    assert max(held) <= 300
    assert engine.stats is not None
    assert engine.stats.max_rows >= 8, "after the first event a row takes 27 tokens"


@pytest.mark.parametrize(
    "policy", [QUARTER, {"name": "h2o", "budget": 0.25}, {"name": "snapkv", "budget": 0.25}], ids=str
)
def test_an_eviction_to_a_quarter_gives_its_memory_back(policy: dict[str, object]) -> None:
    model = loaded("llama")
    cache = TieredCache(model.geometry, parse_policy(policy), model.device, model.facts)
    prefill(model, cache, prompts(400, 390), [0, 1], 512)
    assert cache.allocated_bytes() < 0.3 * cache.allocated_peak
    held = sum(tiers.hbm for tiers in cache.tiers) * (model.geometry.token_bytes + cache.metadata_token_bytes)
    assert cache.allocated_bytes() <= 1.25 * held


def test_a_long_prompt_does_not_widen_the_running_rows() -> None:
    """Beside it run rows of 20 tokens; in one store all of them would get its 400 slots."""
    batch = [*requests(prompts(*[20] * 15), new=40), *requests(prompts(400), new=4)]
    batch = [Request(str(i), r.prompt, r.sampling, r.seed) for i, r in enumerate(batch)]
    policy = {"name": "streaming", "budget": 24, "positions": "true"}
    stats = run(policy, batch, max_batch=16)[1]
    per_token = stats.allocated_bytes_peak / (loaded("llama").geometry.token_bytes)
    assert per_token < 16 * 60 + 500 < 16 * 400


def test_a_store_grows_by_little_and_gives_back() -> None:
    model = loaded("llama")
    cache = TieredCache(model.geometry, parse_policy("full"), model.device, model.facts)
    prefill(model, cache, prompts(300, 20, 20, 20), [0, 1, 2, 3], 512)
    store = cache.hbm
    for _ in range(200):
        cache.open_slots()
        assert store.capacity[1] <= 1.07 * max(store.extents) + 32
    cache.leave(0)
    cache.open_slots()
    assert store.capacity == (3, 222), "the longest has left: 220, and two that come before the next event has gone"
    assert store.allocated_bytes() == sum(plane.numel() * plane.element_size() for plane in store.planes.values())


def test_bounds_of_pages_take_no_more_than_pages_need() -> None:
    model = loaded("llama")
    policy = parse_policy({"name": "quest", "pages": 4, "read_budget": 16})
    cache = TieredCache(model.geometry, policy, model.device, model.facts)
    prefill(model, cache, prompts(*[40] * 12), list(range(12)), 512)
    assert cache.pages is not None
    assert cache.pages.low.shape[1:4] == (12, 2, 10)


FEW = {"every": 8, "recent": 8}
TIGHT = {
    "full": "full",
    "adakv": {"name": "adakv", "budget": 0.5, **FEW},
    "pyramidkv": {"name": "pyramidkv", "budget": 0.5, **FEW},
    "layer_defensivekv_d": {"name": "layer_defensivekv_d", "budget": 0.5, **FEW},
    "lazyeviction": {"name": "lazyeviction", "budget": 0.5, "every": 16, "recent": 100},
    "kivi": {"name": "kivi", "packed_bits": 2, "window": 8, "every": 8},
    "thinkv": {"name": "thinkv", "budget": 0.5, "segment": 16},
}


@pytest.mark.parametrize("name", TIGHT)
def test_over_a_run_little_more_is_allocated_than_is_held(name: str) -> None:
    """Rows of different lengths, heads of different lengths, tiers of which some stay empty, rows that grow apart."""
    sums = {"allocated": 0, "held": 0}

    def probe(cache: TieredCache, first: int, keys: object, hidden: object) -> None:
        size, metadata = cache.sizes, cache.metadata_token_bytes
        sums["allocated"] += cache.allocated_bytes()
        for tiers in cache.tiers:
            sums["held"] += (tiers.hbm + tiers.ddr) * size.token + size.packed_bytes(tiers.packed, tiers.coarse)
            sums["held"] += tiers.live * metadata

    batch = requests(prompts(*range(120, 200, 10)), new=200)
    list(Engine(loaded("llama"), Limits(max_batch=8)).run(batch, parse_policy(TIGHT[name]), probe))
    assert sums["held"] < sums["allocated"] < 1.10 * sums["held"]


def test_rows_of_a_lane_that_grow_apart_are_parted_and_stay_what_they_are() -> None:
    """All begin with the newest 100 tokens; then a long prompt's row may keep more, and soon does."""
    policy = parse_policy(TIGHT["lazyeviction"])
    batch = requests(prompts(104, 108, 170, 190), new=100)
    lanes: list[int] = []

    def probe(cache: TieredCache, first: int, keys: list[str], hidden: object) -> None:
        cache.check()
        lanes.append(len(keys))

    together = {c.key: c for c in Engine(loaded("llama")).run(batch, policy, probe)}
    assert lanes[0] == 4, "one lane"
    assert lanes[-2:] == [2, 2], "two of two rows"
    for request in batch:
        alone = next(iter(Engine(loaded("llama")).run([request], policy)))
        assert (alone.tokens, alone.ledger) == (together[request.key].tokens, together[request.key].ledger)
