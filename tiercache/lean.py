"""Decoder layers of the supported families without the detours of their modules: the same sums in fewer kernels.

Queries, keys and values come out of one product, gate and up projection out of another, and queries and keys are
rotated together. A model is taken over only where every module is one whose arithmetic is known here and nobody listens
to it: a hook, an adapter or a quantised layer means that the modules are called as they are. The modules' own weights
become views of the joined ones. On a CPU a small model's are copied for our C kernels as well, anew before each run.
"""

import operator
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from itertools import accumulate
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from tiercache.kernels.layer import LayerKernel, Packed, fits, kernels, takes, worth_packing
from tiercache.step import Step

LAYERS = ("LlamaDecoderLayer", "MistralDecoderLayer", "Qwen2DecoderLayer", "Qwen3DecoderLayer")


@dataclass(frozen=True)
class Joined:
    """Linear layers with the same input, as one: weight [sum of outputs, inputs]."""

    parts: tuple[nn.Linear, ...]
    weight: Tensor
    bias: Tensor | None

    @classmethod
    def of(cls, *parts: nn.Linear) -> "Joined":
        weight = torch.cat([part.weight for part in parts])
        bias = None if parts[0].bias is None else torch.cat([part.bias for part in parts])
        start = 0
        for part in parts:
            stop = start + part.out_features
            part.weight.data = weight[start:stop]
            if bias is not None:
                part.bias.data = bias[start:stop]
            start = stop
        return cls(parts, weight, bias)

    @property
    def current(self) -> bool:
        """Whether the modules still hold views of this; a model that was moved or changed its type doesn't."""
        starts = accumulate((part.out_features for part in self.parts), initial=0)
        pairs = [(part, start) for part, start in zip(self.parts, starts, strict=False)]
        weights = all(part.weight.data_ptr() == self.weight[start:].data_ptr() for part, start in pairs)
        bias = self.bias
        return weights and all(
            (part.bias is None) if bias is None else part.bias.data_ptr() == bias[start:].data_ptr()
            for part, start in pairs
        )


