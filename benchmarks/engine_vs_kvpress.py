"""A whole evaluation under one policy: the engine against kvpress 0.5.5, same budget, same prompts, same process.

kvpress needs transformers 5.2, so it wants an environment of its own. From the repository's root:

    python -m venv /tmp/kvpress
    /tmp/kvpress/bin/pip install torch "transformers==5.2.0" kvpress==0.5.5 pydantic safetensors
    PYTHONPATH=. /tmp/kvpress/bin/python benchmarks/engine_vs_kvpress.py [--problems 64] [--json out.json]

The reasoner's problems: prefill, `new` decode steps each (the end is ignored: both do the same work), evictions.
kvpress runs as its own pipeline runs it, one problem at a time with a `DecodingPress`; the engine runs them together,
which is what it is for. After every 16 decode steps the cache is cut to 128 tokens. `tokens in common` is the share of
equal tokens up to the first that differs: kvpress leaves a long prompt whole until the first cut, we cut it at once.
"""

import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import torch
from measure import against, arguments, in_turn, reasoner, report

from reasoner import WEIGHTS
from reasoner.grammar import make_problem
from tiercache.engine import Engine, Limits
from tiercache.model import LoadedModel
from tiercache.policy import parse_policy
from tiercache.requests import Request, Sampling

EVERY, KEPT, WINDOW = 16, 128, 8
Tokens = dict[str, list[int]]

POLICIES: dict[str, tuple[dict[str, Any], Callable[[Any], Any]]] = {
    "streaming": (
        {"name": "streaming", "budget": KEPT, "positions": "true", "every": EVERY},
        lambda kv: kv.StreamingLLMPress(),
    ),
    "keydiff": ({"name": "keydiff", "budget": KEPT, "every": EVERY}, lambda kv: kv.KeyDiffPress()),
    "snapkv": (
        {"name": "snapkv_d", "budget": KEPT, "every": EVERY, "queries": WINDOW, "recent": WINDOW},
        lambda kv: kv.SnapKVPress(window_size=WINDOW),
    ),
}


def ours(loaded: LoadedModel, prompts: list[list[int]], policy: dict[str, Any], new: int) -> Tokens:
    engine = Engine(loaded, Limits(max_batch=len(prompts)))
    batch = [Request(str(i), tuple(prompt), Sampling(max_new_tokens=new)) for i, prompt in enumerate(prompts)]
    return {done.key: list(done.tokens) for done in engine.run(batch, parse_policy(policy))}


def theirs(kv: Any, model: Any, tokenizer: Any, prompts: list[list[int]], press: Any, new: int) -> Tokens:
    from kvpress.pipeline import KVPressTextGenerationPipeline  # type: ignore[import-not-found, unused-ignore]

    pipeline, found = KVPressTextGenerationPipeline(model=model, tokenizer=tokenizer), {}
    pipeline.tokenizer, model.generation_config.eos_token_id = Ids(), -1
    for i, prompt in enumerate(prompts):
        decoding = kv.DecodingPress(press, EVERY, KEPT, hidden_states_buffer_size=EVERY)
        ids = {"context_ids": torch.tensor([prompt[:-1]]), "questions_ids": [torch.tensor([prompt[-1:]])]}
        with torch.inference_mode():
            answer = pipeline._forward(ids, max_new_tokens=new, press=decoding)[0]
        found[str(i)] = [int(token) for token in answer.split()]
    return found


class Ids:
    """In a tokenizer's place: the pipeline's answer is then the token ids."""

    def decode(self, tokens: Any, skip_special_tokens: bool) -> str:
        return " ".join(map(str, tokens.tolist()))


def prefix(one: list[int], other: list[int]) -> float:
    """The share of equal tokens before the first that differs."""
    assert len(one) == len(other), "both decode to the limit"
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=True)) if a != b), len(one)) / len(one)


def main() -> None:
    parser = arguments(__doc__ or "", problems=64, new=200, pairs=3, policies=list(POLICIES))
    given = parser.parse_args()
    if find_spec("kvpress") is None:
        steps = "\n".join(line for line in (__doc__ or "").splitlines() if line.startswith("    "))
        sys.exit(f"kvpress isn't installed here. It needs an environment of its own:\n\n{steps}")
    import kvpress as kv  # type: ignore[import-not-found, unused-ignore]
    from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

    torch.set_num_threads(given.threads)
    loaded = reasoner()
    model = AutoModelForCausalLM.from_pretrained(WEIGHTS, dtype=torch.float32, attn_implementation="sdpa").eval()
    tokenizer = PreTrainedTokenizerFast.from_pretrained(WEIGHTS)
    prompts = [loaded.encode(make_problem("ledger", 12345, i).prompt)[1] for i in range(given.problems)]
    rows = []
    for name in given.policies:
        policy, press = POLICIES[name]
        last: dict[str, Tokens] = {}

        def timed(who: str, run: Callable[[], Tokens], last: dict[str, Tokens] = last) -> float:
            start = time.perf_counter()
            last[who] = run()
            return 1 / (time.perf_counter() - start)

        found = in_turn(
            {
                "ours": lambda: timed("ours", lambda: ours(loaded, prompts, policy, given.new)),  # noqa: B023
                "kvpress": lambda: timed(
                    "kvpress",
                    lambda: theirs(kv, model, tokenizer, prompts, press(kv), given.new),  # noqa: B023
                ),
            },
            given.pairs,
        )
        same = [prefix(last["ours"][key], tokens) for key, tokens in last["kvpress"].items()]
        rows.append({"policy": name, **against(found, "ours", "kvpress"), "tokens in common": sum(same) / len(same)})
    report(rows, given)


if __name__ == "__main__":
    main()
