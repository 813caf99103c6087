"""The engine's invariants: what holds under every policy, for every family, whatever the batch."""

import pytest
import torch
from tiny import POLICIES, assert_alone_as_together, generate, loaded, prompts, requests, tiny

from tiercache import hf
from tiercache.cache import TieredCache
from tiercache.engine import Engine, Limits
from tiercache.errors import ModelError, ResourceError
from tiercache.model import wrap
from tiercache.policy import Policy, parse_policy
from tiercache.requests import Request, Sampling

LENGTHS = (5, 40, 33, 70, 17, 1, 40, 64)


def test_full_equals_transformers_generate(family: str) -> None:
    texts = prompts(5, 40, 70)
    model = tiny(family)
    before = model.config._attn_implementation
    model.set_attn_implementation("sdpa")
    expected = []
    for text in texts:
        ids = torch.tensor([text])
        out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=60, do_sample=False)
        expected.append(tuple(out[0, len(text) :].tolist()))
    model.set_attn_implementation(before)
    got = generate(loaded(family), requests(texts, new=60), "full", max_batch=3, prefill_chunk=32)
    assert [completion.tokens for completion in got] == expected


def test_batch_of_eight_equals_batch_of_one(policy: Policy) -> None:
    batch = requests(prompts(*LENGTHS), new=40)
    assert_alone_as_together(loaded("llama"), batch, policy, max_batch=8)


def test_rows_join_and_leave_without_a_trace(policy: Policy) -> None:
    """Sequences of different lengths through three rows: each end makes room in the middle of the others' decoding."""
    texts = prompts(*LENGTHS)
    mixed = [
        Request(r.key, r.prompt, Sampling(max_new_tokens=3 + 7 * i), r.seed) for i, r in enumerate(requests(texts))
    ]
    alone = generate(loaded("qwen2"), mixed, policy, max_batch=1)
    assert [c.tokens for c in generate(loaded("qwen2"), mixed, policy, max_batch=3)] == [c.tokens for c in alone]
    assert [len(c.tokens) for c in alone] == [3 + 7 * i for i in range(len(texts))]


@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_prefill_in_chunks_changes_nothing(policy: Policy, chunk: int) -> None:
    batch = requests(prompts(40, 33, 5), new=24)
    whole = generate(loaded("llama"), batch, policy, prefill_chunk=512)
    assert [c.tokens for c in generate(loaded("llama"), batch, policy, prefill_chunk=chunk)] == [
        c.tokens for c in whole
    ]


@pytest.mark.parametrize("read", ["merge", "stream"])
@pytest.mark.parametrize("hbm", [0.1, 0.3, 0.5, 0.7])
def test_nothing_evicted_means_nothing_changed(family: str, hbm: float, read: str) -> None:
    """Proposition 1 of 2605.09490: the output depends on what is evicted, not on where the rest lies."""
    batch = requests(prompts(5, 40, 33), new=64)
    tiered = {"name": "hierarchy", "hbm": hbm, "evict": 0.0, "every": 8, "recent": 8, "t1_read": read}
    full = generate(loaded(family), batch, "full")
    got = generate(loaded(family), batch, tiered)
    assert [c.tokens for c in got] == [c.tokens for c in full]
    assert all(c.ledger.ddr_tokens > 0 and c.ledger.evicted_tokens == 0 for c in got)


