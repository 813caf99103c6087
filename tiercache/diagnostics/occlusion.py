"""Which tokens of a finished chain matter: hide a window of them and see what the answer loses (after 2606.26472).

A hidden window's tokens are seen by no later token, so neither the answer nor the reasoning between them can use what
they say. The loss is in nats: log-probability of the answer's tokens, teacher-forced, with everything visible less that
with the window hidden. Any scorer's scores can be held against these labels.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from scipy.stats import rankdata, spearmanr
from torch import Tensor

from tiercache import hf
from tiercache.cache import TieredCache
from tiercache.diagnostics.shadow import Span, full_pass
from tiercache.engine import decode
from tiercache.model import LoadedModel
from tiercache.policy import Policy, parse_policy
from tiercache.prefill import prefill
from tiercache.ranking import RowFacts

ROWS = 8  # windows hidden at a time, each in a row of its own
CHUNK = 256


@dataclass(frozen=True)
class OcclusionLabels:
    """Labels of one chain; all indices are of generated tokens.

    answer           [start, stop) of the answer; labels are of the tokens before it.
    log_probability  of the answer with everything visible.
    windows          (start, stop, loss): what the answer loses without these tokens.
    """

    answer: Span
    window: int
    stride: int
    log_probability: float
    windows: tuple[tuple[int, int, float], ...]

    def by_token(self) -> list[float]:
        """For each token before the answer the mean loss of the windows that hold it."""
        return [
            sum(losses) / len(losses)
            for i in range(self.answer[0])
            for losses in [[loss for start, stop, loss in self.windows if start <= i < stop]]
        ]


@torch.inference_mode()
def occlusion_labels(
    loaded: LoadedModel,
    prompt: Sequence[int],
    tokens: Sequence[int],
    answer_span: Span,
    window: int = 32,
    stride: int = 16,
) -> OcclusionLabels:
    """Labels the tokens of a chain before its answer, which is `tokens[slice(*answer_span)]`.

    One pass over the whole text for each window: a chain of n tokens costs about n² / stride.
    """
    first, last = answer_span
    if not (0 < first < last <= len(tokens) and 0 < stride <= window):
        raise ValueError(f"answer {answer_span} of {len(tokens)} tokens, window {window}, stride {stride}")
    hf.check_prepared(loaded.model)
    starts = [start for start in range(0, first, stride) if start == 0 or start + window - stride < first]
    spans = [(start, min(start + window, first)) for start in starts]
    hidden: list[Span | None] = [None, *((len(prompt) + a, len(prompt) + b) for a, b in spans)]
    text = [*prompt, *tokens[:last]]
    found: list[float] = []
    for start in range(0, len(hidden), ROWS):
        states, _ = full_pass(loaded, text[:-1], CHUNK, hidden[start : start + ROWS])
        found.extend(_log_probability(loaded, states[:, len(prompt) + first - 1 :], tokens[first:last]))
    whole, *without = found
    windows = tuple((a, b, whole - each) for (a, b), each in zip(spans, without, strict=True))
    return OcclusionLabels((first, last), window, stride, whole, windows)


def _log_probability(loaded: LoadedModel, states: Tensor, answer: Sequence[int]) -> list[float]:
    """Of the answer's tokens together, for each row, from the hidden states before them: [rows, tokens, hidden]."""
    logits = hf.logits(loaded.model, states)
    wide = logits.to(torch.float64 if logits.dtype == torch.float64 else torch.float32)
    index = torch.tensor(answer, device=logits.device).view(1, -1, 1).expand(len(states), -1, 1)
    totals: list[float] = torch.log_softmax(wide, -1).gather(-1, index).sum((1, 2)).tolist()
    return totals


