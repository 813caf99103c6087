"""The same retained sets as kvpress 0.5.5, on the same tensors, for every method that it also has.

kvpress needs transformers 5.2, so it wants an environment of its own. From the repository's root:

    python -m venv /tmp/kvpress
    /tmp/kvpress/bin/pip install torch "transformers==5.2.0" kvpress==0.5.5 pydantic safetensors
    PYTHONPATH=. /tmp/kvpress/bin/python benchmarks/parity_kvpress.py [--dtype float32]

Random hidden states pass through the attention layers of a small random Llama (4 query heads on 2 KV heads). kvpress
compresses the resulting keys and values, our cache is filled with the same ones and runs the event that follows a
prefill, and what is left of each (layer, KV head) is compared. Parameters are kvpress' defaults unless a line says
otherwise, and both are given the same number of tokens.

Where a method differs, the next lines switch off what is named as the cause, on one side or the other, until the sets
are equal. The policies' pages say the same under "Our decisions". Exits with 1 if a line turns out otherwise than
stated: a difference where none should be, or none where one is explained.
"""

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from tiercache.cache import TieredCache
from tiercache.policy import parse_policy
from tiercache.prefill_step import PrefillStep
from tiercache.rope import Rope
from tiercache.scorers import Facts
from tiercache.store import Geometry

VERSION = "0.5.5"
DRAWS = 3  # sets of tensors
TOKENS, RATIO = 397, 0.5  # odd, so that rounding shows
KEPT = int(TOKENS * (1 - RATIO))
SINKS, WINDOW, LAG = 4, 64, 128
LAGGED = SINKS + 64 + 64 + TOKENS - SINKS - 2 * LAG  # half of each of two chunks, everything else


@dataclass(frozen=True)
class Case:
    """One line of the table.

    policy   ours, as in a sweep file.
    press    kvpress' (its module -> press).
    note     what this line changes, or why the sets differ.
    equal    whether they should be.
    bare     ours without the newest tokens set apart, which no sweep can ask for.
    """

    policy: Mapping[str, Any]
    press: Callable[[Any], Any]
    note: str = ""
    equal: bool = True
    bare: bool = False

    @property
    def name(self) -> str:
        return str(self.policy["name"])


def summed(kv: Any) -> Any:
    """Observed attention without the division by a token's age."""

    class Summed(kv.ObservedAttentionPress):  # type: ignore[misc]
        def score(self, *tensors: Any) -> Tensor:
            score: Tensor = super().score(*tensors)
            return score * torch.arange(score.shape[-1], 0, -1)

    return Summed(RATIO)


def ratio_for(tokens: int, spare: float = 0.5) -> float:
    """The compression ratio with which kvpress keeps this many. Most methods round down and need something to spare."""
    return 1 - (tokens + spare) / TOKENS


STREAMING = {"name": "streaming", "budget": KEPT, "sinks": SINKS}
SNAPKV = {"name": "snapkv", "budget": KEPT, "queries": WINDOW, "recent": WINDOW}
TOVA = {"name": "tova", "budget": KEPT}
KEYDIFF = {"name": "keydiff", "budget": KEPT}
LAGKV = {"name": "lagkv", "chunk": LAG, "sinks": SINKS, "chunk_keep": 0.5}
EXPECTED = {"name": "expected_attention", "budget": KEPT, "sinks": SINKS, "queries": TOKENS - SINKS}
H2O = {"name": "h2o", "budget": KEPT}
# 200 tokens a layer on average: kvpress' first layer is cut at 397 - 64 = 333, so its last has 67. 119 are too few.
PYRAMID = {"name": "pyramidkv", "budget": 200, "queries": WINDOW, "recent": WINDOW}
NARROW = {"name": "pyramidkv", "budget": 180, "queries": 8, "recent": 8}
ADAKV = {"name": "adakv", "budget": KEPT, "queries": WINDOW, "recent": WINDOW}
SAFE = {**ADAKV, "floor": 0.95}


def pyramid(tokens: int, window: int = WINDOW) -> Callable[[Any], Any]:
    return lambda kv: kv.PyramidKVPress(ratio_for(tokens, 0), window)


def adakv(safe: float) -> Callable[[Any], Any]:
    return lambda kv: kv.AdaKVPress(kv.SnapKVPress(RATIO), safe)


