"""What the measuring scripts share: models, prompts, runs taken in turn, and a table with the machine named.

Times on shared machines drift, so whatever is compared is run in turn, several times, and what is printed is the ratio
within each turn: its median, and its range.
"""

import argparse
import json
import platform
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from tiercache import hf
from tiercache.cache import TieredCache
from tiercache.engine import Engine, Limits, decode
from tiercache.model import LoadedModel, load, wrap
from tiercache.model_spec import ModelSpec
from tiercache.policy import parse_policy
from tiercache.prefill import prefill
from tiercache.requests import Request, RunStats, Sampling

Tokens = list[list[int]]


def arguments(description: str, **defaults: Any) -> argparse.ArgumentParser:
    """--threads, --pairs, --json, and one option for each default."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write the rows there")
    for name, value in {"pairs": 5, **defaults}.items():
        many = isinstance(value, list)
        kind = type(value[0] if many else value)
        parser.add_argument(f"--{name}", type=kind, default=value, **({"nargs": "+"} if many else {}))
    return parser


def synthetic(
    layers: int, hidden: int, heads: int, kv_heads: int, context: int = 65_536, dtype: torch.dtype = torch.float32
) -> LoadedModel:
    """A llama of this shape with random weights, which never ends a sequence: for times and bytes, not for text."""
    torch.manual_seed(0)
    config = LlamaConfig(
        num_hidden_layers=layers,
        hidden_size=hidden,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        intermediate_size=3 * hidden,
        vocab_size=512,
        max_position_embeddings=context,
        eos_token_id=None,
        bos_token_id=None,
        pad_token_id=None,
    )
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return wrap(AutoModelForCausalLM.from_config(config, dtype=dtype), None, device)


def endless(loaded: LoadedModel) -> LoadedModel:
    """The same model, which ends no sequence before its limit."""
    object.__setattr__(loaded, "eos", frozenset())
    return loaded


def reasoner() -> LoadedModel:
    return endless(load(ModelSpec(id="reasoner", dtype="float32")))


def random_prompts(loaded: LoadedModel, rows: int, length: int, seed: int = 1) -> Tokens:
    rng = random.Random(seed)
    return [[rng.randrange(3, loaded.vocab) for _ in range(length)] for _ in range(rows)]


def run(loaded: LoadedModel, prompts: Tokens, policy: Any, new: int, **limits: Any) -> RunStats:
    """One run of all prompts at once, greedy; what the engine measured."""
    engine = Engine(loaded, Limits(**{"max_batch": len(prompts), **limits}))
    batch = [Request(str(i), tuple(prompt), Sampling(max_new_tokens=new), seed=i) for i, prompt in enumerate(prompts)]
    for _ in engine.run(batch, parse_policy(policy)):
        pass
    assert engine.stats is not None
    return engine.stats


def in_turn(runs: Mapping[str, Callable[[], float]], times: int, warm: bool = True) -> dict[str, list[float]]:
    """Each run once to warm up, unless it takes minutes; then all of them in turn, so often."""
    for each in runs.values() if warm else ():
        each()
    found: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(times):
        for name, each in runs.items():
            found[name].append(each())
    return found


def against(found: Mapping[str, Sequence[float]], name: str, base: str) -> dict[str, float]:
    """The ratio to the base, turn by turn: median, least and greatest."""
    ratios = [a / b for a, b in zip(found[name], found[base], strict=True)]
    return {"ratio": statistics.median(ratios), "ratio_min": min(ratios), "ratio_max": max(ratios)}


class Stepper:
    """A batch that has been prefilled and decodes step by step, greedily."""

    def __init__(self, loaded: LoadedModel, prompts: Tokens, policy: Any) -> None:
        self.loaded = loaded
        with torch.inference_mode():
            self.cache = TieredCache(loaded.geometry, parse_policy(policy), loaded.device, loaded.facts)
            hidden = prefill(loaded, self.cache, prompts, list(range(len(prompts))), 512)
            self.tokens: list[int] = hf.logits(loaded.model, hidden).argmax(-1).tolist()

    def __call__(self) -> float:
        """One step; its seconds."""
        start = time.perf_counter()
        with torch.inference_mode():
            hidden = decode(self.loaded, self.cache, self.tokens)
            self.tokens = hf.logits(self.loaded.model, hidden).argmax(-1).tolist()
        return time.perf_counter() - start


def decode_rates(given: argparse.Namespace, loaded: LoadedModel, policies: Mapping[str, Any], base: str) -> None:
    """Decode tokens/s of policies against one of them, for each of `given.context`: runs, and prints the table.

    All decode by turns, a step each, so that a slow second of the machine meets all of them. Where a cache lies in
    memory and who has used the processor's caches before are worth some percent, so `given.pairs` times caches are made
    anew and decode `given.new` steps, all in an order drawn anew; events are part of the rate. The base is measured a
    second time as if it were a policy: how far it is from 1 is what the machine adds.
    """
    rows, rng = [], random.Random(0)
    every = {**policies, f"{base}, again": policies[base]}
    for context in given.context:
        prompts = random_prompts(loaded, given.batch, context)
        found: dict[str, list[float]] = {name: [] for name in every}
        for _ in range(given.pairs):
            order, spent = rng.sample(list(every), len(every)), dict.fromkeys(every, 0.0)
            steppers = {name: Stepper(loaded, prompts, every[name]) for name in order}
            for _ in range(given.new):
                for name in rng.sample(order, len(order)):
                    spent[name] += steppers[name]()
            for name, seconds in spent.items():
                found[name].append(1 / seconds)
        rows += [
            {"context": context, "batch": given.batch, "policy": name, **against(found, name, base)} for name in every
        ]
    report(rows, given)


def report(rows: Sequence[Mapping[str, Any]], given: argparse.Namespace) -> None:
    """Prints a table, and writes the rows as JSON where that was asked for."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    table = [columns, *([_cell(row.get(column)) for column in columns] for row in rows)]
    widths = [max(len(line[i]) for line in table) for i in range(len(columns))]
    for line in table:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
    machine = {
        "machine": platform.processor() or platform.machine(),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }
    print(", ".join(f"{key} {value}" for key, value in machine.items()))
    if given.json:
        given.json.write_text(json.dumps({**machine, "rows": list(rows)}, indent=1), encoding="utf-8")


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return "–" if value is None else f"{value:,}" if isinstance(value, int) else str(value)