@torch.inference_mode()
def final_scores(
    loaded: LoadedModel,
    prompt: Sequence[int],
    tokens: Sequence[int],
    scorer: str | Mapping[str, Any] = "attention",
    seed: int = 0,
    chunk: int | None = None,
) -> Tensor:
    """What a scorer thinks of every token once a text is there: float64 [layers, kv_heads, prompt + tokens].

    The text is run token by token under a budget as large as itself, so the scorer sees all of it and nothing is
    evicted. `scorer` is a scorer's name, or a mapping with `scorer` and its own parameters. Scorers that compare a
    chunk with the one that follows are asked `chunk` by `chunk`.

    Raises:
        PolicyError: no such scorer or parameter, or one that can't work with this model.
    """
    given = {"scorer": scorer} if isinstance(scorer, str) else dict(scorer)
    budget = {"tokens": 2 * (len(prompt) + len(tokens))}
    policy = parse_policy({"name": "h2o", "budget": budget, "recent_share": 0.0, "scope": "head", **given})
    cache = replay(loaded, policy, prompt, tokens, seed)
    tiers = cache.tiers[0]
    size = chunk or tiers.seen
    parts = []
    for start in range(0, tiers.seen, size):
        stop = min(start + size, tiers.seen)
        others = ((0, start), (stop, tiers.seen))
        facts = RowFacts(0, seed, tiers.seen, tiers.prompt, others, (stop - start) // 2)
        score, pos, _ = (part.squeeze(1) for part in cache.ranker.row_scores(cache.stores, [facts]))
        parts.append(score.gather(-1, pos.argsort(dim=-1))[..., start:stop])
    return torch.cat(parts, dim=-1).cpu()


def replay(
    loaded: LoadedModel, policy: Policy, prompt: Sequence[int], tokens: Sequence[int], seed: int = 0
) -> TieredCache:
    """A cache of one row after the prompt and, token by token, a text that is already there."""
    hf.check_prepared(loaded.model)
    cache = TieredCache(loaded.geometry, policy, loaded.device, loaded.facts)
    prefill(loaded, cache, [prompt], [seed], CHUNK)
    for token in tokens:
        decode(loaded, cache, [token])
    cache.row_positions(0)
    return cache


def one_score(scores: Tensor) -> list[float]:
    """One number a token from scores of all layers and heads: the mean of its ranks, since their scales differ."""
    ranks = [rankdata(each.tolist()) for each in scores.flatten(0, 1)]
    return [float(sum(column)) / len(ranks) for column in zip(*ranks, strict=True)]


def rank_correlation(scores: Sequence[float], labels: Sequence[float]) -> float:
    """Spearman's, of scores with labels; NaN where either is constant."""
    if len(scores) != len(labels):
        raise ValueError(f"{len(scores)} scores and {len(labels)} labels")
    if len(set(scores)) < 2 or len(set(labels)) < 2:
        return float("nan")
    return float(spearmanr(scores, labels).statistic)


def save_labels(path: str | Path, chains: Mapping[str, OcclusionLabels]) -> None:
    """Writes labels by chain: `.json` as they are, `.parquet` as a table with a row for each window."""
    path = Path(path)
    if path.suffix == ".parquet":
        import pandas

        rows = [
            {
                "chain": name,
                "start": start,
                "stop": stop,
                "loss": loss,
                "answer_start": labels.answer[0],
                "answer_stop": labels.answer[1],
                "log_probability": labels.log_probability,
                "window": labels.window,
                "stride": labels.stride,
            }
            for name, labels in chains.items()
            for start, stop, loss in labels.windows
        ]
        pandas.DataFrame(rows).to_parquet(path)
    else:
        path.write_text(json.dumps({name: asdict(labels) for name, labels in chains.items()}) + "\n")


def load_labels(path: str | Path) -> dict[str, OcclusionLabels]:
    """What `save_labels` wrote."""
    path = Path(path)
    if path.suffix != ".parquet":
        found = json.loads(path.read_text())
        return {
            name: OcclusionLabels(
                **{**each, "answer": tuple(each["answer"]), "windows": tuple(map(tuple, each["windows"]))}
            )
            for name, each in found.items()
        }
    import pandas

    table: list[dict[str, Any]] = pandas.read_parquet(path).to_dict("records")  # type: ignore[assignment]
    loaded = {}
    for name, group in groupby(table, key=lambda row: str(row["chain"])):
        rows = list(group)
        first = rows[0]
        loaded[name] = OcclusionLabels(
            answer=(first["answer_start"], first["answer_stop"]),
            window=first["window"],
            stride=first["stride"],
            log_probability=first["log_probability"],
            windows=tuple((row["start"], row["stop"], row["loss"]) for row in rows),
        )
    return loaded
