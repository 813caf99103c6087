"""RaaS, LazyEviction and DefensiveKV in the engine against the oracle."""

import oracle
import pytest
import torch
from recurring_reference import Pages, defensive_layer, lazy_score
from tiny import assert_alone_as_together, generate, loaded, prompts, requests, tiny

from tiercache.cache import TieredCache
from tiercache.errors import PolicyError
from tiercache.policy import parse_policy

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
    assert_alone_as_together(loaded("qwen3"), batch, POLICIES[name], max_batch=4, prefill_chunk=7)


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
