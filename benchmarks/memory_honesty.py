"""Is memory really saved? What stores allocate against what the ledger says, and what the process really holds.

    python benchmarks/memory_honesty.py [--rows 32] [--context 16384] [--json out.json]

First table: every preset over `rows` problems for the reasoner. Allocated bytes (all planes, unused slots and metadata
included) over logical bytes (tokens held, their metadata included), each summed over all steps; prompts differ in
length, as they do in use. Second table: one long prompt through a small model with random weights, in a process of its
own: by how much the process's resident memory has grown with the cache in place, over the ledger's bytes; for the full
cache, and after three quarters were evicted.
"""

import ctypes
import gc
import json
import subprocess
import sys
from collections.abc import Sequence

import psutil
import torch
from measure import arguments, random_prompts, reasoner, report, synthetic

from reasoner.grammar import make_problem
from tiercache.cache import TieredCache
from tiercache.catalog import PRESETS
from tiercache.engine import Engine, Limits
from tiercache.model import LoadedModel
from tiercache.policy import parse_policy
from tiercache.prefill import prefill
from tiercache.requests import Request, Sampling

NEEDED = {
    "budget": 0.5,
    "hbm": 0.5,
    "evict": 0.03,
    "packed_bits": 4,
    "read_budget": 64,
    "chunk_keep": 0.5,
}  # for presets that need a value
QUARTER = {"name": "streaming", "budget": 0.25, "positions": "true"}
SHORT = {"every": 16, "segment": 32, "chunk": 32, "page": 8, "window": 8, "pages": 8}  # chains have 300 tokens


def entry(name: str) -> dict[str, object]:
    preset = PRESETS[name]
    shorter = {knob: value for knob, value in SHORT.items() if preset.defaults.get(knob, 0) > value}
    return {"name": name, **{knob: NEEDED[knob] for knob in preset.required}, **shorter}


class Sums:
    """A probe that adds up bytes over all steps."""

    def __init__(self) -> None:
        self.allocated = self.logical = 0

    def __call__(self, cache: TieredCache, first: int, keys: Sequence[str], hidden: object) -> None:
        size, metadata = cache.sizes, cache.metadata_token_bytes
        for tiers in cache.tiers:
            self.logical += (tiers.hbm + tiers.ddr) * size.token + size.packed_bytes(tiers.packed, tiers.coarse)
            self.logical += tiers.live * metadata
        self.allocated += cache.allocated_bytes()


def over_a_run(loaded: LoadedModel, name: str, rows: int) -> dict[str, object]:
    problems = [make_problem("ledger", 12345, i) for i in range(rows)]
    batch = [
        Request(str(i), tuple(loaded.encode(problem.prompt)[1]), Sampling(max_new_tokens=400))
        for i, problem in enumerate(problems)
    ]
    sums = Sums()
    for _ in Engine(loaded, Limits(max_batch=rows)).run(batch, parse_policy(entry(name)), sums):
        pass
    return {"policy": name, "allocated_over_logical": sums.allocated / sums.logical}


def resident() -> int:
    """Without what the C library keeps of freed memory."""
    gc.collect()
    if sys.platform == "linux":
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    return int(psutil.Process().memory_info().rss)


def one_prompt(policy: str, context: int) -> None:
    """In this process; prints JSON."""
    loaded = synthetic(layers=8, hidden=256, heads=4, kv_heads=4, context=context + 64)
    geometry = loaded.geometry
    with torch.inference_mode():
        chosen = parse_policy("full" if policy == "full" else QUARTER)
        for warm in (64, 1024):  # what libraries keep
            cache = TieredCache(geometry, chosen, loaded.device, loaded.facts)
            prefill(loaded, cache, random_prompts(loaded, 1, warm), [0], 512)
            del cache
        before = resident()
        cache = TieredCache(geometry, chosen, loaded.device, loaded.facts)
        prefill(loaded, cache, random_prompts(loaded, 1, context), [0], 512)
        grown = resident() - before
    held = cache.tiers[0].live
    ledger = held * (geometry.token_bytes + cache.metadata_token_bytes)
    print(json.dumps({"tokens": held, "ledger_mib": ledger / 2**20, "resident_mib": grown / 2**20}))


def main() -> None:
    parser = arguments(__doc__ or "", rows=32, context=16_384, policies=list(PRESETS), one="")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    if given.one:
        one_prompt(given.one, given.context)
        return
    loaded = reasoner()
    report([over_a_run(loaded, name, given.rows) for name in given.policies], given)
    rows = []
    for policy in ("full", "streaming"):
        command = [sys.executable, __file__, f"--one={policy}", f"--context={given.context}"]
        found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        rows.append({"policy": policy, **found, "resident_over_ledger": found["resident_mib"] / found["ledger_mib"]})
    report(rows, given)


if __name__ == "__main__":
    main()
