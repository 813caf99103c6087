"""The engine's own decoder layers: the modules' numbers, the modules' weights, and the modules themselves where one
must."""

import shutil

import pytest
import torch
import torch._dynamo
from tiny import CONFIGS, FAMILIES, SHAPE, prompts, requests, tiny
from transformers import Qwen3Config

from tiercache import hf, lean
from tiercache.attention import fused_attention
from tiercache.engine import Engine, Limits
from tiercache.errors import ModelError, RequestError
from tiercache.kernels.layer import kernels
from tiercache.lean import lean_model
from tiercache.model import wrap
from tiercache.policy import parse_policy


class Plain:
    """A step that attends to the chunk alone."""

    hidden_layers = (0, 1)

    def __init__(self) -> None:
        self.outputs: list[torch.Tensor] = []

    def attend(self, layer, query, key, value, scaling):  # type: ignore[no-untyped-def]
        return fused_attention(query, key, value, None, scaling, causal=True).transpose(1, 2)

    def layer_output(self, layer: int, hidden: torch.Tensor) -> None:
        self.outputs.append(hidden)


def fresh(family: str, dtype: torch.dtype = torch.float64):  # type: ignore[no-untyped-def]
    model = tiny.__wrapped__(family).to(dtype)  # one that nobody has listened to
    return wrap(model, None, torch.device("cpu")).model


def states(model, lean: bool):  # type: ignore[no-untyped-def]
    tokens = torch.randint(0, 256, (3, 17), generator=torch.Generator().manual_seed(5))
    kept = hf._lean[model]
    assert kept is not None
    step = Plain()
    hf._lean[model] = kept if lean else None
    try:
        with torch.inference_mode():
            last = hf.hidden_states(model, tokens, torch.arange(17).unsqueeze(0), step)
    finally:
        hf._lean[model] = kept
    return [*step.outputs, last]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("dtype", "close"), [(torch.float64, 1e-12), (torch.float32, 1e-5), (torch.bfloat16, 0.1)])
def test_the_numbers_are_those_of_the_modules(
    family: str, dtype: torch.dtype, close: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lean, "kernels", lambda: None)
    model = fresh(family, dtype)
    for mine, theirs in zip(states(model, True), states(model, False), strict=True):
        assert mine.dtype == dtype
        torch.testing.assert_close(mine, theirs, rtol=close, atol=close)


