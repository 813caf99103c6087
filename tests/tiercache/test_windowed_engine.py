"""SnapKV, TOVA, R-KV and G-KV in the engine against the oracle; long prompts."""

from collections.abc import Callable

import oracle
import pytest
import tiny
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoModelForCausalLM, LlamaConfig
from windowed_reference import WINDOWED, Head, gkv, gkv_memory, rkv, snapkv

from tiercache.catalog import SIGNALS
from tiercache.engine import Engine, Limits
from tiercache.model import wrap
from tiercache.policy import parse_policy

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
