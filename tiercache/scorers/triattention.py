"""Typical queries at coming distances: TriAttention (2604.04921)."""

from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save_file
from torch import Tensor

from tiercache import hf
from tiercache.attention import fused_attention
from tiercache.catalog import geometric
from tiercache.catalog.base import Signal
from tiercache.errors import PolicyError
from tiercache.model import LoadedModel
from tiercache.rope import Rope
from tiercache.scorers.base import Facts, Scorer, View
from tiercache.scorers.pairs import from_pairs, mean_turn, to_pairs

GRID = 2**14  # steps of a score between 0 and 1


class TriAttention(Scorer):
    """Mean over offsets o of sum_f |m_f||k_f| cos(w_f D + arg m_f - arg k_f) + (n_f - |m_f|) |k_f|, D = t + o - i.

    f runs over RoPE's frequencies w_f, m_f is the mean of a head's queries before RoPE as a complex number, n_f the
    mean of their lengths, k_f the key before RoPE, t the newest position, o = 1, 2, 4, … `future`. Each query head's
    scores are z-normalised over the candidates; a token has the greatest over the heads of its scope. That is the
    union over heads: of n tokens kept, each is among the n best of some head.

    The cosines are the real part of m_f conj(k_f) exp(i w_f D), and k_f exp(i w_f i) is the key as it is stored: so
    the sum is a plain product of stored keys with centres turned by the mean rotation.
    """

    needs_keys = True
    shared = True  # the scope is in the maximum

    def __init__(self, signal: Signal, facts: Facts) -> None:
        super().__init__(signal, facts)
        assert isinstance(signal, geometric.TriAttention)
        if facts.rope is None:
            raise PolicyError("scorer 'triattention' needs rotary angles that depend on the position alone.")
        self.rope = facts.rope
        self.offsets = torch.tensor([2**power for power in range(signal.future.bit_length())])
        self.centres = read_centres(signal.centres, facts) if signal.centres else None
        self.query_window = 0 if signal.centres else signal.queries

    def score(self, view: View) -> Tensor:
        assert view.keys is not None, "this scorer needs keys"
        turn = mean_turn(self.rope, self.offsets, view.pos.device, self.wide)
        layers = []
        for layer, keys in enumerate(view.keys):
            mean, length = self._centre(view, layer)
            typical = self.rope.turn(mean, (view.seen - 1).unsqueeze(1))  # [R, Hq, d]
            typical = from_pairs(to_pairs(typical) * turn)
            extra = length - to_pairs(mean).abs()
            layers.append(self._heads(keys.to(self.wide), typical, extra, view.candidate[layer]))
        score = torch.stack(layers)
        over = {"head": (), "layer": (2,), "token": (0, 2)}[self.signal.scope]
        return score.amax(over, keepdim=True) if over else score

    def _heads(self, keys: Tensor, typical: Tensor, extra: Tensor, candidate: Tensor) -> Tensor:
        """Keys [R, H, S, d], typical [R, Hq, d], extra [R, Hq, d / 2] -> [R, H, S], the greatest z of the group."""
        rows, heads, _, dim = keys.shape
        score = torch.matmul(typical.view(rows, heads, -1, dim), keys.transpose(2, 3))  # [R, H, G, S]
        lengths = to_pairs(keys).abs()
        score = score + torch.matmul(extra.view(rows, heads, -1, dim // 2), lengths.transpose(2, 3))
        among = candidate.unsqueeze(2)
        count = among.sum(-1, keepdim=True).clamp_min(1)
        score = score - score.masked_fill(~among, 0).sum(-1, keepdim=True) / count
        deviation = (score.square().masked_fill(~among, 0).sum(-1, keepdim=True) / count).sqrt()
        # Rounded, so that rounding errors don't decide: of two candidates every head gives exactly 1 and -1.
        return ((score / deviation.clamp_min(1e-6)).amax(2) * GRID).round() / GRID

    def _centre(self, view: View, layer: int) -> tuple[Tensor, Tensor]:
        """Mean query before RoPE [R, Hq, d] and mean length of its pairs [R, Hq, d / 2]."""
        if self.centres is not None:
            rows, device = view.pos.shape[1], view.pos.device
            mean, length = (side[layer].to(device, self.wide) for side in self.centres)
            return mean.expand(rows, -1, -1), length.expand(rows, -1, -1)
        assert view.queries is not None, "this scorer needs queries"
        assert view.query_pos is not None, "positions come with the queries"
        known = view.query_pos >= 0
        weight = (known / known.sum(-1, keepdim=True).clamp_min(1)).to(self.wide)[:, None, :, None]
        before = self.rope.turn(view.queries[layer].to(self.wide), -view.query_pos.unsqueeze(1))
        return (before * weight).sum(2), (to_pairs(before).abs() * weight).sum(2)


class _Listener:
    """A forward pass over one whole sequence that sums up its queries before RoPE; see `tiercache.step.Step`."""

    hidden_layers: tuple[int, ...] = ()

    def __init__(self, rope: Rope, layers: int) -> None:
        self.rope, self.tokens = rope, 0
        self.means: list[Tensor | float] = [0.0] * layers  # sums, in float64
        self.lengths: list[Tensor | float] = [0.0] * layers

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        places = torch.arange(query.shape[2], device=query.device)
        before = self.rope.turn(query[0].double(), -places)  # [heads, n, d]
        self.means[layer] = self.means[layer] + before.sum(1)
        self.lengths[layer] = self.lengths[layer] + to_pairs(before).abs().sum(1)
        return fused_attention(query, key, value, None, scaling, causal=True).transpose(1, 2).contiguous()

    def layer_output(self, layer: int, hidden: Tensor) -> None:
        """Nothing is wanted."""

    def finish(self) -> None:
        """Nothing is left to do."""


@torch.inference_mode()
def calibrate(loaded: LoadedModel, prompts: Sequence[Sequence[int]], path: str | Path) -> Path:
    """Writes a model's query centres, averaged over all tokens of these texts, for the knob `centres`.

    The file holds `mean` [layers, query heads, d], the mean query before RoPE, and `length` [layers, query heads,
    d / 2], the mean length of its pairs; float32 safetensors. Texts like those to be generated serve best.

    Raises:
        PolicyError: no token to learn from, or a model whose rotary angles don't depend on the position alone.
    """
    rope, device = loaded.facts.rope, loaded.device
    if rope is None:
        raise PolicyError("calibrate: needs rotary angles that depend on the position alone.")
    hf.check_prepared(loaded.model)
    listener = _Listener(rope, loaded.geometry.layers)
    for prompt in prompts:
        if prompt:
            tokens = torch.tensor([list(prompt)], device=device)
            hf.hidden_states(loaded.model, tokens, torch.arange(len(prompt), device=device).unsqueeze(0), listener)
            listener.tokens += len(prompt)
    if not listener.tokens:
        raise PolicyError("calibrate: needs at least one token of text.")
    sums = {"mean": listener.means, "length": listener.lengths}
    mean = {name: torch.stack([torch.as_tensor(x) for x in side]) / listener.tokens for name, side in sums.items()}
    save_file({name: x.float().cpu().contiguous() for name, x in mean.items()}, path)
    return Path(path)


def read_centres(stamped: str, facts: Facts) -> tuple[Tensor, Tensor]:
    """`mean` and `length` of a file that `calibrate` wrote; the path as the policy holds it, with its digest.

    Raises:
        PolicyError: no such file here, other contents than when the policy was read, or another model's.
    """
    path, _, digest = stamped.partition(geometric.STAMP)
    try:
        content = Path(path).expanduser().read_bytes()
        tensors = load(content)
        found = tensors["mean"], tensors["length"]
    except (OSError, SafetensorError, KeyError) as problem:
        raise PolicyError(f"centres: '{path}' is no file of centres: {problem}.") from problem
    if not sha256(content).hexdigest().startswith(digest):
        raise PolicyError(f"centres: '{path}' is not the file with which the policy was written.")
    g = facts.geometry
    expected = [(g.layers, g.query_heads, g.head_dim), (g.layers, g.query_heads, g.head_dim // 2)]
    if [tuple(side.shape) for side in found] != expected:
        raise PolicyError(f"centres: '{path}' was made with another model: {tuple(found[0].shape)}, not {expected[0]}.")
    return found
