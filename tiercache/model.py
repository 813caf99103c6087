"""Loading a model and its tokenizer through transformers, unmodified."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from tiercache import hf
from tiercache.blocks import deal, gpus_needed
from tiercache.errors import ModelError, ResourceError
from tiercache.model_spec import EMBEDDED, ModelSpec
from tiercache.rendering import Rendering, render
from tiercache.scorers import Facts
from tiercache.split import Split, spread
from tiercache.store import Geometry

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LoadedModel:
    """A model ready for the engine: weights on `device`, our attention in place.

    `eos` are the token ids that end a sequence; `max_context` the longest prompt plus output that it can be given:
    its position range, or less where sliding attention would begin to forget (which this engine doesn't imitate).
    `facts` is what scorers may know of the model.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase | None
    geometry: Geometry
    device: torch.device
    eos: frozenset[int]
    max_context: int
    context_reason: str
    facts: Facts

    @property
    def vocab(self) -> int:
        """Token ids are below this."""
        return int(self.model.config.vocab_size)

    @cached_property
    def step_weight_bytes(self) -> int:
        """What a decode step reads of the model: its layers and the output projection. Of embeddings it reads a row."""
        parts = (self.model.model.layers, self.model.model.norm, self.model.lm_head)
        return sum(p.numel() * p.element_size() for part in parts for p in part.parameters())

    def encode(self, prompt: str, chat: bool = False, system: str | None = None) -> tuple[str, list[int]]:
        """Renders and tokenizes a prompt; returns the rendered text and its ids. With `chat`, it is one user turn.

        Raises:
            ModelError: the model has no tokenizer, or no chat template although `chat` asks for one.
        """
        return self.render(prompt, Rendering(chat, system))

    def render(self, prompt: str, how: Rendering, prefix: str = "") -> tuple[str, list[int]]:
        """The same with all that can be said of it, see `tiercache.rendering`."""
        return render(self.tokenizer, prompt, how, prefix)

    def decode(self, tokens: list[int]) -> str:
        """Text of generated ids, special tokens left out."""
        if self.tokenizer is None:
            raise ModelError("tokenizer: this model was loaded without one; read token ids instead of text.")
        return str(self.tokenizer.decode(tokens, skip_special_tokens=True))


def load(
    spec: ModelSpec,
    device: str | torch.device = "cpu",
    others: Sequence[str | torch.device] = (),
    room: int | None = None,
) -> LoadedModel:
    """Loads by hub id, folder or GGUF file.

    Args:
        others: further devices, over which the layers are dealt out: see `tiercache.blocks`.
        room: bytes of each of these; by default those that the first GPU has.

    Raises:
        ModelError: nothing there, an unsupported architecture, or a file that transformers can't read.
        ResourceError: the devices together are too small for the weights.
    """
    device = torch.device(device)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ModelError("device: 'cuda' is not available to this torch; allowed here: cpu.")
    source, kwargs = _source(spec)
    dtype = _dtype(spec, gguf="gguf_file" in kwargs)
    split = None
    try:
        if others:
            split = _split(spec, source, kwargs, dtype, [device, *map(torch.device, others)], room)
            if device.type == "cuda" and "gguf_file" not in kwargs:  # these are dequantised in host memory
                kwargs["device_map"] = hf.device_map(split)
        model = AutoModelForCausalLM.from_pretrained(
            source, dtype=dtype, trust_remote_code=spec.trust_remote_code, **_safetensors(kwargs), **kwargs
        )
        kwargs.pop("device_map", None)
        tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=spec.trust_remote_code, **kwargs)
    except (OSError, ValueError, KeyError) as problem:
        hint = "" if spec.local else " If this machine is offline, download it on a connected one and give the folder."
        raise ModelError(f"models: '{spec.id}' can't be loaded: {problem}.{hint}") from problem
    return wrap(model, tokenizer, device, split)