CASES = [
    Case(STREAMING, lambda kv: kv.StreamingLLMPress(RATIO)),
    Case({**STREAMING, "positions": "rerotated"}, lambda kv: kv.KeyRerotationPress(kv.StreamingLLMPress(RATIO))),
    Case(SNAPKV, lambda kv: kv.SnapKVPress(RATIO)),
    Case({**SNAPKV, "budget": RATIO}, lambda kv: kv.SnapKVPress(RATIO), "a share: kvpress rounds down, we up", False),
    Case(TOVA, lambda kv: kv.TOVAPress(RATIO)),
    Case(KEYDIFF, lambda kv: kv.KeyDiffPress(RATIO), "we always keep the newest token", False),
    Case(KEYDIFF, lambda kv: kv.KeyDiffPress(RATIO), "we don't either", bare=True),
    Case(LAGKV, lambda kv: kv.LagKVPress(ratio_for(LAGGED)), "as many tokens as ours"),
    Case(LAGKV, lambda kv: kv.LagKVPress(RATIO), "its ratio is of all tokens, ours of a chunk", False),
    Case(EXPECTED, lambda kv: kv.ExpectedAttentionPress(RATIO), "ours keeps the newest, outside the softmax", False),
    Case(EXPECTED, lambda kv: kv.ExpectedAttentionPress(RATIO), "the newest a candidate like all", bare=True),
    Case(H2O, lambda kv: kv.ObservedAttentionPress(RATIO), "kvpress divides by age and has no window", False),
    Case(H2O, lambda kv: kv.ObservedAttentionPress(RATIO), "ours without window", False, bare=True),
    Case(H2O, summed, "and kvpress' without division", bare=True),
    Case(PYRAMID, pyramid(200), "kvpress' has the window inside, and its top cut", False),
    Case({**PYRAMID, "pyramid": 200 / 67}, pyramid(200), "ours inside too, and as flat", bare=True),
    Case(NARROW, pyramid(180, 8), "window 8, 180 a layer: nothing is cut", False),
    Case(NARROW, pyramid(180, 8), "ours inside too", bare=True),
    Case({**PYRAMID, "budget": 119}, pyramid(119), "119 a layer: kvpress builds no pyramid", False),
    Case({**SNAPKV, "budget": 119}, pyramid(119), "it is then snapkv"),
    Case(ADAKV, adakv(0.2)),
    Case(SAFE, adakv(0.95), "guarantee 0.95: kvpress' has the window inside", False),
    Case(SAFE, adakv(0.95), "ours inside too", bare=True),
]


@dataclass(frozen=True)
class Layer:
    """One attention layer on its tensors, batch 1."""

    module: Any
    hidden: Tensor  # [1, n, hidden]
    query: Tensor  # [1, query heads, n, d], after RoPE; keys and values [1, KV heads, n, d]
    keys: Tensor
    values: Tensor
    weights: Tensor  # [1, query heads, n, n]
    kwargs: Mapping[str, Any] = field(default_factory=dict)


def make_layers(seed: int, dtype: torch.dtype, layers: int = 4, tokens: int = TOKENS) -> list[Layer]:
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb, repeat_kv

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=8,
        hidden_size=64,
        intermediate_size=8,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        initializer_range=0.3,  # attention is then far from uniform
    )
    model: Any = LlamaForCausalLM(config)
    model.to(dtype)
    model.set_attn_implementation("sdpa")
    places = torch.arange(tokens)
    made = []
    for block in model.model.layers:
        module = block.self_attn
        module.rotary_emb = model.model.rotary_emb  # as kvpress does when it is attached to a model
        hidden = torch.randn(1, tokens, 64, dtype=dtype)
        cos, sin = model.model.rotary_emb(hidden, places.unsqueeze(0))
        query, keys, values = (
            side(hidden).view(1, tokens, -1, module.head_dim).transpose(1, 2)
            for side in (module.q_proj, module.k_proj, module.v_proj)
        )
        query, keys = apply_rotary_pos_emb(query, keys, cos, sin)
        logits = query @ repeat_kv(keys, 2).transpose(2, 3) * module.scaling
        weights = logits.masked_fill(places > places.unsqueeze(1), float("-inf")).softmax(-1)
        kwargs = {"position_embeddings": (cos, sin), "cache_position": places}
        made.append(Layer(module, hidden, query, keys, values, weights, kwargs))
    return made


def theirs(press: Any, layers: Sequence[Layer], observed: bool) -> tuple[Tensor, list[Tensor]]:
    """What kvpress keeps, bool [L, KV heads, n], and the keys that it leaves, each [KV heads, kept, d]."""
    kept, left = [], []
    for layer in layers:
        layer.module.masked_key_indices = None
        weights = layer.weights if observed else None
        keys, values = press.compress(layer.module, layer.hidden, layer.keys, layer.values, weights, dict(layer.kwargs))
        mask = (values.unsqueeze(3) == layer.values.unsqueeze(2)).all(-1).any(2)[0]
        if layer.module.masked_key_indices is not None:  # AdaKV masks in place of removing
            mask[layer.module.masked_key_indices[1:]] = False
        kept.append(mask)
        left.append(keys[0])
    return torch.stack(kept), left


