"""What a policy's signal costs while nothing is evicted: decode tokens/s against `full`.

    python benchmarks/scoring_overhead.py [--context 512 2048] [--batch 8] [--json out.json]

Budgets are the whole sequence, so every policy keeps and reads what `full` does. What is left is the scorer: attention
weights that must be written out instead of staying inside a fused kernel, sums beside the tokens, a look at keys.
"""

import torch
from measure import against, arguments, decode_rate, in_turn, random_prompts, report, synthetic

POLICIES = {
    "full": "full",
    "h2o": {"name": "h2o", "budget": 1.0},
    "tova": {"name": "tova", "budget": 1.0},
    "snapkv_d": {"name": "snapkv_d", "budget": 1.0, "every": 128},
    "epikv": {"name": "epikv", "budget": 1.0, "pin_prompt": False},
    "keydiff": {"name": "keydiff", "budget": 1.0, "every": 128},
    "raas": {"name": "raas", "budget": 1.0},
}


def main() -> None:
    parser = arguments(__doc__ or "", context=[512, 2048], batch=8, new=64)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    loaded = synthetic(layers=4, hidden=576, heads=9, kv_heads=3)
    rows = []
    for context in given.context:
        prompts = random_prompts(loaded, given.batch, context)
        runs = {
            name: lambda policy=policy, prompts=prompts: decode_rate(loaded, prompts, policy, given.new)
            for name, policy in POLICIES.items()
        }
        found = in_turn(runs, given.pairs)
        rows += [
            {"context": context, "batch": given.batch, "policy": name, **against(found, name, "full")}
            for name in POLICIES
        ]
    report(rows, given)


if __name__ == "__main__":
    main()
