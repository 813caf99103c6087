"""The network as it is trained: a Llama in the fewest large matrix products, and its export.

It computes what LlamaForCausalLM computes. Query, key and value share one matrix and so do gate and
up, which saves a third of the time of a training step at this size; `to_llama` slices them apart.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

from reasoner.tokenizer import MAX_TOKENS, vocabulary


@dataclass(frozen=True)
class Shape:
    """Sizes of the model; the defaults are those of the shipped weights (605,056 parameters)."""

    vocab: int = len(vocabulary())
    hidden: int = 128
    feed_forward: int = 384
    layers: int = 3
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 32
    rope_theta: float = 10_000.0
    norm_eps: float = 1e-6

    @property
    def qkv_splits(self) -> list[int]:
        """Rows of the query, key and value parts of the fused matrix."""
        kv = self.kv_heads * self.head_dim
        return [self.heads * self.head_dim, kv, kv]


class Block(nn.Module):
    """One decoder layer: attention and SwiGLU, each behind an RMS norm."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        width, attended = shape.hidden, shape.heads * shape.head_dim
        self.attention_norm = nn.Parameter(torch.ones(width))
        self.mlp_norm = nn.Parameter(torch.ones(width))
        self.qkv = _matrix(sum(shape.qkv_splits), width)
        self.gate_up = _matrix(2 * shape.feed_forward, width)
        shrink = 1 / math.sqrt(2 * shape.layers)  # keeps the residual stream at unit scale
        self.out = _matrix(width, attended, shrink)
        self.down = _matrix(width, shape.feed_forward, shrink)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, first: int = 0) -> Tensor:
        """The stream from token `first` on: [batch, tokens - first, hidden].

        x: [batch, tokens, hidden]; cos, sin: [batch, 1, tokens, head_dim].
        """
        s = self.shape
        q, k, v = self.project(x)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        group = s.heads // s.kv_heads
        k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.finish(x[:, first:], mixed[:, :, first:])

    def project(self, x: Tensor) -> tuple[Tensor, ...]:
        """Queries, keys and values before RoPE, each [batch, its heads, tokens, head_dim]."""
        s, (batch, tokens, _) = self.shape, x.shape
        fused = F.linear(F.rms_norm(x, (s.hidden,), self.attention_norm, s.norm_eps), self.qkv)
        heads = fused.view(batch, tokens, -1, s.head_dim).transpose(1, 2)
        return torch.split(heads, [s.heads, s.kv_heads, s.kv_heads], dim=1)

    def finish(self, x: Tensor, mixed: Tensor) -> Tensor:
        """Add attention output and MLP to the stream; mixed: [batch, heads, tokens, head_dim]."""
        s = self.shape
        x = x + F.linear(mixed.transpose(1, 2).flatten(2), self.out)
        fused = F.linear(F.rms_norm(x, (s.hidden,), self.mlp_norm, s.norm_eps), self.gate_up)
        gate, up = fused.chunk(2, dim=-1)
        return x + F.linear(F.silu(gate) * up, self.down)


class Net(nn.Module):
    """The decoder with tied embeddings."""

    def __init__(self, shape: Shape | None = None) -> None:
        super().__init__()
        self.shape = shape or Shape()
        self.embedding = nn.Parameter(0.04 * torch.randn(self.shape.vocab, self.shape.hidden))
        self.blocks = nn.ModuleList(Block(self.shape) for _ in range(self.shape.layers))
        self.norm = nn.Parameter(torch.ones(self.shape.hidden))

    def forward(self, ids: Tensor, positions: Tensor, first: int = 0) -> Tensor:
        """Logits [batch, tokens - first, vocab] of the positions from `first` on.

        ids, positions: [batch, tokens]. Positions need not be consecutive: training skips some.
        """
        cos, sin = self.rotation(positions)
        x = F.embedding(ids, self.embedding)
        *lower, last = self.blocks
        for block in lower:
            x = block(x, cos, sin)
        x = last(x, cos, sin, first)  # nothing is read off the prompt above the last attention
        return F.linear(self.final_norm(x), self.embedding)

    def rotation(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines of RoPE, [batch, 1, tokens, head_dim]; positions: [batch, tokens]."""
        s = self.shape
        exponents = torch.arange(0, s.head_dim, 2).float() / s.head_dim
        angles = positions[:, None, :, None].float() / s.rope_theta**exponents
        angles = torch.cat([angles, angles], dim=-1)
        return angles.cos(), angles.sin()

    def final_norm(self, x: Tensor) -> Tensor:
        """The RMS norm before the tied embedding."""
        return F.rms_norm(x, (self.shape.hidden,), self.norm, self.shape.norm_eps)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """RoPE in the half-split layout of transformers; x: [batch, heads, tokens, head_dim]."""
    low, high = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-high, low], dim=-1) * sin


def to_llama(net: Net) -> LlamaForCausalLM:
    """The same function as a float32 transformers model."""
    s = net.shape
    config = LlamaConfig(
        vocab_size=s.vocab,
        hidden_size=s.hidden,
        intermediate_size=s.feed_forward,
        num_hidden_layers=s.layers,
        num_attention_heads=s.heads,
        num_key_value_heads=s.kv_heads,
        head_dim=s.head_dim,
        rms_norm_eps=s.norm_eps,
        rope_parameters={"rope_type": "default", "rope_theta": s.rope_theta},
        tie_word_embeddings=True,
        max_position_embeddings=MAX_TOKENS,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    model: LlamaForCausalLM = LlamaForCausalLM(config)
    model.load_state_dict({name: part.clone() for name, part in _llama_parts(net).items()})
    model.eval()  # type: ignore[no-untyped-call]
    return model


@torch.no_grad()
def from_llama(model: LlamaForCausalLM) -> Net:
    """The network of a model that `to_llama` made, trained further or loaded from a folder."""
    net = Net()
    state = model.state_dict()
    for name, part in _llama_parts(net).items():  # views into the fused matrices
        part.copy_(state[name])
    return net


def _llama_parts(net: Net) -> dict[str, Tensor]:
    """The weights under the names of transformers, as views."""
    embedding = net.embedding.detach()
    parts = {"model.embed_tokens.weight": embedding, "lm_head.weight": embedding}
    parts["model.norm.weight"] = net.norm.detach()
    for i, block in enumerate(net.blocks):
        assert isinstance(block, Block)
        q, k, v = torch.split(block.qkv.detach(), net.shape.qkv_splits)
        gate, up = block.gate_up.detach().chunk(2)
        layer = {
            "self_attn.q_proj": q,
            "self_attn.k_proj": k,
            "self_attn.v_proj": v,
            "self_attn.o_proj": block.out.detach(),
            "mlp.gate_proj": gate,
            "mlp.up_proj": up,
            "mlp.down_proj": block.down.detach(),
            "input_layernorm": block.attention_norm.detach(),
            "post_attention_layernorm": block.mlp_norm.detach(),
        }
        parts |= {f"model.layers.{i}.{name}.weight": part for name, part in layer.items()}
    return parts


def _matrix(rows: int, columns: int, scale: float = 1.0) -> nn.Parameter:
    return nn.Parameter(torch.randn(rows, columns) * scale / math.sqrt(columns))
