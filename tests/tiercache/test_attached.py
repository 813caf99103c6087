"""transformers' own `generate` under a policy: the engine's tokens and books, and no trace afterwards."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from tiny import POLICIES, generate, loaded, prompts, tiny
from transformers import GenerationConfig, PreTrainedModel

from tiercache import attach
from tiercache.errors import ModelError, PolicyError
from tiercache.policy import Policy, parse_policy
from tiercache.requests import Completion, Request, Sampling

NEW = 30
LENGTHS = (9, 40, 23)


@contextmanager
def plain(family: str) -> Iterator[PreTrainedModel]:
    """A tiny model with transformers' own attention. The engine's tests leave it with ours."""
    model = tiny(family)
    before = model.config._attn_implementation
    model.set_attn_implementation("sdpa")
    yield model
    model.set_attn_implementation(before)


def padded(texts: list[tuple[int, ...]], side: str = "left") -> dict[str, torch.Tensor]:
    width = max(map(len, texts))
    ids, mask = torch.zeros(2, len(texts), width, dtype=torch.long).unbind(0)
    for row, text in enumerate(texts):
        where = slice(width - len(text), None) if side == "left" else slice(0, len(text))
        ids[row, where], mask[row, where] = torch.tensor(text), 1
    return {"input_ids": ids, "attention_mask": mask}


def run(model: PreTrainedModel, texts: list[tuple[int, ...]], **more: Any) -> list[tuple[int, ...]]:
    inputs = padded(texts)
    settings = {"max_new_tokens": NEW, "do_sample": False, **more}
    out = model.generate(**inputs, **settings)
    return [tuple(row[inputs["input_ids"].shape[1] :].tolist()) for row in out]


def engine(family: str, texts: list[tuple[int, ...]], policy: Policy) -> list[Completion]:
    batch = [Request(str(i), text, Sampling(max_new_tokens=NEW), seed=5 + i) for i, text in enumerate(texts)]
    return generate(loaded(family), batch, policy, max_batch=len(texts))


@pytest.mark.parametrize("lengths", [(33,), LENGTHS])
def test_generate_gives_the_engines_tokens_and_ledgers(policy: Policy, lengths: tuple[int, ...]) -> None:
    texts = prompts(*lengths)
    expected = engine("qwen2", texts, policy)
    with plain("qwen2") as model, attach(model, policy, seed=5) as attached:
        assert run(model, texts) == [completion.tokens for completion in expected]
        assert attached.ledgers == [completion.ledger for completion in expected]


def test_full_is_plain_generate(family: str) -> None:
    texts = prompts(*LENGTHS)
    with plain(family) as model:
        expected = run(model, texts)
        with attach(model, "full") as attached:
            assert run(model, texts) == expected
    assert [ledger.hbm_tokens for ledger in attached.ledgers] == [length + NEW - 1 for length in LENGTHS]


def test_sampling_is_transformers_own() -> None:
    texts = prompts(*LENGTHS)
    drawn = {"do_sample": True, "temperature": 0.8, "top_k": 20, "num_return_sequences": 2}

    def sampled() -> list[tuple[int, ...]]:
        torch.manual_seed(3)
        return run(model, texts, **drawn)

    with plain("llama") as model:
        expected = sampled()
        with attach(model, "full"):
            assert sampled() == expected
        with attach(model, "h2o", budget=0.3):
            first = sampled()
            assert first != expected
            assert sampled() == first


@pytest.mark.parametrize("place", ["argument", "configuration", "model"])
@pytest.mark.parametrize("name", ["h2o-ratio", "hierarchy", "full"])
def test_rows_that_end_early_leave_the_cache(name: str, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An end-of-sequence token in the middle of one row; the others go on, and each row's books end with it."""
    texts, policy = prompts(*LENGTHS), parse_policy(POLICIES[name])
    free = engine("llama", texts, policy)
    stop = free[1].tokens[11]
    cut = [c.tokens[: c.tokens.index(stop) + 1] if stop in c.tokens else c.tokens for c in free]
    settings: dict[str, Any] = {"pad_token_id": stop, "max_new_tokens": NEW, "do_sample": False}
    with plain("llama") as model, attach(model, policy, seed=5) as attached:
        if place == "model":
            monkeypatch.setattr(model.generation_config, "eos_token_id", [stop, 1000])
        else:
            settings["eos_token_id"] = stop
        if place == "configuration":
            settings = {"generation_config": GenerationConfig(**settings)}
        inputs = padded(texts)
        out = model.generate(**inputs, **settings)[:, inputs["input_ids"].shape[1] :].tolist()
        if place == "model":  # an explicit None means no end at all
            assert run(model, texts, eos_token_id=None) == [c.tokens for c in free]
            model.generate(**inputs, **settings)
    assert [tuple(row[: len(short)]) for row, short in zip(out, cut, strict=True)] == cut
    assert len({len(short) for short in cut}) > 1
    alone = [
        generate(loaded("llama"), [Request("0", t, Sampling(max_new_tokens=len(short)), 5 + i)], policy)[0].ledger
        for i, (t, short) in enumerate(zip(texts, cut, strict=True))
    ]
    assert attached.ledgers == alone