def test_one_policy_leaves_nothing_behind_for_the_next() -> None:
    engine = Engine(loaded("llama"), Limits(max_batch=4))
    batch = requests(prompts(40, 33, 5), new=32)

    def run(name: str) -> dict[str, tuple[int, ...]]:
        return {c.key: c.tokens for c in engine.run(batch, parse_policy(POLICIES[name]))}

    first = run("h2o-ratio")
    interrupted = engine.run(batch, parse_policy(POLICIES["hierarchy"]))
    next(interrupted)
    interrupted.close()
    assert run("hierarchy") != first
    assert run("h2o-ratio") == first


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_storage_agrees_with_the_ledger_at_every_step(
    policy: Policy, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tiers partition the seen tokens; the ledger's bytes are the stored tensors' bytes; KV heads aren't repeated."""
    settle, steps = TieredCache.settle, []

    def checked(cache: TieredCache) -> None:
        evicted = [tier.evicted for tier in cache.tiers]
        settle(cache)
        cache.check()
        g = cache.geometry
        assert g.token_bytes == 2 * g.layers * g.kv_heads * g.head_dim * 8
        counted = sum(tier.hbm + tier.ddr for tier in cache.tiers) * g.token_bytes
        packed = sum(tier.packed for tier in cache.tiers) * cache.sizes.packed
        full_stores = [store for store in cache.stores if not store.packed]
        assert sum(store.keys_values_bytes() for store in full_stores) == counted
        assert sum(store.keys_values_bytes() for store in cache.stores if store.packed) == packed
        assert all(now.evicted >= was for now, was in zip(cache.tiers, evicted, strict=True)), "a token came back"
        steps.append(cache.rows)

    monkeypatch.setattr(TieredCache, "settle", checked)
    generate(loaded(family), requests(prompts(40, 33, 5, 17), new=40), policy, max_batch=3)
    assert len(steps) > 40


def test_positions_are_true_positions(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    """A query's position is the number of tokens seen before it, however few are kept."""
    seen: list[list[int]] = []
    forward = hf.hidden_states

    def spy(model, tokens, positions, step, *more):  # type: ignore[no-untyped-def]
        if tokens.shape[1] == 1:
            seen.append(positions[:, 0].tolist())
        return forward(model, tokens, positions, step, *more)

    monkeypatch.setattr(hf, "hidden_states", spy)
    generate(loaded("llama"), requests(prompts(30), new=40), policy)
    if policy.storage.positions == "true":
        assert seen == [[30 + i] for i in range(39)]
    else:
        assert seen != [[30 + i] for i in range(39)]


def test_a_position_that_drifts_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: positions counted by what is kept give other tokens, so the oracle tests can see the bug."""
    batch = requests(prompts(30), new=40)
    policy = parse_policy(POLICIES["h2o-ratio"])
    true = generate(loaded("llama"), batch, policy)
    from tiercache import lanes as module

    class Drifted(module.DecodeStep):
        def __init__(self, cache: TieredCache) -> None:
            kept = [tier.live for tier in cache.tiers]
            super().__init__(cache)
            self.positions = torch.tensor(kept)

    monkeypatch.setattr(module, "DecodeStep", Drifted)
    assert generate(loaded("llama"), batch, policy)[0].tokens != true[0].tokens


def test_full_keeps_exactly_the_models_kv_bytes(family: str) -> None:
    completion = generate(loaded(family), requests(prompts(30), new=21), "full")[0]
    config = tiny(family).config
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    per_token = 2 * config.num_hidden_layers * config.num_key_value_heads * head_dim * 8
    # The last token's keys and values are never written.
    assert completion.ledger.full_bytes_end == 50 * per_token
    assert completion.ledger.hbm_bytes_peak == 50 * per_token
    assert completion.ledger.hbm_bytes_mean == completion.ledger.full_bytes_mean == per_token * (31 + 50) / 2


def test_eight_bit_tier_is_close_and_no_more_than_close() -> None:
    batch = requests(prompts(40, 33), new=32)
    packed = {"name": "hierarchy", "hbm": 0.1, "evict": 0.0, "packed": 0.9, "every": 8, "recent": 8}
    got = generate(loaded("llama"), batch, packed)
    assert all(c.ledger.packed_tokens > 0 and c.ledger.evicted_tokens == 0 for c in got)
    assert all(c.ledger.packed_bytes_mean > 0 for c in got)


def test_sampling_is_reproducible_and_seeded() -> None:
    texts = prompts(12, 20, 12)
    batch = requests(texts, new=30, temperature=0.8, top_p=0.9)
    first = generate(loaded("llama"), batch, "full", max_batch=1)
    assert [c.tokens for c in generate(loaded("llama"), batch, "full", max_batch=3)] == [c.tokens for c in first]
    other = [Request(r.key, r.prompt, r.sampling, r.seed + 1) for r in batch]
    assert [c.tokens for c in generate(loaded("llama"), other, "full")] != [c.tokens for c in first]


def test_stops_at_the_end_of_sequence_token() -> None:
    batch = requests(prompts(20), new=40)
    free = generate(loaded("llama"), batch, "full")[0]
    stop = free.tokens[10]
    bounded = wrap(tiny("llama"), None, torch.device("cpu"))
    object.__setattr__(bounded, "eos", frozenset({stop}))
    got = generate(bounded, batch, "full")[0]
    assert got.finish == "eos"
    assert got.tokens == free.tokens[: free.tokens.index(stop) + 1]
    assert free.finish == "length"


def test_one_new_token_needs_no_decode_step() -> None:
    completion = generate(loaded("llama"), requests(prompts(20), new=1), POLICIES["h2o-ratio"])[0]
    assert len(completion.tokens) == 1
    assert completion.ledger.hbm_tokens == 10


def test_admission_goes_by_bytes_that_the_policy_keeps() -> None:
    batch = requests(prompts(*[16] * 12), new=49)
    per_token = loaded("llama").geometry.token_bytes
    engine = Engine(loaded("llama"), Limits(max_batch=64, hbm_kv_budget=64 * 3 * per_token))
    rows = {}
    for name in ("full", "streaming-tokens"):
        assert len(list(engine.run(batch, parse_policy(POLICIES[name])))) == 12
        assert engine.stats is not None
        rows[name] = engine.stats.max_rows
    assert rows == {"full": 3, "streaming-tokens": 7}  # 192 tokens // 64, and // 25: the budget and the newest one


@pytest.mark.parametrize(
    ("limits", "new", "error", "words"),
    [
        ({"hbm_kv_budget": 1000}, 10, ResourceError, "hbm_kv_budget"),
        ({}, 2000, ModelError, "max_position_embeddings"),
    ],
)
def test_what_cannot_run_is_refused_before_it_starts(
    limits: dict[str, int], new: int, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        generate(loaded("llama"), requests(prompts(20), new=new), "full", **limits)


def test_sliding_window_is_never_silently_ignored() -> None:
    from tiny import SHAPE
    from transformers import AutoModelForCausalLM, MistralConfig

    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(MistralConfig(**SHAPE, sliding_window=32)).double().eval()
    text = prompts(10)
    ids = torch.tensor(text)
    within = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=22, do_sample=False)
    ready = wrap(model, None, torch.device("cpu"))
    assert generate(ready, requests(text, new=22), "full")[0].tokens == tuple(within[0, 10:].tolist())
    with pytest.raises(ModelError, match="sliding_window"):
        generate(ready, requests(text, new=23), "full")


def test_other_architectures_are_refused_by_name() -> None:
    from transformers import AutoModelForCausalLM, GPT2Config

    model = AutoModelForCausalLM.from_config(GPT2Config(n_layer=1, n_embd=16, n_head=2, vocab_size=32))
    with pytest.raises(ModelError, match=r"gpt2.*llama, mistral, qwen2, qwen3"):
        wrap(model, None, torch.device("cpu"))


def test_running_out_of_memory_halves_the_batch_and_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = requests(prompts(12, 20, 9, 300, 30, 8, 15), new=20)  # the long one is prefilled by itself
    expected = [c.tokens for c in generate(loaded("llama"), batch, "full")]
    forward, failures = hf.hidden_states, []

    def tight(model, tokens, positions, step, *more):  # type: ignore[no-untyped-def]
        if tokens.shape[0] > 2:
            failures.append(tokens.shape[0])
            raise torch.OutOfMemoryError("no room")
        return forward(model, tokens, positions, step, *more)

    monkeypatch.setattr(hf, "hidden_states", tight)
    assert [c.tokens for c in generate(loaded("llama"), batch, "full", max_batch=7)] == expected
    assert failures == [6, 3]
