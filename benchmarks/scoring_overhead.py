"""What a policy's signal costs while nothing is evicted: decode tokens/s against `full`.

    python benchmarks/scoring_overhead.py [--context 512 2048] [--batch 8] [--json out.json]

Budgets are the whole sequence, so every policy keeps and reads what `full` does. What is left is the scorer: attention
weights that must be written out instead of staying inside a fused kernel, sums beside the tokens, a look at keys.
"""

import torch
from measure import arguments, decode_rates, synthetic

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
    decode_rates(given, synthetic(layers=4, hidden=576, heads=9, kv_heads=3), POLICIES, "full")


if __name__ == "__main__":
    main()