def test_one_batch_leaves_nothing_behind_for_the_next() -> None:
    texts = prompts(*LENGTHS)
    with plain("qwen3") as model, attach(model, "h2o", budget=0.4) as attached:
        first, ledgers = run(model, texts), attached.ledgers
        alone = [run(model, [text])[0] for text in texts]
        assert run(model, texts) == first == alone
        assert attached.ledgers == ledgers


def test_a_prompt_in_chunks_gives_the_same_tokens() -> None:
    texts = prompts(*LENGTHS)
    with plain("llama") as model:
        with attach(model, "h2o", budget=0.4):
            whole = run(model, texts)
        with attach(model, "h2o", budget=0.4, prefill_chunk=7):
            assert run(model, texts) == whole


def test_a_loop_of_ones_own() -> None:
    texts = prompts(20)
    expected = engine("llama", texts, parse_policy(POLICIES["h2o-ratio"]))[0]
    with plain("llama") as model, attach(model, POLICIES["h2o-ratio"]) as attached:
        out = model(torch.tensor(texts))
        tokens = [int(out.logits[0, -1].argmax())]
        for _ in range(NEW - 1):
            out = model(torch.tensor([tokens[-1:]]), past_key_values=out.past_key_values)
            tokens.append(int(out.logits[0, -1].argmax()))
        assert out.past_key_values.get_seq_length() == 20 + NEW - 1
    assert tuple(tokens) == expected.tokens
    assert attached.ledgers == [expected.ledger]


def test_the_model_is_as_before_even_after_an_error() -> None:
    texts = prompts(*LENGTHS)
    streaming = [c.tokens for c in engine("llama", texts, parse_policy({"name": "streaming", "budget": 12}))]
    with plain("llama") as model:
        before, expected = dict(model.__dict__), run(model, texts)
        with attach(model, "h2o", budget=0.2):
            assert run(model, texts) != expected
        with pytest.raises(ValueError, match="not used by the model"), attach(model, "full"):
            run(model, texts, no_such_setting=1)
        assert model.__dict__.keys() == before.keys()
        assert model.config._attn_implementation == "sdpa"
        assert run(model, texts) == expected
        with attach(model, "full"), attach(model, "streaming", budget=12):
            assert run(model, texts) == streaming
        assert run(model, texts) == expected


def test_hooks_on_layers_are_called() -> None:
    calls: list[int] = []
    with plain("llama") as model, attach(model, "full"):
        hook = model.model.layers[1].register_forward_hook(lambda *_: calls.append(1))
        run(model, prompts(5))
        hook.remove()
    assert len(calls) == NEW


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"num_beams": 2}, "num_beams=2"),
        ({"use_cache": False}, "use_cache=False"),
        ({"prompt_lookup_num_tokens": 3}, "prompt_lookup_num_tokens=3"),
        ({"assistant_model": "itself"}, "assistant_model"),
        ({"prefill_chunk_size": 8}, "prefill_chunk_size=8"),
        ({"cache_implementation": "static"}, "cache_implementation='static'"),
        ({"output_attentions": True, "return_dict_in_generate": True}, "output_attentions"),
        ({"guidance_scale": 2.0}, "guidance_scale"),
        ({"generation_config": GenerationConfig(num_beams=3)}, "num_beams=3"),
        ({"max_new_tokens": 1010}, "max_position_embeddings of 1024"),
    ],
)
def test_what_cant_work_is_refused(settings: dict[str, Any], words: str) -> None:
    with plain("llama") as model, attach(model, "full") as attached:
        if "assistant_model" in settings:
            settings = {"assistant_model": model}
        with pytest.raises(ModelError, match=words):
            run(model, prompts(20), **settings)
        assert run(model, prompts(20))
        assert len(attached.ledgers) == 1


def test_wrong_inputs_are_refused() -> None:
    ids = torch.tensor(prompts(6))
    with plain("llama") as model, attach(model, "full"):
        with pytest.raises(ModelError, match="pad on the left"):
            model.generate(**padded(prompts(4, 6), side="right"), max_new_tokens=4)
        with pytest.raises(ModelError, match="several prefills"):
            model(ids, past_key_values=model(ids).past_key_values)
        old = model(ids).past_key_values
        model(ids)
        with pytest.raises(ModelError, match="from elsewhere"):
            model(ids[:, :1], past_key_values=old)
        with pytest.raises(ModelError, match="inputs_embeds"):
            model(inputs_embeds=torch.zeros(1, 3, 64))
        with pytest.raises(ModelError, match="labels"):
            model(ids, labels=ids)
        with pytest.raises(ModelError, match="logits_to_keep"):
            model(ids, logits_to_keep=3)
        with pytest.raises(ModelError, match="training mode"):
            model.train()(ids)
        model.eval()
    with plain("llama") as model:
        past = model(ids).past_key_values
        with attach(model, "full"), pytest.raises(ModelError, match="from elsewhere"):
            model(ids, past_key_values=past)
        with pytest.raises(PolicyError, match="budget"), attach(model, "h2o"):
            pass
        with pytest.raises(ModelError, match="training mode"), attach(model.train(), "full"):
            pass
        model.eval()
        assert "forward" not in model.__dict__


def test_a_model_of_another_kind_is_refused() -> None:
    from transformers import LlamaForSequenceClassification

    model = LlamaForSequenceClassification(tiny("llama").config)
    with pytest.raises(ModelError, match="causal"), attach(model, "full"):
        pass
