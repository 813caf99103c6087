"""How much of the memory bandwidth a decode step uses: bytes it must read over its time, against a measured copy.

    python benchmarks/roofline.py [--batch 1 8 32] [--context 1024] [--json out.json]
    python benchmarks/roofline.py --layers 28 --hidden 3584 --heads 28 --kv-heads 4 --dtype bfloat16   # a 7B's shape

A step reads all weights once, and the keys and values that are kept. The bandwidth is that of copying 256 MiB, read and
write counted. Random weights; on a CPU the arithmetic is the limit from small batches on.
"""

import torch
from measure import arguments, random_prompts, report, run, synthetic

from tiercache.bandwidth import copy_bandwidth
from tiercache.requests import RunStats


def _step(stats: RunStats) -> float:
    return stats.decode_s / stats.decode_steps


def main() -> None:
    shape = {"layers": 8, "hidden": 512, "heads": 8, "kv-heads": 4}
    parser = arguments(__doc__ or "", batch=[1, 8], context=1024, new=32, pairs=3, dtype="float32", **shape)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    dtype = getattr(torch, given.dtype)
    loaded = synthetic(given.layers, given.hidden, given.heads, given.kv_heads, dtype=dtype)
    weights = loaded.step_weight_bytes
    bandwidth = copy_bandwidth(loaded.device, 2**28)
    rows = []
    for policy in ("full", {"name": "streaming", "budget": 0.25, "positions": "true"}):
        for batch in given.batch:
            prompts = random_prompts(loaded, batch, given.context)
            stats = min((run(loaded, prompts, policy, given.new) for _ in range(given.pairs)), key=_step)
            step, read = _step(stats), stats.decode_read_bytes / stats.decode_steps
            rows.append(
                {
                    "policy": policy if isinstance(policy, str) else policy["name"],
                    "batch": batch,
                    "weights_mib": weights / 2**20,
                    "kv_mib": (read - weights) / 2**20,
                    "step_ms": step * 1e3,
                    "gb_s": read / step / 1e9,
                    "copy_gb_s": bandwidth / 1e9,
                    "share": read / step / bandwidth,
                }
            )
    report(rows, given)


if __name__ == "__main__":
    main()
