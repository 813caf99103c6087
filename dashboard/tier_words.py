"""What is said of a tier map: of each token under the cursor, and of the whole."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dashboard.wording import dash, hover, human_bytes, percent, plain
from db.tier_maps import ABSENT, EVICTED, TIERS, TierMap

LONGEST = 80  # characters of a token's text that are told

HOVER = hover(
    [
        "<b>%{customdata[0]}</b>",
        "%{customdata[1]}",
        "%{customdata[2]}",
        "held by %{customdata[3]} of layers × KV heads",
        "importance %{customdata[4]}",
    ]
).replace("% {", "%{")  # nothing in it comes from a model: that is customdata


def hover_data(tiers: TierMap, codes: NDArray[np.uint8], look: int, part: range) -> list[list[str]]:
    """Return what is said of tokens that are there at a look: text, position, tier and since when, share, score.

    codes: of a layer or of all, [looks, tokens].
    """
    now = codes[look]
    since, first = _since(codes, look)
    scores = _scores(tiers, look, now, part)
    found = []
    for i, score in zip(part, scores, strict=True):
        output = i - tiers.prompt_tokens + 1
        where = f"{f'output token {output:,}' if output > 0 else 'prompt token'}, position {i:,}"
        when = "since it was written" if first[i] else f"since the look at step {int(tiers.steps[since[i]]):,}"
        text = plain(repr(tiers.texts[i][:LONGEST])[1:-1])
        found.append([text, where, f"{TIERS[now[i]]}, {when}", percent(float(tiers.held[look, i]), 0), score])
    return found


def _since(codes: NDArray[np.uint8], look: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """The first look of each token's unbroken stay where it is, and whether it has been nowhere else."""
    other = codes[:look] != codes[look]  # [looks before, tokens]
    moved = other & (codes[:look] != ABSENT)
    last = np.where(other.any(0), look - np.argmax(other[::-1], axis=0), 0) if look else np.zeros(codes.shape[1], int)
    return last, ~moved.any(0)


def _scores(tiers: TierMap, look: int, codes: NDArray[np.uint8], part: range) -> list[str]:
    if tiers.importance is None:
        return [dash(plain(tiers.no_importance or "not recorded"))] * len(part)
    values = tiers.importance[look]
    ranked = np.isfinite(values) & (codes != EVICTED)  # a score of an earlier look may be of one that has left since
    order = np.empty(len(values), dtype=np.int64)
    order[np.argsort(-np.where(ranked, values, -np.inf), kind="stable")] = np.arange(1, len(values) + 1)
    count = int(ranked.sum())
    asked = np.flatnonzero(tiers.scored[: look + 1])
    when = f" at step {int(tiers.steps[asked[-1]]):,}" if len(asked) and asked[-1] != look else ""
    return [
        f"{values[i]:.4g}, number {order[i]:,} of {count:,}{when}"
        if ranked[i]
        else dash("evicted" if codes[i] == EVICTED else "it may not move now")
        for i in part
    ]


def first_difference(left: TierMap, right: TierMap) -> int | None:
    """Return the first token of the outputs in which two maps of one problem differ; None where one begins the other.

    Both ending is no difference; one ending is.
    """
    count = min(left.tokens, right.tokens)
    differing = np.flatnonzero(left.ids[:count] != right.ids[:count])
    if len(differing):
        return int(differing[0])
    return None if left.tokens == right.tokens else count


def in_words(tiers: TierMap, look: int, layer: int | None) -> str:
    """Return a look in words, for those who can't see it."""
    codes = (tiers.overall if layer is None else tiers.tiers[:, layer])[look]
    counts = ", ".join(f"{int((codes == code).sum()):,} {tier}" for code, tier in enumerate(TIERS))
    where = "all layers" if layer is None else f"layer {layer}"
    return f"{int((codes != ABSENT).sum()):,} tokens after decode step {int(tiers.steps[look]):,}, {where}: {counts}"


def bytes_in_words(tiers: TierMap, step: int) -> str:
    """Return what the tiers held after a decode step, and what had been moved by then."""
    now = {name: int(values[min(step, len(values) - 1)]) for name, values in tiers.series.items()}
    names = {"hbm": "HBM", "packed": "packed", "ddr": "DDR"}
    held = ", ".join(f"{human_bytes(now[key])} {name}" for key, name in names.items() if now[key] or key == "hbm")
    text = f"{held}; the full cache would hold {human_bytes(now['full'])}."
    if now["to_host"] or now["to_device"]:
        text += f" Moved so far: {human_bytes(now['to_host'])} to the host, {human_bytes(now['to_device'])} back."
    return text
