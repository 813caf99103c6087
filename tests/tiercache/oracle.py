"""A slow reference: the full cache with dead tokens masked, decisions by plain Python over sets and sorted lists.

It shares no code with the engine beyond the policy's configuration: it keeps every key, so positions can't drift; it
masks instead of moving, so no index can be wrong; it decides token by token from the definitions.
"""

import cmath
import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor
from transformers import AttentionInterface, PreTrainedModel

from tiercache.budgets import divide, pyramid
from tiercache.policy import Policy

# Scorers by name, each written as the paper has it, in loops: (oracle, (layer, KV head), its live tokens) -> scores.
Reference = Callable[["Oracle", tuple[int, int], list[int]], dict[int, float]]
REFERENCES: dict[str, Reference] = {}

MASK64 = (1 << 64) - 1


@dataclass
class Oracle:
    """State of one sequence: which tokens live, for each (layer, KV head), and the attention they have received."""

    policy: Policy
    prompt: int
    seed: int
    layers: int
    kv_heads: int
    frequencies: list[float] = field(default_factory=list)
    keys: list[Tensor] = field(default_factory=list)
    values: list[Tensor] = field(default_factory=list)
    queries: list[Tensor] = field(default_factory=list)  # of each layer [1, query heads, seen, d], after RoPE
    hidden: list[Tensor] = field(default_factory=list)  # outputs of each decoder layer [1, seen, hidden]
    model: PreTrainedModel | None = None
    seen: int = 0

    def __post_init__(self) -> None:
        places = [(layer, head) for layer in range(self.layers) for head in range(self.kv_heads)]
        self.live: dict[tuple[int, int], set[int]] = {place: set() for place in places}
        self.dead: dict[tuple[int, int], set[int]] = {place: set() for place in places}
        self.mass: dict[tuple[int, int], dict[int, float]] = {place: {} for place in places}
        self.rows: dict[tuple[int, int], list[float]] = {}  # the newest query's attention, by (layer, query head)
        self.angle: list[int] = []  # at which position the model has rotated each token's key
        self.chunks = 0

    # The model's side ------------------------------------------------------------------------------------------------

    def positions(self, tokens: int) -> list[int]:
        """What the model is told: true positions, or those after the tokens that are left."""
        first = self.seen if self.policy.storage.positions == "true" else len(self.live[0, 0])
        return list(range(first, first + tokens))

    def begin(self, tokens: int) -> None:
        self.angle += self.positions(tokens)
        for place in self.live:
            self.live[place] |= set(range(self.seen, self.seen + tokens))
        self.seen += tokens

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        if layer < len(self.keys):
            self.keys[layer] = torch.cat([self.keys[layer], key], dim=2)
            self.values[layer] = torch.cat([self.values[layer], value], dim=2)
            self.queries[layer] = torch.cat([self.queries[layer], query], dim=2)
        else:
            self.keys.append(key)
            self.values.append(value)
            self.queries.append(query)
        keys, values = self.keys[layer], self.values[layer]
        group = query.shape[1] // self.kv_heads
        n, total = query.shape[2], keys.shape[2]
        out = torch.empty_like(query)
        for h in range(query.shape[1]):
            place = (layer, h // group)
            logits = query[0, h] @ self.turned(place, keys[0, h // group]).T * scaling
            allowed = torch.tensor([i in self.live[place] for i in range(total)])
            causal = torch.arange(total) <= torch.arange(total - n, total).unsqueeze(1)
            logits = logits.masked_fill(~(causal & allowed), -math.inf)
            weights = torch.softmax(logits, dim=-1)
            out[0, h] = weights @ values[0, h // group]
            self.rows[layer, h] = weights[-1].tolist()
            received = weights.sum(0).tolist()
            for i in self.live[place]:
                self.mass[place][i] = self.mass[place].get(i, 0.0) + received[i]
        return out.transpose(1, 2)

    def turned(self, place: tuple[int, int], keys: Tensor) -> Tensor:
        """Keys as the query sees them: where tokens are renumbered, each turned to its rank among the live."""
        if self.policy.storage.positions not in ("cache", "rerotated"):
            return keys
        keys = keys.clone()
        half = keys.shape[1] // 2
        for rank, i in enumerate(sorted(self.live[place])):
            by = [cmath.exp(1j * (rank - self.angle[i]) * f) for f in self.frequencies]
            turned = torch.complex(keys[i, :half], keys[i, half:]) * torch.tensor(by, dtype=torch.complex128)
            keys[i] = torch.cat([turned.real, turned.imag])
        return keys

    # The policy's side -----------------------------------------------------------------------------------------------

    @property
    def group(self) -> int:
        """Query heads that share a KV head."""
        return self.queries[0].shape[1] // self.kv_heads

    def step(self) -> None:
        """Called after each forward pass, before the event: a reference with state of its own overrides it."""

    def act(self) -> None:
        """The policy's event, if one is due."""
        rules, every = self.policy.placement, self.policy.schedule.every
        generated = self.seen - self.prompt
        self.before = {place: set(live) for place, live in self.live.items()}  # what scores are computed from
        if rules.chunk is not None:
            self.compress_chunks()
        elif rules.ragged and (generated % every == 0 if every else generated == 0):
            self.evict_shared()
        elif rules.evicts and (generated % every == 0 if every else generated == 0):
            for place in self.live:
                candidates = [i for i in self.live[place] if not self.protected(i)]
                self.evict(
                    place, candidates, self.how_many(len(self.live[place]), len(candidates), len(self.dead[place]))
                )

    def evict(self, place: tuple[int, int], candidates: list[int], count: int) -> None:
        size = self.policy.placement.window
        windows: dict[int, list[int]] = {}
        for i in candidates:
            windows.setdefault(i // size, []).append(i)
        # Worst first; the older of equals.
        scores = self.scores(place)
        ranked = sorted(windows, key=lambda w: (sum(scores[i] for i in windows[w]), w))
        gone = [i for w in ranked for i in windows[w]][:count]
        self.live[place] -= set(gone)
        self.dead[place] |= set(gone)

    def evict_shared(self) -> None:
        """Heads or layers compete: a place keeps what its tokens win."""
        rules, places = self.policy.placement, list(self.live)
        mean = sum(map(len, self.live.values())) // len(places)
        kept = min(mean, self.limit())
        if kept == mean:
            return
        fixed = sum(1 for i in self.live[places[0]] if self.protected(i))
        kept = max(kept, fixed)
        free = {place: {i for i in self.live[place] if not self.protected(i)} for place in places}
        scores = {place: self.scores(place) for place in places}
        best_first = {p: sorted(free[p], key=lambda i: (-scores[p][i], -i)) for p in places}
        sure = {(p, i) for p in places for i in best_first[p][: int(rules.floor * (kept - fixed))]}
        layers = range(self.layers)
        groups = {
            "head": [[place] for place in places],
            "layer": [[place for place in places if place[0] == layer] for layer in layers],
            "all": [places],
        }[rules.share]
        counts = [len(group) * (kept - fixed) for group in groups]
        if rules.pyramid is not None:
            unit = self.kv_heads if rules.share == "head" else 1
            most = [sum(len(free[place]) for place in places if place[0] == layer) // unit for layer in layers]
            parts = divide(len(places) * (kept - fixed) // unit, pyramid(self.layers, rules.pyramid), most)
            counts = [parts[group[0][0]] for group in groups]
        for group, count in zip(groups, counts, strict=True):
            tokens = [(p, i) for p in group for i in free[p]]
            tokens.sort(key=lambda token: (token not in sure, -scores[token[0]][token[1]], -token[1], token[0]))
            for place, i in tokens[count:]:
                self.live[place].discard(i)
                self.dead[place].add(i)

    def compress_chunks(self) -> None:
        rules = self.policy.placement
        while self.seen >= (start := rules.sinks + self.chunks * rules.chunk) + 2 * rules.chunk:
            chunk = range(start, start + rules.chunk)
            self.before = {place: set(live) for place, live in self.live.items()}
            for place in self.live:
                self.evict(place, list(chunk), rules.chunk - math.floor(rules.chunk_keep * rules.chunk + 1e-9))
            self.chunks += 1

    def limit(self) -> int:
        budget = self.policy.placement.budget
        if budget.tokens is not None:
            return budget.tokens
        if budget.bytes is not None:
            return math.floor(budget.bytes * self.seen + 1e-9)
        if self.policy.placement.pin_prompt:
            return self.prompt + math.ceil(budget.ratio * (self.seen - self.prompt))
        return math.ceil(budget.ratio * self.seen)

    def how_many(self, live: int, candidates: int, dead: int) -> int:
        """In whole windows."""
        rules, w = self.policy.placement, self.policy.placement.window
        if rules.budget is not None:
            return min(candidates, math.ceil(max(0, live - self.limit()) / w) * w)
        if rules.compound:
            return math.floor(rules.evict * candidates / w + 1e-9) * w
        return max(0, math.floor(rules.evict * (candidates + dead) / w + 1e-9) * w - dead)

    def protected(self, i: int) -> bool:
        """Whether a token, or one that shares its window, never moves."""
        size = self.policy.placement.window
        first = i // size * size
        return any(self.protects(j) for j in range(first, min(first + size, self.seen))) or first + size > self.seen

    def protects(self, i: int) -> bool:
        rules = self.policy.placement
        recent = rules.recent
        if rules.recent_share is not None:
            pinned = self.prompt if rules.pin_prompt and rules.budget.ratio is not None else 0
            whole = rules.budget.bytes * self.seen if rules.budget.bytes is not None else self.limit() - pinned
            recent = max(recent, int(rules.recent_share * whole))
            recent = min(recent, rules.recent_cap or recent)
        return (
            i < rules.sinks
            or i >= self.seen - recent
            or (rules.pin_prompt and i < self.prompt)
            or self.prompt <= i < self.prompt + rules.generated_sinks
        )

    def scores(self, place: tuple[int, int]) -> dict[int, float]:
        """Of the live tokens; where the scope is wider, the mean over the heads that share them."""
        name, scope = self.policy.scorer.scorer, self.policy.scorer.scope
        if name not in REFERENCES:
            return {i: self.score(place, i) for i in self.live[place]}
        places = {"head": [place], "layer": [p for p in self.live if p[0] == place[0]], "token": list(self.live)}[scope]
        every = [REFERENCES[name](self, each, sorted(self.before[each])) for each in places]
        return {i: sum(scores[i] for scores in every) / len(every) for i in self.live[place]}

    def score(self, place: tuple[int, int], i: int) -> float:
        signal = self.policy.scorer
        if signal.scorer == "recency":
            return i
        if signal.scorer == "random":
            state = self.seed ^ unsigned_mix(i + 1)
            if signal.scope == "head":
                state ^= unsigned_mix((place[0] * self.kv_heads + place[1] + 1) << 32)
            return unsigned_mix(state) & 0xFFFFFF
        if signal.scope == "layer":
            heads = range(self.kv_heads)
            return sum(self.mass[place[0], head][i] for head in heads) / self.kv_heads
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
    model: PreTrainedModel,
    policy: Policy,
    prompt: tuple[int, ...],
    new: int,
    seed: int,
    kind: type[Oracle] = Oracle,
) -> tuple[list[int], Oracle]:
    """Greedy tokens of one sequence, and the final state."""
    config = model.config
    frequencies = model.model.rotary_emb.inv_freq.tolist()
    oracle = kind(policy, len(prompt), seed, config.num_hidden_layers, config.num_key_value_heads, frequencies)
    oracle.model = model
    before = config._attn_implementation
    model.set_attn_implementation("oracle")
    try:
        tokens: list[int] = []
        inputs = torch.tensor([prompt])
        while len(tokens) < new:
            positions = torch.tensor([oracle.positions(inputs.shape[1])])
            oracle.begin(inputs.shape[1])
            out = model(
                input_ids=inputs, position_ids=positions, use_cache=False, oracle=oracle, output_hidden_states=True
            )
            tokens.append(int(out.logits[0, -1].argmax()))
            new_hidden = list(out.hidden_states[1:])
            oracle.hidden = (
                [torch.cat(pair, dim=1) for pair in zip(oracle.hidden, new_hidden, strict=True)]
                if oracle.hidden
                else new_hidden
            )
            oracle.step()
            oracle.act()
            inputs = torch.tensor([tokens[-1:]])
    finally:
        model.set_attn_implementation(before)
    return tokens, oracle
