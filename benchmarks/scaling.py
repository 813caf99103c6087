"""What a decode step costs by tokens seen and by tokens kept: milliseconds, for contexts and batches.

    python benchmarks/scaling.py [--context 512 4096 32768] [--batch 1 8] [--budget 512] [--all] [--json out.json]

A budgeted policy's step should cost the same after 32k tokens as after 4k, since it keeps as many; `full` should grow
with the context. A two-layer model with random weights; the median step is printed, and its ratio to the shortest
context of the same policy and batch that has filled the budget.
"""

import statistics

import torch
from measure import Stepper, arguments, random_prompts, report, synthetic

from tiercache.catalog import PRESETS

FEW = ["full", "streaming", "h2o", "snapkv_d", "tova", "keydiff"]
MORE = {
    "streaming": {"positions": "true"},
    "adakv": {"every": 32},  # these three act once, if nothing is said
    "pyramidkv": {"every": 32},
    "snapkv": {"every": 32},
    "keydiff": {"every": 32},
}
# ThinKV keeps some tokens of each thought for good, so with its own 128 it would keep the more the longer it goes on.
# With these it keeps as many tokens after 32,768 as after 4,096.
SEGMENTS = {32_768: 512}
SELDOM = 32  # steps between events at most: every stretch has some
BUDGETED = ["full", *(name for name, preset in PRESETS.items() if preset.required == ("budget",) and name != "qevict")]


def policy_of(name: str, budget: int, context: int) -> object:
    """With this many tokens. QEvict, whose budget is a share of the bytes, isn't among them."""
    if name == "full":
        return "full"
    defaults = PRESETS[name].defaults
    often = {"every": SELDOM} if defaults.get("every", 0) > SELDOM else {}
    whole = {"pin_prompt": False} if defaults.get("pin_prompt") else {}  # or nothing could leave
    fewer = {"segment": SEGMENTS[context]} if "segment" in defaults and context in SEGMENTS else {}
    return {"name": name, "budget": budget, **often, **whole, **fewer, **MORE.get(name, {})}


def main() -> None:
    parser = arguments(__doc__ or "", context=[512, 4096, 32_768], batch=[1], budget=512, new=48, pairs=3)
    parser.add_argument("--policies", nargs="+", default=FEW, choices=BUDGETED)
    parser.add_argument("--all", action="store_true", help="every policy with a budget in tokens")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    longest = max(given.context) + given.new * given.pairs + 1
    loaded = synthetic(layers=2, hidden=128, heads=2, kv_heads=2, context=longest)
    rows = []
    for batch in given.batch:
        for name in BUDGETED if given.all else given.policies:
            steppers = {
                n: Stepper(loaded, random_prompts(loaded, batch, n), policy_of(name, given.budget, n))
                for n in given.context
            }
            spent: dict[int, list[float]] = {n: [] for n in given.context}
            for _ in range(given.new * given.pairs):  # by turns: a slow second of the machine meets all contexts
                for n, step in steppers.items():
                    spent[n].append(step() * 1e3)
            first = next((n for n in given.context if n >= given.budget), None)
            for n, times in spent.items():
                rows.append(
                    {
                        "policy": name,
                        "batch": batch,
                        "tokens_seen": n,
                        "tokens_kept": steppers[n].cache.tiers[0].live,
                        "step_ms": statistics.median(times),
                        "to_shortest": statistics.median(times) / statistics.median(spent[first]) if first else None,
                    }
                )
    report(rows, given)


if __name__ == "__main__":
    main()
