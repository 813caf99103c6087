"""Loops over numpy arrays, one token at a time: LagKV, KeyDiff, Expected Attention and TriAttention."""

import cmath
import math

import numpy as np
import torch

from tiercache.catalog import geometric
from tiercache.rope import Rope
from tiercache.scorers import Facts, View
from tiercache.scorers.expected import ExpectedAttention
from tiercache.scorers.keydiff import KeyDiff
from tiercache.scorers.lagkv import LagKV
from tiercache.scorers.triattention import TriAttention
from tiercache.store import Geometry

CLASSES = {"lagkv": LagKV, "keydiff": KeyDiff, "expected": ExpectedAttention, "triattention": TriAttention}


# The references: one (layer, KV head) of one sequence. keys, values [n, d]; queries are complex, [n, d / 2] each.


def lagkv(keys, values, chunk, weight=1.0):  # type: ignore[no-untyped-def]
    """Scores of tokens in `chunk` (indices), seen from those after it."""
    after = [i for i in range(max(chunk) + 1, max(chunk) + 1 + len(chunk)) if i < len(keys)]
    scores = dict.fromkeys(range(len(keys)), 0.0)
    for states, factor in ((keys, 1.0), (values, weight)):
        spread = {}
        for i in chunk:
            inside = []
            for c in range(states.shape[1]):
                low, high = min(states[j, c] for j in after), max(states[j, c] for j in after)
                inside.append((states[i, c] - low) / max(high - low, 1e-6))
            spread[i] = np.std(inside, ddof=1)
        total = sum(math.exp(s - max(spread.values())) for s in spread.values())
        for i in chunk:
            scores[i] += factor * math.exp(spread[i] - max(spread.values())) / total
    return scores


def keydiff(keys):  # type: ignore[no-untyped-def]
    mean = sum(k / np.linalg.norm(k) for k in keys) / len(keys)
    if np.linalg.norm(mean) < 1e-9:
        return None  # opposite keys cancel: there is no direction to compare with
    return {i: -float(k @ mean) / np.linalg.norm(k) / np.linalg.norm(mean) for i, k in enumerate(keys)}


def pairs(x):  # type: ignore[no-untyped-def]
    half = x.shape[-1] // 2
    return x[..., :half] + 1j * x[..., half:]


def before_rope(query, position, frequencies):  # type: ignore[no-untyped-def]
    return [z * cmath.exp(-1j * f * position) for z, f in zip(pairs(query), frequencies, strict=True)]


def expected(keys, values, queries, seen, frequencies, among, future=512, epsilon=0.0):  # type: ignore[no-untyped-def]
    """queries: for each query head of the group, [(query, position), …]; the covariance as a matrix."""
    half, total = len(frequencies), np.zeros(len(keys))
    if not among:
        return dict.fromkeys(range(len(keys)), 0.0)
    turn = [sum(cmath.exp(1j * f * (seen + o)) for o in range(future)) / future for f in frequencies]
    rotation = np.zeros((2 * half, 2 * half))
    for c, z in enumerate(turn):
        rotation[c, c] = rotation[half + c, half + c] = z.real
        rotation[c, half + c], rotation[half + c, c] = -z.imag, z.imag
    scale = (2 * half) ** -0.5
    for head in queries:
        plain = np.array([before_rope(q, p, frequencies) for q, p in head])
        plain = np.concatenate([plain.real, plain.imag], axis=1)
        mean, covariance = rotation @ plain.mean(0), rotation @ np.cov(plain.T, bias=True) @ rotation.T
        logits = {i: scale * keys[i] @ mean + scale**2 * keys[i] @ covariance @ keys[i] / 2 for i in among}
        top = max(logits.values())
        for i in among:
            total[i] += math.exp(logits[i] - top) / sum(math.exp(x - top) for x in logits.values()) / len(queries)
    return {i: (total[i] + epsilon) * np.linalg.norm(values[i]) for i in range(len(keys))}


def triattention(keys, places, centres, seen, frequencies, among, future=65536):  # type: ignore[no-untyped-def]
    """Greatest z over the query heads; centres: for each (mean complex [d / 2], mean lengths [d / 2])."""
    best = dict.fromkeys(range(len(keys)), -math.inf)
    offsets = [2**p for p in range(60) if 2**p <= future]
    for mean, length in centres if among else []:
        score = {}
        for i in among:
            key = before_rope(keys[i], places[i], frequencies)
            score[i] = 0.0
            for f, k, m, n in zip(frequencies, key, mean, length, strict=True):
                apart = [seen - 1 + o - places[i] for o in offsets]
                waves = [abs(m) * abs(k) * math.cos(f * a + cmath.phase(m) - cmath.phase(k)) for a in apart]
                score[i] += sum(waves) / len(waves) + (n - abs(m)) * abs(k)
        mu, sigma = np.mean(list(score.values())), np.std(list(score.values()))
        for i in among:
            best[i] = max(best[i], round((score[i] - mu) / max(sigma, 1e-6) * 2**14) / 2**14)
    return best


def view_of(shape, dtype=torch.float64, ordered=True):  # type: ignore[no-untyped-def]
    """A random view; some slots are free, the newest token and the first `sinks` are no candidates."""
    rng = torch.Generator().manual_seed(shape["seed"])

    def random(*size):  # type: ignore[no-untyped-def]
        x = torch.randn(*size, generator=rng, dtype=torch.float64)
        return ((x * 2).round() / 2 if shape["coarse"] else x).to(dtype)

    at, d = (shape["layers"], shape["rows"], shape["heads"]), 2 * shape["pairs"]
    slots = shape["slots"]
    seen = torch.randint(slots, 3 * slots, (shape["rows"],), generator=rng)
    pos = torch.full((*at, slots), -1, dtype=torch.int32)
    for row in range(shape["rows"]):
        live = int(torch.randint(2, slots + 1, (1,), generator=rng))
        for layer in range(at[0]):
            for head in range(at[2]):
                chosen = torch.randperm(int(seen[row]) - 1, generator=rng)[: live - 1]
                chosen = torch.cat([chosen, seen[row : row + 1] - 1])
                pos[layer, row, head, :live] = chosen.sort().values if ordered else chosen
    newest = (seen - 1).view(1, -1, 1, 1)
    candidate = (pos >= shape["sinks"]) & (pos < newest)
    window = shape["queries"]
    query_pos = torch.full((shape["rows"], window), -1)
    for row, n in enumerate(seen.tolist()):
        for p in range(max(0, n - window), n):
            query_pos[row, p % window] = p
    keys, values = random(*at, slots, d), random(*at, slots, d)
    keys = keys + 0.01  # no key of length 0
    queries = random(shape["layers"], shape["rows"], shape["heads"] * shape["group"], window, d)
    facts = Facts(Geometry(at[0], at[2] * shape["group"], at[2], d, dtype), Rope(1.7 / 3.0 ** torch.arange(d // 2)))
    zeros = torch.zeros_like(seen)
    asked = {"queries": queries, "query_pos": query_pos, "scaling": d**-0.5}
    return View(pos, {}, candidate, zeros, seen, zeros, keys=keys, values=values, **asked), facts


def scorer_of(name, facts, **knobs):  # type: ignore[no-untyped-def]
    return CLASSES[name](geometric.SIGNALS[name](scorer=name, **knobs), facts)


def own_centres(queries, frequencies):  # type: ignore[no-untyped-def]
    plain = [np.array([before_rope(q, p, frequencies) for q, p in head]) for head in queries]
    return [(x.mean(0), np.abs(x).mean(0)) for x in plain]
