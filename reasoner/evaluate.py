"""Accept or reject a set of weights: `python -m reasoner.evaluate DIR`.

Greedy decoding of held-out problems of both difficulties, with the full cache and under simulated
eviction. Prints one line of JSON a measurement, with its 95% Wilson interval.
"""

import argparse
import json
import math
import time
from pathlib import Path

import torch
from transformers import LlamaForCausalLM

from reasoner.curriculum import encode
from reasoner.decode import Policy, decode
from reasoner.grammar import DIFFICULTIES, make_problem
from reasoner.net import Net, from_llama
from reasoner.policies import HeavyHitters, LowestScored, RandomHalf
from reasoner.tokenizer import EOS, vocabulary

SEED = 20_000  # of the held-out problems; training seeds start at 2**32
BATCH = 64
POLICIES: dict[str, Policy] = {
    "h2o 50%": HeavyHitters(0.5),
    "window 50%": HeavyHitters(0.5, heavy=0.0),
    "window 30%": HeavyHitters(0.3, heavy=0.0),
    "random 50%": RandomHalf(0.5),
    "lowest scored 3%": LowestScored(0.03),
    "lowest scored 10%": LowestScored(0.10),
    "lowest scored 25%": LowestScored(0.25),
}


def load(directory: Path) -> Net:
    """The weights of a model folder, computed in float32."""
    return from_llama(LlamaForCausalLM.from_pretrained(directory, dtype=torch.float32))


def measure(net: Net, difficulty: str, count: int, policy: Policy | None = None) -> dict[str, float]:
    """Accuracy over the first `count` held-out problems, in percent, and what it rests on."""
    start = time.perf_counter()
    problems = [make_problem(difficulty, SEED, i) for i in range(count)]
    # Neighbours in length share a batch; the order has no bearing on the answers.
    problems.sort(key=lambda p: len(p.prompt))
    words = {i: word.strip() for word, i in vocabulary().items()}
    right = finished = tokens = 0
    kept = 0.0
    for at in range(0, count, BATCH):
        batch = problems[at : at + BATCH]
        encoded = [encode(p) for p in batch]
        prompts, chains = zip(*encoded, strict=True)
        decoded = decode(net, prompts, [len(c) for c in chains], policy, seed=at)
        for problem, ids in zip(batch, decoded.ids, strict=True):
            ended = words[ids[-1]] == EOS
            finished += ended
            tokens += len(ids)
            answer = "".join(words[i] for i in ids[-5:-1])
            right += ended and words[ids[-6]] == "####" and answer == problem.answer
        kept += sum(decoded.kept)
    low, high = wilson(right, count)
    return {
        "n": count,
        "accuracy_percent": round(100 * right / count, 1),
        "low_percent": round(100 * low, 1),
        "high_percent": round(100 * high, 1),
        "finished_percent": round(100 * finished / count, 1),
        "kept_percent": round(100 * kept / count, 1),
        "mean_tokens": round(tokens / count, 1),
        "seconds": round(time.perf_counter() - start, 1),
    }


def wilson(right: int, count: int, z: float = 1.96) -> tuple[float, float]:
    """The 95% score interval of a proportion."""
    p = right / count
    middle = p + z * z / (2 * count)
    half = z * math.sqrt(p * (1 - p) / count + z * z / (4 * count * count))
    scale = 1 + z * z / count
    return (middle - half) / scale, (middle + half) / scale


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="Measure a trained reasoner.")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--problems", type=int, default=500, help="per difficulty, full cache")
    parser.add_argument("--policy-problems", type=int, default=200, help="per policy")
    parser.add_argument("--difficulty", choices=DIFFICULTIES, nargs="*", default=DIFFICULTIES)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    net = load(arguments.directory)
    for difficulty in arguments.difficulty:
        show(difficulty, "full", measure(net, difficulty, arguments.problems))
    for difficulty in arguments.difficulty if arguments.policy_problems else ():
        for name, policy in POLICIES.items():
            show(difficulty, name, measure(net, difficulty, arguments.policy_problems, policy))


def show(difficulty: str, policy: str, figures: dict[str, float]) -> None:
    """One line of JSON."""
    print(json.dumps({"difficulty": difficulty, "policy": policy, **figures}), flush=True)


if __name__ == "__main__":
    main()