def ours(case: Case, layers: Sequence[Layer], seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """What our cache keeps after the prefill, bool [L, KV heads, n]; its slots' positions and keys."""
    policy = parse_policy(case.policy)
    if case.bare:
        policy = replace(policy, placement=policy.placement.model_copy(update={"recent": 0, "recent_share": None}))
    _, heads, tokens, dim = layers[0].keys.shape
    geometry = Geometry(len(layers), layers[0].query.shape[1], heads, dim, layers[0].keys.dtype)
    rope = Rope(layers[0].module.rotary_emb.inv_freq)
    cache = TieredCache(geometry, policy, torch.device("cpu"), Facts(geometry, rope)).staging()
    rows = cache.join([tokens], [seed])
    step = PrefillStep(cache, rows, 0, [tokens], tokens)
    for i, layer in enumerate(layers):
        step.attend(i, layer.query, layer.keys, layer.values, layer.module.scaling)
    step.finish()
    cache.fill(rows)
    pos = cache.row_positions(0)[0].long()
    kept = torch.zeros(len(layers), heads, tokens + 1, dtype=torch.bool)
    kept.scatter_(2, torch.where(pos < 0, tokens, pos), True)
    return kept[..., :tokens], pos, cache.hbm.planes["k"][:, 0, :, : pos.shape[2]]


@dataclass
class Result:
    """equal of total (layer, KV head) sets; share: of what ours keeps, what kvpress keeps too."""

    equal: int = 0
    total: int = 0
    common: int = 0
    kept: int = 0
    keys_differ: bool = False

    @property
    def same(self) -> bool:
        return self.equal == self.total and not self.keys_differ


def compare(kv: Any, case: Case, draws: Sequence[Sequence[Layer]]) -> Result:
    result = Result()
    for layers in draws:
        press = case.press(kv)
        their, left = theirs(press, layers, isinstance(press, kv.ObservedAttentionPress))
        our, pos, keys = ours(case, layers)
        result.equal += int((our == their).all(-1).sum())
        result.total += our.shape[0] * our.shape[1]
        result.common += int((our & their).sum())
        result.kept += int(our.sum())
        if case.policy.get("positions") == "rerotated":  # then the keys themselves are part of the method
            result.keys_differ |= not _same_keys(left, pos, keys)
    return result


def _same_keys(left: Sequence[Tensor], pos: Tensor, keys: Tensor) -> bool:
    """kvpress' are in order of position, ours as they lie."""
    order = pos.argsort(-1).unsqueeze(-1).expand_as(keys)
    return torch.allclose(torch.stack(list(left)), keys.gather(2, order), atol=1e-4)


def chance(kv: Any, dtype: torch.dtype, times: int = 400, tokens: int = 64) -> list[tuple[str, float, float]]:
    """For both: how far the most and the least kept position are from the mean, in standard errors; and the share of
    what one layer keeps that the next keeps too."""
    layers = make_layers(0, dtype, 2, tokens)
    case = Case({"name": "random", "budget": tokens // 2, "pin_prompt": False}, lambda kv: None, bare=True)
    kinds: dict[str, Callable[[int], Tensor]] = {
        "kvpress": lambda i: theirs(kv.RandomPress(RATIO), layers, False)[0],
        "kvpress, seeded": lambda i: theirs(kv.RandomPress(RATIO, seed=i), layers, False)[0],
        "ours": lambda i: ours(case, layers, seed=i)[0],
    }
    found = []
    for name, draw in kinds.items():
        sets = torch.stack([draw(i) for i in range(times)])  # [times, L, H, n]
        frequency = sets[:, 0].double().mean((0, 1))
        error = (0.25 / (times * sets.shape[2])) ** 0.5
        shared = (sets[:, 0] & sets[:, 1]).sum() / sets[:, 0].sum()
        found.append((name, float((frequency - 0.5).abs().max()) / error, float(shared)))
    return found


def load_kvpress() -> ModuleType:
    """Ends the script with how to install it, where it isn't there."""
    if find_spec("kvpress") is None:
        steps = "\n".join(line for line in (__doc__ or "").splitlines() if line.startswith("    "))
        sys.exit(f"kvpress isn't installed here. It needs an environment of its own:\n\n{steps}")
    from importlib.metadata import version

    if version("kvpress") != VERSION:
        print(f"This table is about kvpress {VERSION}; here is {version('kvpress')}.", file=sys.stderr)
    import kvpress  # type: ignore[import-not-found, unused-ignore]

    return kvpress  # type: ignore[no-any-return]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", default="float32", choices=["float32", "float64"])
    arguments = parser.parse_args()
    kv = load_kvpress()
    torch.set_num_threads(1)
    failed = 0
    with torch.inference_mode():
        dtype = getattr(torch, arguments.dtype)
        draws = [make_layers(seed, dtype) for seed in range(DRAWS)]
        print(f"kvpress {VERSION}, {arguments.dtype}, {TOKENS} tokens, half of them kept where nothing else is said\n")
        print(f"{'policy':<20}{'press':<28}{'equal sets':>12}{'in common':>11}  note")
        for case in CASES:
            result = compare(kv, case, draws)
            failed += result.same != case.equal
            press = type(case.press(kv)).__name__
            share = f"{100 * result.common / result.kept:.1f}%"
            print(
                f"{case.name:<20}{press:<28}{f'{result.equal} of {result.total}':>12}{share:>11}  {case.note}", end=""
            )
            print("" if result.same == case.equal else "  <- NOT AS STATED")
        print("\nrandom: only the distribution can agree")
        for name, worst, shared in chance(kv, dtype):
            failed += worst > 4.5
            print(
                f"  {name:<18} worst position {worst:.1f} standard errors off; next layer keeps {shared:.0%} of it too"
            )
    print(f"\n{failed} lines not as stated" if failed else "\nAll as stated.")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
