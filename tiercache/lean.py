"""Decoder layers of the supported families without the detours of their modules: the same sums in fewer kernels.

Queries, keys and values come out of one product, gate and up projection out of another, and queries and keys are
rotated together. A model is taken over only where every module is one whose arithmetic is known here and nobody listens
to it: a hook, an adapter or a quantised layer means that the modules are called as they are. Weights aren't copied: the
modules' own become views of the joined ones.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

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
        starts = [0]
        for part in self.parts[:-1]:
            starts.append(starts[-1] + part.out_features)
        return all(
            part.weight.data_ptr() == self.weight[start:].data_ptr()
            for part, start in zip(self.parts, starts, strict=True)
        )

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


class LeanLayer:
    """One decoder layer."""

    def __init__(self, layer: nn.Module) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        self.index: int = attention.layer_idx  # type: ignore[assignment, union-attr]
        self.dim: int = attention.head_dim  # type: ignore[assignment, union-attr]
        self.scaling: float = attention.scaling  # type: ignore[assignment, union-attr]
        self.inputs = Joined.of(attention.q_proj, attention.k_proj, attention.v_proj)  # type: ignore[arg-type, union-attr]
        self.queries, self.keys = (part.out_features // self.dim for part in self.inputs.parts[:2])
        self.output: nn.Linear = attention.o_proj  # type: ignore[assignment, union-attr]
        self.gates = Joined.of(mlp.gate_proj, mlp.up_proj)  # type: ignore[arg-type, union-attr]
        self.down: nn.Linear = mlp.down_proj  # type: ignore[assignment, union-attr]
        self.width = self.gates.parts[0].out_features
        self.before: nn.Module = layer.input_layernorm  # type: ignore[assignment]
        self.between: nn.Module = layer.post_attention_layernorm  # type: ignore[assignment]
        self.query_norm: nn.Module | None = getattr(attention, "q_norm", None)
        self.key_norm: nn.Module | None = getattr(attention, "k_norm", None)

    @property
    def current(self) -> bool:
        return self.inputs.current and self.gates.current

    def __call__(self, hidden: Tensor, cos: Tensor, sin: Tensor, step: Step) -> Tensor:
        """hidden [rows, n, hidden]; cos and signed sin [rows, 1, n, d]."""
        rows, n, _ = hidden.shape
        states = self.inputs(_norm(hidden, self.before)).view(rows, n, -1, self.dim)
        both = states[:, :, : self.queries + self.keys]
        if self.query_norm is not None and self.key_norm is not None:
            query, key = both.split((self.queries, self.keys), dim=2)  # type: ignore[no-untyped-call]
            both = torch.cat([_norm(query, self.query_norm), _norm(key, self.key_norm)], dim=2)
        both, value = both.transpose(1, 2), states[:, :, self.queries + self.keys :].transpose(1, 2)
        # -b sin and b (-sin) are the same number: halves change places, and the sign is in the sines.
        turned = both * cos + both.unflatten(-1, (2, -1)).flip(-2).flatten(-2) * sin  # type: ignore[no-untyped-call]
        out = step.attend(self.index, turned[:, : self.queries], turned[:, self.queries :], value, self.scaling)
        hidden = hidden + F.linear(out.reshape(rows, n, -1), self.output.weight, self.output.bias)
        gates = self.gates(_norm(hidden, self.between))
        inner = F.silu(gates[..., : self.width]) * gates[..., self.width :]
        return hidden + F.linear(inner, self.down.weight, self.down.bias)


def _norm(x: Tensor, module: nn.Module) -> Tensor:
    """Root mean square norm, in float32 as the modules have it."""
    if x.dtype == torch.float32:  # the same bits; other types are rounded before the weight, which torch's own isn't
        return F.rms_norm(x, x.shape[-1:], module.weight, module.variance_epsilon)  # type: ignore[arg-type]
    wide = x.to(torch.float32)
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + module.variance_epsilon)  # type: ignore[operator]
    return module.weight * wide.to(x.dtype)  # type: ignore[operator]


def lean_layers(model: PreTrainedModel, had: Sequence[LeanLayer] | None = None) -> list[LeanLayer] | None:
    """The model's layers, those that it had where nothing has changed; None where it must run as it is."""
    layers = list(model.model.layers)
    if not all(map(_plain, layers)) or model.config.hidden_act != "silu":
        return None
    if had is not None and len(had) == len(layers) and all(layer.current for layer in had):
        return list(had)
    return [LeanLayer(layer) for layer in layers]


def _plain(layer: nn.Module) -> bool:
    if type(layer).__name__ not in LAYERS or not type(layer).__module__.startswith("transformers."):
        return False
    for name, module in layer.named_modules():
        known = type(module) is nn.Linear if name.endswith("_proj") else True
        touched = module._forward_hooks or module._forward_pre_hooks or "forward" in module.__dict__
        if not known or touched or any(parameter.is_meta for parameter in module.parameters(recurse=False)):
            return False
    attention = layer.self_attn
    biases = {getattr(attention, f"{name}_proj").bias is None for name in "qkv"}
    gates = {part.bias is None for part in (layer.mlp.gate_proj, layer.mlp.up_proj)}  # type: ignore[union-attr]
    return len(biases) == 1 and len(gates) == 1
