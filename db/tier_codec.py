"""How a tier map is packed into one value of the database: small arrays, each compressed, behind a header. No pickle.

    magic, 4 bytes | length of the header, 4 bytes, little-endian | header, JSON | sections, zlib, one after the other

The header names each section's element type and shape. Tiers are kept as differences from look to look, a token's looks
side by side: hardly anything moves from one look to the next, so they take about a tenth of a bit for each entry.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from db.errors import StorageError
from db.tier_maps import ABSENT, SERIES

MAGIC = b"TCM1"
LIMIT = 1_000_000  # bytes of a packed map; one that is larger loses every second look
SCORED_BYTES = 400_000  # of scores, which compress badly: a long sequence keeps them at a few looks only
TYPES = ("|u1", "<i4", "<i8", "<f4")

Series = Mapping[str, NDArray[np.int64]]


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Looks:
    """What was found at each look. Arrays as in `db.tier_maps.TierMap`; ABSENT need not be marked."""

    steps: NDArray[np.int64]
    seen: NDArray[np.int64]
    tiers: NDArray[np.uint8]
    overall: NDArray[np.uint8]
    held: NDArray[np.float32]
    importance: NDArray[np.float32] | None

    def thinned(self) -> Looks:
        """Every second look, and the last."""
        kept = np.unique(np.append(np.arange(0, len(self.steps), 2), len(self.steps) - 1))
        return Looks(
            steps=self.steps[kept],
            seen=self.seen[kept],
            tiers=self.tiers[kept],
            overall=self.overall[kept],
            held=self.held[kept],
            importance=None if self.importance is None else self.importance[kept],
        )


def pack(
    looks: Looks, series: Series, texts: Sequence[str], ids: NDArray[np.int64], limit: int = LIMIT
) -> tuple[bytes, int]:
    """Return a map as bytes and how many looks it has: fewer than came in where it would be larger than `limit`."""
    while True:
        packed = _packed(looks, series, texts, ids)
        if len(packed) <= limit or len(looks.steps) <= 2:
            return packed, len(looks.steps)
        looks = looks.thinned()


def unpack(blob: bytes) -> dict[str, Any]:
    """Return the fields of `db.tier_maps.TierMap` that `pack` was given.

    Raises:
        StorageError: these aren't bytes of `pack`, or those of a newer version.
    """
    if blob[:3] == MAGIC[:3] and blob[:4] != MAGIC:
        raise StorageError("a tier map was stored by a newer version; upgrade tiercache-eval to read it")
    try:
        if blob[:4] != MAGIC:
            raise ValueError("it doesn't begin as one")
        arrays, texts = _sections(blob)
        return _looks(arrays, texts)
    except (ValueError, KeyError, TypeError, struct.error, zlib.error) as error:
        raise StorageError(f"a stored tier map can't be read: {error}") from error


def _packed(looks: Looks, series: Series, texts: Sequence[str], ids: NDArray[np.int64]) -> bytes:
    tiers = looks.tiers
    if (tiers == tiers[:, :1]).all():
        tiers = tiers[:, :1]
    arrays: dict[str, NDArray[Any]] = {
        "steps": looks.steps.astype("<i8"),
        "seen": looks.seen.astype("<i8"),
        "tiers": _differences(tiers.transpose(1, 2, 0)),
        "overall": _differences(looks.overall.T),
        "held": _differences(np.round(np.nan_to_num(looks.held.T) * 255).astype(np.uint8)),
        "series": np.diff(np.stack([series[name] for name in SERIES]), axis=1, prepend=0).astype("<i8"),
        "ids": ids.astype("<i4"),
    }
    if looks.importance is not None:
        arrays |= _scores(looks.importance)
    sections = {name: zlib.compress(np.ascontiguousarray(array).tobytes(), 6) for name, array in arrays.items()}
    sections["texts"] = zlib.compress(json.dumps(list(texts)).encode("ascii"), 6)
    header = {
        "layers": looks.tiers.shape[1],
        "sections": [
            [name, len(data), *((arrays[name].dtype.str, arrays[name].shape) if name in arrays else ("json", []))]
            for name, data in sections.items()
        ],
    }
    head = json.dumps(header).encode("ascii")
    return b"".join([MAGIC, struct.pack("<I", len(head)), head, *sections.values()])


def _scores(importance: NDArray[np.float32]) -> dict[str, NDArray[Any]]:
    """Scores as 16-bit floats of each look's largest, high bytes and low bytes apart, at as many looks as fit."""
    looks, tokens = importance.shape
    step = -(-looks // max(2, SCORED_BYTES // (2 * max(tokens, 1))))
    scored = np.unique(np.append(np.arange(0, looks, step), looks - 1))
    chosen = np.where(np.isfinite(importance[scored]), importance[scored], np.nan).astype(np.float32)
    scale = np.nan_to_num(np.abs(chosen)).max(axis=1, initial=0.0).astype("<f4")
    scale[scale == 0] = 1
    halves = (chosen / scale[:, None]).astype("<f2").view("|u1").reshape(len(scored), tokens, 2)
    return {"scored": scored.astype("<i4"), "scale": scale, "scores": halves.transpose(2, 0, 1)}


def _differences(values: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Along the last axis, modulo 256."""
    result = values.copy()
    result[..., 1:] -= values[..., :-1]
    return result


def _sections(blob: bytes) -> tuple[dict[str, NDArray[Any]], tuple[str, ...]]:
    (length,) = struct.unpack_from("<I", blob, 4)
    header = json.loads(blob[8 : 8 + length])
    arrays: dict[str, NDArray[Any]] = {"layers": np.array(header["layers"])}
    texts: tuple[str, ...] = ()
    start = 8 + length
    for name, size, kind, shape in header["sections"]:
        data = zlib.decompress(blob[start : start + size])
        start += size
        if kind == "json":
            texts = tuple(map(str, json.loads(data)))
        elif kind in TYPES:
            arrays[name] = np.frombuffer(data, kind).reshape(shape)
        else:
            raise ValueError(f"section {name} has elements of an unknown type {kind}")
    return arrays, texts


def _looks(arrays: Mapping[str, NDArray[Any]], texts: tuple[str, ...]) -> dict[str, Any]:
    steps, seen = arrays["steps"].astype(np.int64), arrays["seen"].astype(np.int64)
    shape = len(steps), len(texts)
    absent = np.arange(len(texts)) >= seen[:, None]  # [looks, tokens]
    tiers = _summed(arrays["tiers"]).transpose(2, 0, 1).copy()
    tiers[np.broadcast_to(absent[:, None], tiers.shape)] = ABSENT
    overall = _summed(arrays["overall"]).T.copy()
    overall[absent] = ABSENT
    held = _summed(arrays["held"]).T.astype(np.float32) / 255
    held[absent] = np.nan
    importance, scored = None, np.zeros(len(steps), dtype=np.bool_)
    if "scores" in arrays:
        halves = np.ascontiguousarray(arrays["scores"].transpose(1, 2, 0)).view("<f2")[..., 0]
        known = halves.astype(np.float32) * arrays["scale"][:, None]
        scored[arrays["scored"]] = True
        importance = known[np.maximum(0, np.cumsum(scored) - 1)]
        importance[absent] = np.nan
    if overall.shape != shape or tiers.shape[::2] != shape:
        raise ValueError("its parts are of different lengths")
    series = np.cumsum(arrays["series"], axis=1).astype(np.int64)
    return {
        "steps": steps,
        "seen": seen,
        "tiers": np.broadcast_to(tiers, (len(steps), int(arrays["layers"]), len(texts))),
        "overall": overall,
        "held": held,
        "importance": importance,
        "scored": scored,
        "series": dict(zip(SERIES, series, strict=True)),
        "texts": texts,
        "ids": arrays["ids"].astype(np.int64),
    }


def _summed(differences: NDArray[np.uint8]) -> NDArray[np.uint8]:
    result: NDArray[np.uint8] = np.add.accumulate(differences, axis=-1, dtype=np.uint8)
    return result