def _split(
    spec: ModelSpec, source: str, kwargs: dict[str, Any], dtype: Any, devices: list[torch.device], room: int | None
) -> Split:
    """Which layer goes where, counted on a model without storage.

    Raises:
        ResourceError: the weights don't fit.
    """
    config = AutoConfig.from_pretrained(source, trust_remote_code=spec.trust_remote_code, **kwargs)
    hf.check_family(config)
    with torch.device("meta"):
        exact = dtype if dtype != "auto" else config.dtype or torch.float32
        make: Any = AutoModelForCausalLM.from_config
        empty = make(config, dtype=exact, trust_remote_code=spec.trust_remote_code)
    weights, room = hf.weights(empty), room or torch.cuda.get_device_properties(devices[0]).total_memory
    least = gpus_needed(weights, 0, room)
    if least > len(devices):
        raise ResourceError(
            f"cluster.gpus_per_actor: '{spec.id}' takes {least} GPUs of {room / 2**30:.0f} GiB for its weights alone; "
            f"this worker has {len(devices)}."
        )
    return spread(deal(weights, len(devices), room).sizes, devices)


def wrap(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None, device: torch.device, split: Split | None = None
) -> LoadedModel:
    """Prepares a model that is already in memory."""
    hf.prepare(model)
    model.requires_grad_(False)
    model.train(False)
    if split is not None:
        hf.place(model, split)
    else:
        model.to(device)  # type: ignore[arg-type]
    hf.shorten_lookups(model)
    hf.take_over(model)
    return describe(model, tokenizer)


def describe(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None = None) -> LoadedModel:
    """What the engine must know of a model. Changes nothing about it."""
    config = model.config
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    geometry = Geometry(
        layers=config.num_hidden_layers,
        query_heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_dim=head_dim,
        dtype=model.dtype,
    )
    context, reason = config.max_position_embeddings, "max_position_embeddings"
    window = hf.sliding_window(model)
    if window is not None and window < context:
        context, reason = window, "sliding_window"
    facts = Facts(geometry, hf.rope(model), partial(hf.output_weight, model))
    split = hf.split_of(model)
    home = split.home if split is not None else model.device
    return LoadedModel(model, tokenizer, geometry, home, _eos(model, tokenizer), context, reason, facts)


def _source(spec: ModelSpec) -> tuple[str, dict[str, Any]]:
    """What to hand to from_pretrained, and its extra arguments."""
    if spec.id == EMBEDDED:
        from reasoner import WEIGHTS

        return str(WEIGHTS), {}
    if spec.id.endswith(".gguf"):
        path = Path(spec.id).expanduser()
        if not path.is_file():
            raise ModelError(f"models: no file '{spec.id}'.")
        return str(path.parent), {"gguf_file": path.name}
    if spec.local and not Path(spec.id).expanduser().is_dir():
        raise ModelError(f"models: no folder '{spec.id}'.")
    source = str(Path(spec.id).expanduser()) if spec.local else spec.id
    extra: dict[str, Any] = {"revision": spec.revision} if spec.revision else {}
    return source, {**extra, **({"gguf_file": spec.gguf} if spec.gguf else {})}


def _safetensors(kwargs: dict[str, Any]) -> dict[str, Any]:
    """Pickled weights can run code: only safetensors (or GGUF) are read."""
    return {} if "gguf_file" in kwargs else {"use_safetensors": True}


def _dtype(spec: ModelSpec, gguf: bool) -> Any:
    if spec.dtype != "auto":
        return getattr(torch, spec.dtype)
    return torch.float32 if gguf else "auto"


def _eos(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None) -> frozenset[int]:
    generation = getattr(model, "generation_config", None)
    ids = getattr(generation, "eos_token_id", None)
    if ids is None:
        ids = model.config.eos_token_id
    found = set(ids) if isinstance(ids, list) else {ids}
    found.add(getattr(tokenizer, "eos_token_id", None))
    return frozenset(i for i in found if i is not None)
