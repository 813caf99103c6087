"""What only a GPU shows: transfers of a host tier, kernels, graphs, and that nothing depends on their order.

    python benchmarks/on_gpu.py [--layers 28 --hidden 3584 --heads 28 --kv-heads 4 --dtype bfloat16] [--json out.json]

Four tables. `order`: the reasoner's tokens with and without a full synchronisation after every kernel
(CUDA_LAUNCH_BLOCKING), for each way of reading a host tier: they must be equal. `decode`: tokens/s against eager `full`
with torch's kernels, for compiled layers, the Triton kernel, and both. `host tier`: decode tokens/s against `full`, and
the share of decode time in which the tier crosses the bus, for HBM ratios 0.3, 0.5 and 0.7, streamed and merged.
`split`: the reasoner's layers dealt out over two GPUs, whose tokens must be those of one; no row where there are fewer
than two. On a machine without a GPU the same runs are made on the CPU, where nothing crosses and no kernel is launched
ahead.
"""

import argparse
import json
import os
import subprocess
import sys
from typing import Any

import torch
from measure import arguments, random_prompts, report, run, synthetic

from reasoner.grammar import make_problem
from tiercache.engine import Engine
from tiercache.kernels import on_cuda
from tiercache.model import LoadedModel, load
from tiercache.model_spec import ModelSpec
from tiercache.policy import parse_policy
from tiercache.requests import Request, Sampling

READS = ("stream", "merge")


def hierarchy(read: str, hbm: float) -> dict[str, Any]:
    return {"name": "hierarchy", "hbm": hbm, "evict": 0, "t1_read": read, "every": 16, "recent": 16}


def tokens(read: str, problems: int, new: int) -> None:
    """In this process; prints JSON."""
    loaded = load(ModelSpec(id="reasoner", dtype="float32"), "cuda" if torch.cuda.is_available() else "cpu")
    prompts = [loaded.encode(make_problem("ledger", 12345, i).prompt)[1] for i in range(problems)]
    batch = [Request(str(i), tuple(p), Sampling(max_new_tokens=new)) for i, p in enumerate(prompts)]
    done = {c.key: c.tokens for c in Engine(loaded).run(batch, parse_policy(hierarchy(read, 0.5)))}
    print(json.dumps(done, sort_keys=True))


def order(given: argparse.Namespace) -> list[dict[str, Any]]:
    rows = []
    for read in READS:
        command = [sys.executable, __file__, f"--one={read}", f"--problems={given.problems}", f"--new={given.new}"]
        found = []
        for blocking in ("0", "1"):
            environment = {**os.environ, "CUDA_LAUNCH_BLOCKING": blocking}
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
            found.append(done.stdout)
        rows.append({"t1_read": read, "problems": given.problems, "equal": str(found[0] == found[1])})
    return rows


def decode(given: argparse.Namespace, loaded: LoadedModel) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for batch in given.batch:
        prompts, base = random_prompts(loaded, batch, given.context), 0.0
        for triton in ("0", "1"):
            for compiled in (False, True):
                os.environ["TIERCACHE_TRITON"] = triton
                rates = [
                    _rate(run(loaded, prompts, "full", given.new, compiled=compiled)) for _ in range(given.pairs + 1)
                ]
                best = max(rates[1:])  # the first warms up
                base = base or best
                kernel = "triton" if on_cuda.fits(torch.empty(0, device=loaded.device)) else "default"
                rows.append({"batch": batch, "kernel": kernel, "compiled": str(compiled), "ratio": best / base})
    os.environ.pop("TIERCACHE_TRITON")
    return rows


def host_tier(given: argparse.Namespace, loaded: LoadedModel) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for batch in given.batch:
        prompts = random_prompts(loaded, batch, given.context)
        full = max(_rate(run(loaded, prompts, "full", given.new)) for _ in range(given.pairs))
        for hbm in (0.3, 0.5, 0.7):
            for read in READS:
                found = [run(loaded, prompts, hierarchy(read, hbm), given.new) for _ in range(given.pairs)]
                stats = max(found, key=_rate)
                share = None if stats.transfer_s is None else stats.transfer_s / stats.decode_s
                rows.append(
                    {"batch": batch, "hbm": hbm, "t1_read": read, "ratio": _rate(stats) / full, "transfer_share": share}
                )
    return rows


def over_two(given: argparse.Namespace) -> list[dict[str, Any]]:
    """Not run by anybody yet: it takes a machine with two GPUs."""
    if torch.cuda.device_count() < 2:
        return []
    spec, found = ModelSpec(id="reasoner", dtype="float32"), []
    for others in ((), ("cuda:1",)):
        loaded = load(spec, "cuda:0", others)
        batch = [
            Request(
                str(i),
                tuple(loaded.encode(make_problem("ledger", 12345, i).prompt)[1]),
                Sampling(max_new_tokens=given.new),
            )
            for i in range(given.problems)
        ]
        found.append({c.key: c.tokens for c in Engine(loaded).run(batch, parse_policy(hierarchy("merge", 0.5)))})
    return [{"gpus": 2, "problems": given.problems, "equal": str(found[0] == found[1])}]


def _rate(stats: Any) -> float:
    return float(stats.decode_tokens / stats.decode_s)


def main() -> None:
    shape = {"layers": 8, "hidden": 512, "heads": 8, "kv-heads": 4, "dtype": "float32"}
    parser = arguments(__doc__ or "", batch=[1, 8], context=1024, new=48, pairs=3, problems=16, one="", **shape)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    if given.one:
        tokens(given.one, given.problems, given.new)
        return
    loaded = synthetic(given.layers, given.hidden, given.heads, given.kv_heads, dtype=getattr(torch, given.dtype))
    tables = {
        "order": order(given),
        "decode": decode(given, loaded),
        "host tier": host_tier(given, loaded),
        "split": over_two(given),
    }
    report([{"table": name, **row} for name, rows in tables.items() for row in rows], given)


if __name__ == "__main__":
    main()
