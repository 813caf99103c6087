"""The only module that touches transformers' internals. Supported: transformers 5.2 and newer; tested on 5.2.0, 5.23.0.

How it works: our attention function is registered under a name of its own, and the decoder layers are called one by
one, without the model's outer `forward`. So no mask is built, no cache object is asked for lengths, and each layer
hands its new keys and values (after RoPE) to our function, together with the extra keyword that carries the `Step`.
Position ids are always explicit: a query's position never depends on how many tokens are kept. Leaving the outer
`forward` out saves a tenth of a small model's decoding step; tests hold the result equal to `generate`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from transformers import AttentionInterface, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast

from tiercache import split as across
from tiercache.blocks import Weights
from tiercache.errors import ModelError
from tiercache.lean import LeanModel, lean_model
from tiercache.rope import Rope
from tiercache.split import AwayStep, Split
from tiercache.step import Step

NAME = "tiercache"
FAMILIES = ("llama", "mistral", "qwen2", "qwen3")


def _attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: None,
    scaling: float,
    tier_step: Step,
    **_: Any,
) -> tuple[Tensor, None]:
    return tier_step.attend(module.layer_idx, query, key, value, scaling), None  # type: ignore[arg-type]


AttentionInterface.register(NAME, _attention)


def check_family(config: Any) -> None:
    """Raises ModelError where the architecture isn't one whose attention is known to fit."""
    if config.model_type not in FAMILIES:
        raise ModelError(f"model_type: '{config.model_type}' is not supported; allowed: {', '.join(FAMILIES)}.")


def prepare(model: PreTrainedModel) -> None:
    """Checks the family and switches the model to our attention.

    Raises:
        ModelError: the architecture isn't one whose attention is known to fit.
    """
    check_family(model.config)
    _tables.pop(model, None)  # the model may have changed its type or device
    model.set_attn_implementation(NAME)


@contextmanager
def prepared(model: PreTrainedModel) -> Iterator[None]:
    """The model with our attention inside the block, and with its own again afterwards.

    Its layers are called as they are: somebody may listen to them at any time.
    """
    before, lean = model.config._attn_implementation, _lean.pop(model, None)
    prepare(model)
    try:
        yield
    finally:
        if lean is not None:
            _lean[model] = lean
        model.set_attn_implementation(before)
        _tables.pop(model, None)


def check_prepared(model: PreTrainedModel) -> None:
    """Before a run. Raises ModelError if somebody has switched the model to another attention since."""
    if model.config._attn_implementation != NAME:
        raise ModelError(
            f"the model's attention is '{model.config._attn_implementation}', not '{NAME}'; wrap the model again."
        )
    if model in _lean:
        take_over(model)


def shorten_lookups(model: PreTrainedModel) -> None:
    """Puts children and parameters where Python looks first; call it once the model is on its device.

    A module finds them through its slow `__getattr__`, a hundred times in a small model's step, a tenth of its time.
    `torch.nn.Module` itself keeps `__dict__` in order when one is assigned anew.
    """
    for module in model.modules():
        for members in (module._modules, module._parameters):
            module.__dict__.update({name: member for name, member in members.items() if member is not None})


def sliding_window(model: PreTrainedModel) -> int | None:
    """The window of the model's sliding attention layers, or None if every layer sees everything.

    Read from the configuration's structure: `layer_types` where a model lists them, else its window itself.
    """
    config = model.config
    window = getattr(config, "sliding_window", None)
    if window is None or getattr(config, "use_sliding_window", True) is False:
        return None
    types = getattr(config, "layer_types", None)
    return None if types is not None and "sliding_attention" not in types else int(window)


def hidden_states(
    model: PreTrainedModel, tokens: Tensor, positions: Tensor, step: Step, compiled: bool = False
) -> Tensor:
    """One forward pass: tokens and positions [rows, n] -> last hidden states [rows, n, hidden], no vocabulary.

    A model that was taken over runs as it was then; call `check_prepared` first where it may have changed.

    compiled: torch's compiler runs what lies between a decode step's attentions, where `take_over` was called.
    """
    decoder = model.model
    hidden = decoder.embed_tokens(tokens)
    cos, sin, signed = _rotation(model, hidden, positions)
    watched, split = step.hidden_layers, _splits.get(model)
    if split is not None:
        step = AwayStep(step, split)
    lean = _lean.get(model)
    if lean is not None:
        cos, signed = cos.unsqueeze(1), signed.unsqueeze(1)
        for index, quick in enumerate(lean.layers):
            if split is not None:
                hidden, cos, signed = split.enter(index, hidden, cos, signed)
            hidden = quick(hidden, cos, signed, step, compiled)
            if index in watched:
                step.layer_output(index, hidden)
        return lean.norm(hidden if split is None else across.move(hidden, split.home))
    for index, layer in enumerate(decoder.layers):
        if split is not None:
            hidden, cos, sin = split.enter(index, hidden, cos, sin)
        # The detour over `__call__` is for hooks alone, and costs a small model some time.
        call = layer if layer._forward_hooks or layer._forward_pre_hooks else layer.forward
        hidden = call(hidden, position_embeddings=(cos, sin), tier_step=step)
        if index in watched:
            step.layer_output(index, hidden)
    return decoder.norm(hidden if split is None else across.move(hidden, split.home))  # type: ignore[no-any-return]


