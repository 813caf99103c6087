"""Which scorer knows what an answer needs? Occlusion labels on stored chains of the full cache against each scorer.

The chains are samples that are in the database: prompt and output are taken apart into tokens again, and those that
don't come out as they were are left out. What is found is an event of the sweep, to be read without a model.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from sqlalchemy import Engine

from db.queries import Generation, stored_generations
from tiercache.catalog import SIGNALS
from tiercache.diagnostics.occlusion import (
    OcclusionLabels,
    final_scores,
    occlusion_labels,
    one_score,
    rank_correlation,
)
from tiercache.errors import PolicyError, SpecError
from tiercache.model import LoadedModel, load
from tiercache.model_spec import EMBEDDED, ModelSpec

CHUNKS = {"lagkv": 32}  # scorers that see a chunk from the one that follows
QUERY = "?"  # of the embedded reasoner: the values that are read at the end, and the digits after them
OF_CHAIN, OF_TEXT = "the first value that is read at the end", "the last mention of the answer that was found"


@dataclass(frozen=True)
class Chain:
    """A right answer's text; `answer` is the index of the generated token where the answer begins."""

    problem: str
    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    answer: int


def check(
    engine: Engine,
    fingerprint: str,
    config: Mapping[str, Any],
    n: int,
    window: int = 32,
    stride: int = 16,
    scorers: Sequence[str] = tuple(SIGNALS),
) -> dict[str, Any]:
    """What is stored of one cell: each scorer's rank correlation with the labels, chain by chain.

    Args:
        fingerprint, config: of a cell of the full cache.
        n: chains; right answers only, the first ones.

    Raises:
        SpecError: none of the cell's samples can be used. ModelError: the model can't be loaded here.
    """
    loaded = load(model_of(config))
    of_chain = (config.get("benchmark") or {}).get("name") == "chain"
    found: list[Chain] = []
    for sample in stored_generations(engine, fingerprint):
        if sample.outcome == "correct" and (chain := _chain(loaded, sample, of_chain)) is not None:
            found.append(chain)
            if len(found) == n:
                break
    if not found:
        raise SpecError("occlusion: the full cache has no right answer here whose text can be taken apart again.")
    labels = [
        occlusion_labels(loaded, chain.prompt, chain.tokens, (chain.answer, len(chain.tokens)), window, stride)
        for chain in found
    ]
    values: dict[str, list[float | None]] = {}
    refused: dict[str, str] = {}
    for name in scorers:
        try:
            values[name] = list(_correlations(loaded, name, found, labels))
        except PolicyError as problem:
            refused[name] = str(problem)
    return {
        "window": window,
        "stride": stride,
        "answer": OF_CHAIN if of_chain else OF_TEXT,
        "chains": [chain.problem for chain in found],
        "values": values,
        "refused": refused,
    }


def model_of(config: Mapping[str, Any]) -> ModelSpec:
    """The model of a stored cell."""
    given = config["model"]
    spec = ModelSpec(id=given["id"], gguf=given.get("gguf"), dtype=given.get("dtype", "auto"))
    revision = given.get("revision")
    pinned = revision and revision != "unpinned" and spec.id != EMBEDDED and not spec.local
    return spec.model_copy(update={"revision": revision}) if pinned else spec


def _chain(loaded: LoadedModel, sample: Generation, of_chain: bool) -> Chain | None:
    """None where the tokenizer spells the text in another way, or the answer isn't found in it."""
    prompt = loaded.encode(sample.prompt)[1]
    tokens = loaded.encode(f"{sample.prompt} {sample.output}")[1][len(prompt) :]
    pieces = [loaded.decode([token]) for token in tokens]
    if "".join("".join(pieces).split()) != "".join(sample.output.split()):
        return None
    starts = [i for i, piece in enumerate(pieces) if piece.strip().startswith(QUERY)] if of_chain else []
    answer = starts[0] if starts else _mention(pieces, sample.reference)
    return Chain(sample.problem_id, tuple(prompt), tuple(tokens), answer) if answer else None


def _mention(pieces: Sequence[str], answer: str) -> int | None:
    """The token in which the last mention of the answer begins."""
    place = "".join(pieces).rfind(answer) if answer else -1
    if place < 0:
        return None
    return next(i for i, end in enumerate(accumulate(map(len, pieces))) if end > place)


def _correlations(
    loaded: LoadedModel, name: str, chains: Sequence[Chain], labels: Sequence[OcclusionLabels]
) -> Iterator[float | None]:
    for chain, label in zip(chains, labels, strict=True):
        scores = final_scores(loaded, chain.prompt, chain.tokens[: chain.answer], name, 0, CHUNKS.get(name))
        value = rank_correlation(one_score(scores[..., len(chain.prompt) :]), label.by_token())
        yield value if value == value else None