class LeanLayer:
    """One decoder layer."""

    def __init__(self, layer: Any) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        self.index: int = attention.layer_idx
        self.dim: int = attention.head_dim
        self.scaling: float = attention.scaling
        self.inputs = Joined.of(attention.q_proj, attention.k_proj, attention.v_proj)
        self.queries, self.keys = (part.out_features // self.dim for part in self.inputs.parts[:2])
        self.output, self.down = attention.o_proj, mlp.down_proj
        self.gates = Joined.of(mlp.gate_proj, mlp.up_proj)
        self.before, self.between = layer.input_layernorm, layer.post_attention_layernorm
        self.query_norm, self.key_norm = (getattr(attention, f"{side}_norm", None) for side in "qk")
        self.eps: float = self.before.variance_epsilon
        self._kernel: LayerKernel | None = None
        self._modules = list(layer.modules())

    def current(self, layer: Any) -> bool:
        """Whether it is still of this layer, with the modules and joined weights that it had."""
        modules = list(layer.modules())
        same = len(modules) == len(self._modules) and all(map(operator.is_, modules, self._modules))
        return same and self.inputs.current and self.gates.current

    @property
    def fits(self) -> bool:
        """Whether the C kernels know these sizes."""
        return fits(self.before.weight.shape[0], self.down.in_features, self.dim)

    def pack(self, whole: bool) -> None:
        """Copies the weights for the C kernel, which runs from here on; unless `whole` it doesn't."""
        self._kernel, found = None, kernels() if whole else None
        if found is None:
            return
        weights = [(each.weight, each.bias) for each in (self.inputs, self.output, self.gates, self.down)]
        norms = [self.before.weight, self.between.weight, *self._head_norms()]
        self._kernel = LayerKernel(found, weights, norms, (self.queries, self.keys, self.dim), self.eps)

    def _head_norms(self) -> tuple[Tensor | None, Tensor | None]:
        query, key = (norm.weight if norm is not None else None for norm in (self.query_norm, self.key_norm))
        return query, key

    def __call__(self, hidden: Tensor, cos: Tensor, sin: Tensor, step: Step, compiled: bool = False) -> Tensor:
        """hidden [rows, n, hidden]; cos and signed sin [rows, 1, n, d]."""
        compiled = compiled and hidden.shape[1] == 1
        if self._kernel is not None and not compiled and takes(hidden, cos):
            query, key, value = self._kernel.before(hidden, cos, sin)
            return self._kernel.after(hidden, step.attend(self.index, query, key, value, self.scaling))
        before, after = compiled_parts(hidden.device.type) if compiled else (_before, _after)
        query, key, value = before(
            hidden, cos, sin, self.before.weight, self.inputs.weight, self.inputs.bias,
            *self._head_norms(), (self.queries, self.keys, self.dim), self.eps,
        )  # fmt: skip
        out = step.attend(self.index, query, key, value, self.scaling)
        result: Tensor = after(
            hidden, out, self.output.weight, self.output.bias, self.between.weight,
            self.gates.weight, self.gates.bias, self.down.weight, self.down.bias, self.eps,
        )  # fmt: skip
        return result


def _norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Root mean square norm, in float32 as the modules have it."""
    if x.dtype == torch.float32:  # the same bits; other types are rounded before the weight, which torch's isn't
        return F.rms_norm(x, x.shape[-1:], weight, eps)
    wide = x.to(torch.float32)
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return weight * wide.to(x.dtype)


# The parts before and after attention take weights as arguments: compiled once, they serve all layers.


def _before(
    hidden: Tensor,
    cos: Tensor,
    sin: Tensor,
    norm: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    query_norm: Tensor | None,
    key_norm: Tensor | None,
    sizes: tuple[int, int, int],
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Rotated queries and keys, and values, each [rows, heads, n, d]. sizes: query heads, KV heads, d."""
    (queries, keys, dim), (rows, n, _) = sizes, hidden.shape
    states = F.linear(_norm(hidden, norm, eps), weight, bias).view(rows, n, -1, dim).transpose(1, 2)
    both, value = states[:, : queries + keys], states[:, queries + keys :]
    if query_norm is not None and key_norm is not None:
        heads = (_norm(both[:, :queries], query_norm, eps), _norm(both[:, queries:], key_norm, eps))
        both = torch.cat(heads, dim=1)
    # -b sin and b (-sin) are the same number: halves change places, and the sign is in the sines.
    both = both * cos + both.unflatten(-1, (2, -1)).flip(-2).flatten(-2) * sin  # type: ignore[no-untyped-call]
    return both[:, :queries], both[:, queries:], value


def _after(
    hidden: Tensor,
    out: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    norm: Tensor,
    gates_weight: Tensor,
    gates_bias: Tensor | None,
    down_weight: Tensor,
    down_bias: Tensor | None,
    eps: float,
) -> Tensor:
    """Attention's output [rows, n, heads, d] -> the layer's [rows, n, hidden]."""
    rows, n, _ = hidden.shape
    hidden = hidden + F.linear(out.reshape(rows, n, -1), weight, bias)
    gates, ups = F.linear(_norm(hidden, norm, eps), gates_weight, gates_bias).chunk(2, dim=-1)
    return hidden + F.linear(F.silu(gates) * ups, down_weight, down_bias)


@cache
def compiled_parts(device: str) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Both parts, by torch's compiler; on a GPU it also records them as graphs, one for each number of rows."""
    mode = "reduce-overhead" if device == "cuda" else None
    before, after = (torch.compile(part, dynamic=True, mode=mode) for part in (_before, _after))
    return before, after


class LeanModel:
    """A model's decoder layers and last norm, and its product with the vocabulary where that is in C."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.layers = [LeanLayer(layer) for layer in model.model.layers]
        self.norm: Callable[[Tensor], Tensor]
        self.head: Packed | None = None

    def current(self, model: PreTrainedModel) -> bool:
        """Whether the modules, and their weights where these were joined, are still the same."""
        layers = list(model.model.layers)
        same = len(layers) == len(self.layers)
        return same and all(mine.current(layer) for mine, layer in zip(self.layers, layers, strict=True))

    def refresh(self, model: PreTrainedModel) -> None:
        """Takes what may have changed since: hooks on the parts around the layers and, for the C kernels where they
        know the model, all weights."""
        first, last, head = self.layers[0], model.model.norm, model.lm_head
        plain = type(last) is type(first.before) and not _touched(last)
        self.norm = partial(_norm, weight=last.weight, eps=last.variance_epsilon) if plain else last
        weights = [*model.model.layers.parameters(), *head.parameters()]
        whole = all(layer.fits for layer in self.layers) and worth_packing(weights)
        for layer in self.layers:
            layer.pack(whole)
        self.head, found = None, kernels() if whole and type(head) is nn.Linear and not _touched(head) else None
        if found is not None:
            self.head = Packed(found, head.weight, head.bias)


def lean_model(model: PreTrainedModel, had: LeanModel | None = None) -> LeanModel | None:
    """The model as it is now, the one that it had where nothing was moved or converted; None where modules must run."""
    if not all(map(_plain, model.model.layers)) or model.config.hidden_act != "silu":
        return None
    lean = had if had is not None and had.current(model) else LeanModel(model)
    lean.refresh(model)
    return lean


def _plain(layer: Any) -> bool:
    if type(layer).__name__ not in LAYERS or not type(layer).__module__.startswith("transformers."):
        return False
    for name, module in layer.named_modules():
        known = type(module) is nn.Linear if name.endswith("_proj") else True
        if not known or _touched(module) or any(parameter.is_meta for parameter in module.parameters(recurse=False)):
            return False
    attention = layer.self_attn
    norms = [layer.input_layernorm, layer.post_attention_layernorm]
    norms += [norm for side in "qk" if (norm := getattr(attention, f"{side}_norm", None)) is not None]
    if len({norm.variance_epsilon for norm in norms}) != 1 or len({p.dtype for p in layer.parameters()}) != 1:
        return False
    biases = {getattr(attention, f"{name}_proj").bias is None for name in "qkv"}
    gates = {part.bias is None for part in (layer.mlp.gate_proj, layer.mlp.up_proj)}
    return len(biases) == 1 and len(gates) == 1


# Who asks a model for all hidden states or attentions leaves transformers' hooks on it for good; outside of that call
# they do nothing.
ASLEEP = "transformers.utils.output_capturing"


def _touched(module: nn.Module) -> bool:
    hooks = [*module._forward_hooks.values(), *module._forward_pre_hooks.values()]
    return "forward" in module.__dict__ or any(getattr(hook, "__module__", None) != ASLEEP for hook in hooks)