def place(model: PreTrainedModel, split: Split) -> None:
    """Puts a model's parts where they belong and remembers it; what `device_map` has put there doesn't move."""
    if hasattr(model, "hf_device_map"):
        from accelerate.hooks import remove_hook_from_submodules  # type: ignore[import-untyped]

        remove_hook_from_submodules(model)  # they would move hidden states a second time
    decoder = model.model
    for layer, device in zip(decoder.layers, split.layers, strict=True):
        layer.to(device)
    for part in (decoder.embed_tokens, decoder.rotary_emb, decoder.norm, model.lm_head):
        part.to(split.home)
    _splits[model] = split


def split_of(model: PreTrainedModel) -> Split | None:
    """Where the layers of a model lie that was dealt out to several devices."""
    return _splits.get(model)


def device_map(split: Split) -> dict[str, torch.device]:
    """The same in the words of transformers' `from_pretrained`, which then loads each weight where it belongs."""
    parts = ("model.embed_tokens", "model.rotary_emb", "model.norm", "lm_head")
    return {
        **dict.fromkeys(parts, split.home),
        **{f"model.layers.{i}": device for i, device in enumerate(split.layers)},
    }


def weights(model: PreTrainedModel) -> Weights:
    """Bytes of a model's layers and of the rest; a model without storage (`meta`) will do."""
    layers = [sum(p.numel() * p.element_size() for p in layer.parameters()) for layer in model.model.layers]
    whole = sum(p.numel() * p.element_size() for p in model.parameters())
    return Weights(len(layers), max(layers), whole - sum(layers))


TABLE_BYTES = 8 * 2**20  # larger models spend their time elsewhere
STATIC_ROPE = ("default", "linear", "llama3")  # angles that depend on the position alone

_tables: "WeakKeyDictionary[PreTrainedModel, Tensor | None]" = WeakKeyDictionary()
_splits: "WeakKeyDictionary[PreTrainedModel, Split]" = WeakKeyDictionary()
_lean: "WeakKeyDictionary[PreTrainedModel, LeanModel | None]" = WeakKeyDictionary()  # only of models of our own


def take_over(model: PreTrainedModel) -> None:
    """Lets the engine run the decoder layers itself where it knows their arithmetic; see `tiercache.lean`.

    Joins weights, so call it for models that are the engine's own, and again before a run: whoever has registered a
    hook, moved the model or changed its weights since is respected.
    """
    _lean[model] = lean_model(model, _lean.get(model))


def taken_over(model: PreTrainedModel) -> bool:
    """Whether the engine runs this model's layers itself."""
    return _lean.get(model) is not None


def _rotation(model: PreTrainedModel, hidden: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Cosines and sines of RoPE, and sines of which the first half has its sign changed, each [rows, n, head_dim].

    They are looked up where a table of all positions is small.

    The model computes them anew at each step, a twentieth of a small model's decoding. Its own function fills the
    table, so the numbers are the same.
    """
    if model not in _tables:
        _tables[model] = _table(model, hidden)
    table = _tables[model]
    if table is None:
        cos, sin = model.model.rotary_emb(hidden, position_ids=positions)
        return cos, sin, _signed(sin)
    cos, sin, signed = table[positions].unbind(-2)
    return cos, sin, signed


def _signed(sin: Tensor) -> Tensor:
    first, second = sin.chunk(2, dim=-1)
    return torch.cat([-first, second], dim=-1)


def rope(model: PreTrainedModel) -> Rope | None:
    """The model's rotary angles, where they depend on the position alone and cosines aren't scaled."""
    rotary = model.model.rotary_emb
    if _rope_type(model) not in STATIC_ROPE or getattr(rotary, "attention_scaling", 1.0) != 1.0:
        return None
    return Rope(rotary.inv_freq)


def output_weight(model: PreTrainedModel, layer: int) -> Tensor:
    """Weight of a layer's attention output projection, [hidden, query_heads * head_dim], where scorers work."""
    weight: Tensor = model.model.layers[layer].self_attn.o_proj.weight
    return weight if model not in _splits else across.move(weight, _splits[model].home)


def _rope_type(model: PreTrainedModel) -> str:
    return str((getattr(model.config, "rope_parameters", None) or {}).get("rope_type", "dynamic"))


def _table(model: PreTrainedModel, hidden: Tensor) -> Tensor | None:
    """[positions, 3, head_dim]"""
    every = torch.arange(model.config.max_position_embeddings, device=hidden.device).unsqueeze(0)
    cos, sin = model.model.rotary_emb(hidden[:1, :1], position_ids=every[:, :1])
    if _rope_type(model) not in STATIC_ROPE or 3 * cos.numel() * cos.element_size() * every.shape[1] > TABLE_BYTES:
        return None
    cos, sin = model.model.rotary_emb(hidden[:1, :1], position_ids=every)
    return torch.stack([cos[0], sin[0], _signed(sin[0])], dim=1)


def logits(model: PreTrainedModel, hidden: Tensor) -> Tensor:
    """Hidden states [rows, hidden] -> logits [rows, vocab]."""
    lean = _lean.get(model)
    if lean is not None and lean.head is not None:
        return lean.head(hidden)
    return model.lm_head(hidden)  # type: ignore[no-any-return]


def output(logits: Tensor, cache: Any) -> CausalLMOutputWithPast:
    """What a causal language model's `forward` returns."""
    return CausalLMOutputWithPast(logits=logits, past_key_values=cache)
