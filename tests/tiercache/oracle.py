"""A slow reference: the full cache with dead tokens masked, decisions by plain Python over sets and sorted lists.

It shares no code with the engine beyond the policy's configuration: it keeps every key, so positions can't drift; it
masks instead of moving, so no index can be wrong; it decides token by token from the definitions.
"""

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor
from transformers import AttentionInterface, PreTrainedModel

from tiercache.policy import Policy

MASK64 = (1 << 64) - 1


@dataclass
class Oracle:
    """State of one sequence: which tokens live, for each (layer, KV head), and the attention they have received."""

    policy: Policy
    prompt: int
    seed: int
    layers: int
    kv_heads: int
    keys: list[Tensor] = field(default_factory=list)
    values: list[Tensor] = field(default_factory=list)
    seen: int = 0

    def __post_init__(self) -> None:
        places = [(layer, head) for layer in range(self.layers) for head in range(self.kv_heads)]
        self.live: dict[tuple[int, int], set[int]] = {place: set() for place in places}
        self.dead: dict[tuple[int, int], set[int]] = {place: set() for place in places}
        self.mass: dict[tuple[int, int], dict[int, float]] = {place: {} for place in places}

    # The model's side ------------------------------------------------------------------------------------------------

    def begin(self, tokens: int) -> None:
        for place in self.live:
            self.live[place] |= set(range(self.seen, self.seen + tokens))
        self.seen += tokens

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        if layer < len(self.keys):
            self.keys[layer] = torch.cat([self.keys[layer], key], dim=2)
            self.values[layer] = torch.cat([self.values[layer], value], dim=2)
        else:
            self.keys.append(key)
            self.values.append(value)
        keys, values = self.keys[layer], self.values[layer]
        group = query.shape[1] // self.kv_heads
        n, total = query.shape[2], keys.shape[2]
        out = torch.empty_like(query)
        for h in range(query.shape[1]):
            place = (layer, h // group)
            logits = query[0, h] @ keys[0, h // group].T * scaling
            allowed = torch.tensor([i in self.live[place] for i in range(total)])
            causal = torch.arange(total) <= torch.arange(total - n, total).unsqueeze(1)
            logits = logits.masked_fill(~(causal & allowed), -math.inf)
            weights = torch.softmax(logits, dim=-1)
            out[0, h] = weights @ values[0, h // group]
            received = weights.sum(0).tolist()
            for i in self.live[place]:
                self.mass[place][i] = self.mass[place].get(i, 0.0) + received[i]
        return out.transpose(1, 2)

    # The policy's side -----------------------------------------------------------------------------------------------

    def act(self) -> None:
        """The policy's event, if one is due."""
        place_rules = self.policy.placement
        generated = self.seen - self.prompt
        if not place_rules.evicts or generated % self.policy.schedule.every:
            return
        for place in self.live:
            candidates = [i for i in self.live[place] if not self.protected(i)]
            ranked = sorted(candidates, key=lambda i: (self.score(place, i), i))  # worst first; the older of equals
            for i in ranked[: self.how_many(len(self.live[place]), len(candidates), len(self.dead[place]))]:
                self.live[place].discard(i)
                self.dead[place].add(i)

    def limit(self) -> int:
        budget = self.policy.placement.budget
        if budget.tokens is not None:
            return budget.tokens
        if self.policy.placement.pin_prompt:
            return self.prompt + math.ceil(budget.ratio * (self.seen - self.prompt))
        return math.ceil(budget.ratio * self.seen)

    def how_many(self, live: int, candidates: int, dead: int) -> int:
        rules = self.policy.placement
        if rules.budget is not None:
            return min(candidates, max(0, live - self.limit()))
        if rules.compound:
            return math.floor(rules.evict * candidates + 1e-9)
        return max(0, math.floor(rules.evict * (candidates + dead) + 1e-9) - dead)

    def protected(self, i: int) -> bool:
        rules = self.policy.placement
        recent = rules.recent
        if rules.recent_share is not None:
            pinned = self.prompt if rules.pin_prompt and rules.budget.ratio is not None else 0
            recent = max(recent, int(rules.recent_share * (self.limit() - pinned)))
        return (
            i < rules.sinks
            or i >= self.seen - recent
            or (rules.pin_prompt and i < self.prompt)
            or self.prompt <= i < self.prompt + rules.generated_sinks
        )

    def score(self, place: tuple[int, int], i: int) -> float:
        signal = self.policy.scorer
        if signal.scorer == "recency":
            return i
        if signal.scorer == "random":
            state = self.seed ^ unsigned_mix(i + 1)
            if signal.scope == "head":
                state ^= unsigned_mix((place[0] * self.kv_heads + place[1] + 1) << 32)
            return unsigned_mix(state) & 0xFFFFFF
        if signal.scope == "token":
            return sum(self.mass[each][i] for each in self.mass) / len(self.mass)
        return self.mass[place][i]


def unsigned_mix(x: int) -> int:
    """splitmix64's finaliser on Python integers."""
    x &= MASK64
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK64
    return x ^ (x >> 31)


def _attention(module, query, key, value, attention_mask, scaling, oracle, **_):  # type: ignore[no-untyped-def]
    return oracle.attend(module.layer_idx, query, key, value, scaling), None


AttentionInterface.register("oracle", _attention)


@torch.inference_mode()
def generate(
    model: PreTrainedModel, policy: Policy, prompt: tuple[int, ...], new: int, seed: int
) -> tuple[list[int], Oracle]:
    """Greedy tokens of one sequence, and the final state."""
    config = model.config
    oracle = Oracle(policy, len(prompt), seed, config.num_hidden_layers, config.num_key_value_heads)
    before = config._attn_implementation
    model.set_attn_implementation("oracle")
    try:
        tokens: list[int] = []
        inputs = torch.tensor([prompt])
        while len(tokens) < new:
            positions = torch.arange(oracle.seen, oracle.seen + inputs.shape[1]).unsqueeze(0)
            oracle.begin(inputs.shape[1])
            logits = model(input_ids=inputs, position_ids=positions, use_cache=False, oracle=oracle).logits
            tokens.append(int(logits[0, -1].argmax()))
            oracle.act()
            inputs = torch.tensor([tokens[-1:]])
    finally:
        model.set_attn_implementation(before)
    return tokens, oracle
