"""Which scorer knows what the answer needs? Rank correlation with occlusion labels on the embedded reasoner.

    python benchmarks/occlusion_reasoner.py [--n 8] [--difficulty registers] [--labels labels.json]

For each chain that the full cache solves: windows of 32 tokens (stride 16) are hidden in turn and the answer's loss is
measured; each scorer ranks the chain's tokens at the moment when the answer begins. The answer is the four values that
are read at the end and the digits after them. Printed is the mean Spearman correlation over chains, with a 95%
bootstrap interval over chains. A chain costs about twenty passes over itself, and each scorer one token by token.
"""

import argparse
import random
import sys
from collections.abc import Iterator, Sequence

import torch

from reasoner.grammar import make_problem
from tiercache.catalog import SIGNALS
from tiercache.diagnostics.occlusion import (
    OcclusionLabels,
    final_scores,
    occlusion_labels,
    one_score,
    rank_correlation,
    save_labels,
)
from tiercache.engine import Engine, Limits
from tiercache.errors import PolicyError
from tiercache.model import LoadedModel, load
from tiercache.model_spec import ModelSpec
from tiercache.policy import parse_policy
from tiercache.requests import Request, Sampling

RESAMPLES = 2000
CHUNKS = {"lagkv": 32}  # scorers that see a chunk from the one that follows

Chain = tuple[Request, tuple[int, ...], int]  # request, generated tokens, where the answer begins


def solved_chains(loaded: LoadedModel, difficulty: str, n: int) -> Iterator[Chain]:
    """The first n problems, as far as the full cache solves them."""
    problems = {p.id: p for p in (make_problem(difficulty, 12345, index) for index in range(n))}
    batch = [Request(i, tuple(loaded.encode(p.prompt)[1]), Sampling(max_new_tokens=512)) for i, p in problems.items()]
    done = {each.key: each.tokens for each in Engine(loaded, Limits(max_batch=16)).run(batch, parse_policy("full"))}
    for request in batch:
        tokens = done[request.key]
        words = [loaded.decode([token]).strip() for token in tokens]
        answer = "".join(words[words.index("####") + 1 :]) if "####" in words else ""
        if answer == problems[request.key].answer:
            yield request, tokens, next(i for i, word in enumerate(words) if word.startswith("?"))


def interval(values: Sequence[float]) -> tuple[float, float]:
    """95% of the means of resampled chains."""
    draw = random.Random(0)
    means = sorted(sum(draw.choices(values, k=len(values))) / len(values) for _ in range(RESAMPLES))
    return means[int(0.025 * RESAMPLES)], means[int(0.975 * RESAMPLES) - 1]


def correlations(
    loaded: LoadedModel, name: str, chains: Sequence[Chain], labels: Sequence[OcclusionLabels]
) -> list[float]:
    """Of one scorer, chain by chain; chains in which it tells no token apart are left out."""
    found = []
    for (request, tokens, answer), label in zip(chains, labels, strict=True):
        scores = final_scores(loaded, request.prompt, tokens[:answer], name, request.seed, CHUNKS.get(name))
        found.append(rank_correlation(one_score(scores[..., len(request.prompt) :]), label.by_token()))
    return [value for value in found if value == value]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--n", type=int, default=8, help="problems; those that the full cache doesn't solve are left out"
    )
    parser.add_argument("--difficulty", default="registers", choices=["registers", "ledger"])
    parser.add_argument("--window", type=int, default=32)
    parser.add_argument("--stride", type=int, default=16)
    parser.add_argument("--scorers", nargs="*", default=list(SIGNALS), choices=list(SIGNALS), metavar="SCORER")
    parser.add_argument("--labels", help="write the labels to this .json or .parquet file")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    loaded = load(ModelSpec(id="reasoner"))
    chains = list(solved_chains(loaded, arguments.difficulty, arguments.n))
    if not chains:
        print("the full cache solves none of them; give a larger --n")
        return 1
    labels = [
        occlusion_labels(loaded, request.prompt, tokens, (answer, len(tokens)), arguments.window, arguments.stride)
        for request, tokens, answer in chains
    ]
    if arguments.labels:
        save_labels(arguments.labels, {chain[0].key: label for chain, label in zip(chains, labels, strict=True)})
    print(f"{len(chains)} chains of {arguments.difficulty}; windows of {arguments.window}, stride {arguments.stride}")
    print(f"{'scorer':<14} {'Spearman':>9}   95% interval")
    for name in arguments.scorers:
        try:
            found = correlations(loaded, name, chains, labels)
        except PolicyError as refusal:
            print(f"{name:<14} {'–':>9}   {refusal}")
            continue
        low, high = interval(found) if found else (float("nan"), float("nan"))
        mean = sum(found) / len(found) if found else float("nan")
        print(f"{name:<14} {mean:>+9.3f}   [{low:+.3f}, {high:+.3f}]", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
