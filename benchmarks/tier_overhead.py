"""What tiers cost: decode tokens/s of a hierarchy that evicts nothing, and of quantised tiers, against `full`.

    python benchmarks/tier_overhead.py [--context 1024 4096] [--batch 4] [--json out.json]

On a CPU nothing crosses a bus, so this is the price of reading several tiers and of putting them together again, and
for quantised tiers what reading fewer bytes gives back.
"""

import torch
from measure import arguments, decode_rates, synthetic

# Nothing is pinned: the prompt stands for a long chain of thought, half of which is to lie in each tier.
HALF = {"name": "hierarchy", "hbm": 0.5, "evict": 0, "pin_prompt": False}
POLICIES = {
    "full": "full",
    "hierarchy hbm=0.5 evict=0": HALF,
    "hierarchy hbm=0.5 evict=0 stream": {**HALF, "t1_read": "stream"},
    "hierarchy hbm=0.5 packed=0.5": {**HALF, "packed": 0.5},
    "qevict 20% of bytes": {"name": "qevict", "budget": {"bytes": 0.2}},
    "kivi 2 bits": {"name": "kivi", "packed_bits": 2},
}


def main() -> None:
    parser = arguments(__doc__ or "", context=[1024, 4096], batch=4, new=96)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    decode_rates(given, synthetic(layers=4, hidden=576, heads=9, kv_heads=3), POLICIES, "full")


if __name__ == "__main__":
    main()