@pytest.mark.parametrize("family", FAMILIES)
def test_in_c_the_numbers_are_as_close_to_the_exact_ones(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums in another order: neither float32 is the right one, so both are measured against float64."""
    if family == "qwen3":  # whose heads have norms
        monkeypatch.setitem(CONFIGS, "qwen3", lambda: Qwen3Config(**SHAPE, head_dim=32))
    exact, narrow = states(fresh(family), False), fresh(family, torch.float32)
    lean = hf._lean[narrow]
    assert lean is not None
    if kernels() is not None:
        assert lean.head is not None
        assert all(layer._kernel is not None for layer in lean.layers)
    for mine, theirs, true in zip(states(narrow, True), states(narrow, False), exact, strict=True):
        assert (mine - true).abs().max() <= 2 * (theirs - true).abs().max()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_weights_are_the_modules_own(dtype: torch.dtype) -> None:
    """What is written to a module is what the next run reads, however it is written; joining copies nothing."""
    model = fresh("llama", dtype)
    layer, head = model.model.layers[1], model.lm_head
    before = states(model, True)[-1]
    with torch.no_grad():
        layer.self_attn.k_proj.weight.mul_(2)
    layer.mlp.down_proj.weight.data += 1
    layer.input_layernorm.weight = torch.nn.Parameter(layer.input_layernorm.weight * 3)
    head.weight.data.mul_(2)
    hf.take_over(model)
    after = states(model, True)[-1]
    assert not torch.equal(before, after)
    torch.testing.assert_close(after, states(model, False)[-1], rtol=1e-4, atol=1e-4)
    with torch.inference_mode():
        torch.testing.assert_close(hf.logits(model, after), head(after), rtol=1e-4, atol=1e-4)
    gates = hf._lean[model].layers[0].gates  # type: ignore[union-attr]
    joined = gates.weight.untyped_storage().data_ptr()
    assert {part.weight.untyped_storage().data_ptr() for part in gates.parts} == {joined}


def test_parts_that_were_exchanged_since_are_seen() -> None:
    """Other modules, another vocabulary, biases written to: the next run has them, and nothing of the former ones."""
    model = fresh("qwen2", torch.float32)
    attention = model.model.layers[0].self_attn
    attention.q_proj.bias.data = attention.q_proj.bias.data * 2
    attention.o_proj = torch.nn.Linear(64, 64, bias=False)
    model.resize_token_embeddings(100)
    hf.take_over(model)
    assert hf._lean[model] is not None
    tokens, step = torch.randint(0, 100, (2, 9), generator=torch.Generator().manual_seed(1)), Plain()
    with torch.inference_mode():
        hidden = hf.hidden_states(model, tokens, torch.arange(9).unsqueeze(0), step)
        logits, lean = hf.logits(model, hidden), hf._lean.pop(model)
        exact = hf.hidden_states(model, tokens, torch.arange(9).unsqueeze(0), step)
        assert logits.shape == (2, 9, 100)
        torch.testing.assert_close(logits, model.lm_head(exact), rtol=1e-4, atol=1e-4)
    assert lean is not None


def test_layers_of_other_sizes_run_as_they_are() -> None:
    model = fresh("llama", torch.float32)
    mlp = model.model.layers[1].mlp
    mlp.gate_proj, mlp.up_proj, mlp.down_proj = (
        torch.nn.Linear(*n, bias=False) for n in ((64, 90), (64, 90), (90, 64))
    )
    hf.take_over(model)
    torch.testing.assert_close(states(model, True)[-1], states(model, False)[-1], rtol=1e-4, atol=1e-4)


def test_who_listens_is_called() -> None:
    model, calls = fresh("qwen2"), []
    assert hf._lean[model] is not None
    handle = model.model.layers[0].self_attn.o_proj.register_forward_hook(lambda *_: calls.append(1))
    hf.take_over(model)
    assert hf._lean[model] is None
    with torch.inference_mode():
        hf.hidden_states(model, torch.tensor([[1, 2]]), torch.arange(2).unsqueeze(0), Plain())
    assert calls == [1]
    handle.remove()
    hf.take_over(model)
    assert hf._lean[model] is not None


def test_who_has_asked_for_all_hidden_states_once_is_no_listener() -> None:
    model = fresh("llama")
    with hf.prepared(model):
        model.set_attn_implementation("eager")
        model(torch.tensor([[1, 2]]), output_hidden_states=True, output_attentions=True)
    assert model.model.layers[0]._forward_hooks, "transformers' own, which stay"
    hf.take_over(model)
    assert hf._lean[model] is not None


def test_other_layers_are_left_alone() -> None:
    class Adapter(torch.nn.Linear):
        pass

    model = fresh("llama")
    model.model.layers[1].mlp.up_proj = Adapter(64, 96, bias=False)
    assert lean_model(model) is None
    model = fresh("llama")
    model.config.hidden_act = "gelu"
    assert lean_model(model) is None


def test_a_model_that_was_converted_is_joined_anew() -> None:
    model = fresh("llama")
    first = hf._lean[model]
    hf.take_over(model)
    assert hf._lean[model] is first
    model.to(torch.float32)
    hf.prepare(model)
    hf.take_over(model)
    assert hf._lean[model] is not first
    assert states(model, True)[-1].dtype == torch.float32


def test_compiling_what_must_run_as_it_is_is_refused() -> None:
    model = wrap(tiny.__wrapped__("llama"), None, torch.device("cpu"))
    handle = model.model.model.layers[0].self_attn.o_proj.register_forward_hook(lambda *_: None)
    with pytest.raises(ModelError, match="compiled"):
        list(Engine(model, Limits(compiled=True)).run(requests(prompts(5), new=2), parse_policy("full")))
    handle.remove()
    with pytest.raises(RequestError, match="compiled: is true or false"):
        Limits(compiled="yes")  # type: ignore[arg-type]


@pytest.mark.slow
def test_compiled_parts_give_the_same_tokens_and_serve_all_layers() -> None:
    if shutil.which("g++") is None:
        pytest.skip("torch's compiler needs a C++ compiler")
    batch = requests(prompts(9, 20, 14), new=8)
    # What another test has patched would be called as it is.
    fresh = wrap(tiny.__wrapped__("qwen3"), None, torch.device("cpu"))
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    done = [
        {c.key: c.tokens for c in Engine(fresh, Limits(compiled=compiled)).run(batch, parse_policy("full"))}
        for compiled in (False, True)
    ]
    assert done[0] == done[1]
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 2  # before and after attention
