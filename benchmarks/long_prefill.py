"""Attention scores of a long prompt without the n x n matrix: peak memory of a prefill that scores it.

    python benchmarks/long_prefill.py [--tokens 65536] [--policies h2o snapkv] [--json out.json]

A one-layer model with random weights (4 query heads, 2 KV heads, float32) reads a prompt under each policy, each in a
process of its own, and prints by how much the process's peak memory grew during the run, beside what one head's n x n
matrix would take. The cache itself is part of the growth.
"""

import argparse
import json
import resource
import subprocess
import sys
from pathlib import Path

MIB = 2**20


def measure(policy: str, tokens: int) -> dict[str, float | int | str]:
    """In this process: prefill and one token."""
    import torch
    from transformers import AutoModelForCausalLM, LlamaConfig

    from tiercache.engine import Engine
    from tiercache.model import wrap
    from tiercache.policy import parse_policy
    from tiercache.requests import Request, Sampling

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=tokens + 8,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    model = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    loaded = wrap(model, None, torch.device("cpu"))
    engine, chosen = Engine(loaded), parse_policy({"name": policy, "budget": 0.25})
    run = [Request("short", tuple(range(64)), Sampling(max_new_tokens=2))]
    list(engine.run(run, chosen))  # what libraries allocate once
    before = peak()
    prompt = tuple(i * 31 % 256 for i in range(tokens))
    (done,) = engine.run([Request("long", prompt, Sampling(max_new_tokens=2))], chosen)
    assert engine.stats is not None
    return {
        "policy": policy,
        "tokens": tokens,
        "peak_growth_mib": (peak() - before) / MIB,
        "cache_mib": engine.stats.allocated_bytes_peak / MIB,
        "matrix_of_one_head_mib": 4 * tokens**2 / MIB,
        "prefill_s": engine.stats.prefill_s,
        "kept_tokens": done.ledger.hbm_tokens,
    }


def peak() -> int:
    """Bytes; Linux counts in KiB, macOS in bytes."""
    size = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return size if sys.platform == "darwin" else 1024 * size


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=65_536)
    parser.add_argument("--policies", nargs="+", default=["h2o", "snapkv"])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.here:
        print(json.dumps(measure(arguments.policies[0], arguments.tokens)))
        return
    rows = []
    for policy in arguments.policies:
        command = [sys.executable, __file__, "--here", "--policies", policy, "--tokens", str(arguments.tokens)]
        out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        rows.append(json.loads(out.splitlines()[-1]))
        print(
            f"{policy:<12} {arguments.tokens:,} tokens: peak memory grew by {rows[-1]['peak_growth_mib']:,.0f} MiB "
            f"(cache {rows[-1]['cache_mib']:,.0f}; one head's matrix {rows[-1]['matrix_of_one_head_mib']:,.0f}); "
            f"{rows[-1]['prefill_s']:.1f} s, {rows[-1]['kept_tokens']:,} kept",
            flush=True,
        )
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
