"""What the page on memory and speed asks: peaks, traffic, quantiles of latencies, and rates beside bandwidth.

Quantiles are taken in SQL: of 200,000 samples a row each cell arrives. They are nearest ranks, values that were
measured, not between two.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, Engine, Select, Subquery, case, func, select

from db.counted import samples_of
from db.progress import KEYS_PER_STATEMENT
from db.schema import Shard

PERCENTILES = (1, 5, 25, 50, 75, 95, 99)
PEAKS = ("hbm_bytes_peak", "full_bytes_end", "metadata_bytes_peak")


@dataclass(frozen=True, slots=True)
class Quantiles:
    """How a measure is spread over a cell's samples: values by percentile, of the `n` that were measured."""

    n: int
    mean: float
    at: dict[int, float]

    @property
    def median(self) -> float:
        """Return the 50th percentile."""
        return self.at[50]


@dataclass(frozen=True, slots=True, kw_only=True)
class CellSpeed:
    """A cell's measures from its samples; None means not measured. Bytes are of one sequence, seconds of one sample."""

    fingerprint: str
    n: int  # samples that did not fail
    peaks: int  # of them with a recorded peak
    hbm_bytes_peak: float | None  # mean over sequences of the most that each held at once
    hbm_bytes_most: int | None  # of any sequence
    full_bytes_end: float | None  # what the full cache holds at the end, its most
    metadata_bytes_peak: float | None
    ttft_s: Quantiles | None  # from the start of a sample's prefill to its first token
    tpot_s: Quantiles | None  # from its first token to its last, over the tokens after the first


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSpeed:
    """A cell's shards on one kind of device; None means that no shard measured it."""

    fingerprint: str
    device: str
    shards: int
    shared: int  # shards with another engine on their node
    decode_tokens: int
    decode_s: float
    measured: int  # shards that know both the bytes they read and their device's bandwidth
    tokens_per_s: float | None  # of the measured shards, as are the next two
    bytes_per_token: float | None  # weights, keys and values that a decode step reads, over its tokens
    copy_bytes_per_s: float | None  # mean over their decode time
    bytes_to_host: int
    bytes_to_device: int
    transfer_s: float | None
    transfer_decode_s: float | None  # decode time of the shards that measured transfers
    allocated_bytes_peak: int | None  # of all rows together
    device_peak_bytes: int | None  # what the device itself says, above the weights

    @property
    def roof_tokens_per_s(self) -> float | None:
        """Return what the memory's bandwidth allows if nothing else takes time."""
        if not self.bytes_per_token or self.copy_bytes_per_s is None:
            return None
        return self.copy_bytes_per_s / self.bytes_per_token

    @property
    def roof_share(self) -> float | None:
        """Return tokens/s over the roof."""
        roof = self.roof_tokens_per_s
        return None if not roof or self.tokens_per_s is None else self.tokens_per_s / roof

    @property
    def transfer_share(self) -> float | None:
        """Return the share of decode time in which bytes crossed the bus."""
        return (
            None if self.transfer_s is None or not self.transfer_decode_s else self.transfer_s / self.transfer_decode_s
        )


def cell_speeds(engine: Engine, sweep_id: str | None, model: str, benchmark: str) -> dict[str, CellSpeed]:
    """Return the measures of each cell of a model and benchmark with a sample that did not fail, by fingerprint.

    `db.counted` says which samples count for a sweep; without one, all do.
    """
    names = ("fingerprint", "outcome", "ttft_s", "wall_s", "output_tokens", *PEAKS)
    counted = samples_of(sweep_id, names, model=model, benchmark=benchmark)
    source = select(counted).where(counted.c.outcome != "failed").subquery()
    after_first = source.c.output_tokens - 1
    tpot = case((after_first > 0, (source.c.wall_s - source.c.ttft_s) / after_first))
    with engine.connect() as connection:
        rows = connection.execute(_peaks(source, source.c.ttft_s, tpot)).all()
        ttfts = _ranks(connection, source, source.c.ttft_s)
        tpots = _ranks(connection, source, tpot)
    return {
        row.fingerprint: CellSpeed(
            fingerprint=row.fingerprint,
            n=row.n,
            peaks=row.peaks,
            hbm_bytes_most=row.hbm_bytes_most,
            **{name: _number(row._mapping[name]) for name in PEAKS},
            ttft_s=_quantiles(row.ttft, row.ttfts, ttfts.get(row.fingerprint)),
            tpot_s=_quantiles(row.tpot, row.tpots, tpots.get(row.fingerprint)),
        )
        for row in rows
    }


def device_speeds(engine: Engine, fingerprints: Sequence[str]) -> list[DeviceSpeed]:
    """Return the sums over the shards of each cell and device, in order of both."""
    found: list[DeviceSpeed] = []
    wanted = sorted(set(fingerprints))
    with engine.connect() as connection:
        for start in range(0, len(wanted), KEYS_PER_STATEMENT):
            statement = _devices().where(Shard.fingerprint.in_(wanted[start : start + KEYS_PER_STATEMENT]))
            found += [_device(row._mapping) for row in connection.execute(statement)]
    return found


def _peaks(source: Subquery, ttft: ColumnElement[Any], tpot: ColumnElement[Any]) -> Select[*tuple[Any, ...]]:
    return select(
        source.c.fingerprint,
        func.count().label("n"),
        func.count(source.c.hbm_bytes_peak).label("peaks"),
        *(func.avg(source.c[name]).label(name) for name in PEAKS),
        func.max(source.c.hbm_bytes_peak).label("hbm_bytes_most"),
        func.count(ttft).label("ttfts"),
        func.avg(ttft).label("ttft"),
        func.count(tpot).label("tpots"),
        func.avg(tpot).label("tpot"),
    ).group_by(source.c.fingerprint)


def _ranks(connection: Connection, source: Subquery, value: ColumnElement[Any]) -> dict[str, dict[int, float]]:
    """Return the values at the percentiles' ranks, by fingerprint: the others stay in the database."""
    group = source.c.fingerprint
    ranked = (
        select(
            group,
            value.label("value"),
            func.row_number().over(partition_by=group, order_by=value).label("rank"),
            func.count().over(partition_by=group).label("n"),
        )
        .where(value.is_not(None))
        .subquery()
    )
    places = [_rank(ranked.c.n, percent) for percent in PERCENTILES]
    statement = select(ranked.c.fingerprint, ranked.c.rank, ranked.c.value).where(ranked.c.rank.in_(places))
    found: dict[str, dict[int, float]] = {}
    for fingerprint, rank, measured in connection.execute(statement):
        found.setdefault(fingerprint, {})[rank] = float(measured)
    return found


def _quantiles(mean: Any, n: int, ranks: dict[int, float] | None) -> Quantiles | None:
    if ranks is None:
        return None
    return Quantiles(n, float(mean), {percent: ranks[_rank(n, percent)] for percent in PERCENTILES})


def _rank(n: Any, percent: int) -> Any:
    """The lowest rank at or below which lie so many percent of `n` values. In SQL whole numbers divide alike."""
    return (n * percent + 99) // 100


def _devices() -> Select[*tuple[Any, ...]]:
    known = Shard.decode_read_bytes.is_not(None) & Shard.copy_bytes_per_s.is_not(None) & (Shard.decode_tokens > 0)
    moved = Shard.transfer_s.is_not(None)

    def over(condition: ColumnElement[bool], value: Any) -> ColumnElement[Any]:
        return func.sum(case((condition, value)))

    seconds, tokens = over(known, Shard.decode_s), over(known, Shard.decode_tokens)
    return (
        select(
            Shard.fingerprint,
            Shard.device,
            func.count().label("shards"),
            func.sum(case((Shard.exclusive, 0), else_=1)).label("shared"),
            func.sum(Shard.decode_tokens).label("decode_tokens"),
            func.sum(Shard.decode_s).label("decode_s"),
            func.sum(case((known, 1), else_=0)).label("measured"),
            (tokens * 1.0 / func.nullif(seconds, 0.0)).label("tokens_per_s"),
            (over(known, Shard.decode_read_bytes) * 1.0 / func.nullif(tokens, 0)).label("bytes_per_token"),
            (over(known, Shard.copy_bytes_per_s * Shard.decode_s) / func.nullif(seconds, 0.0)).label(
                "copy_bytes_per_s"
            ),
            func.sum(Shard.bytes_to_host).label("bytes_to_host"),
            func.sum(Shard.bytes_to_device).label("bytes_to_device"),
            over(moved, Shard.transfer_s).label("transfer_s"),
            over(moved, Shard.decode_s).label("transfer_decode_s"),
            func.max(Shard.allocated_bytes_peak).label("allocated_bytes_peak"),
            func.max(Shard.device_peak_bytes).label("device_peak_bytes"),
        )
        .group_by(Shard.fingerprint, Shard.device)
        .order_by(Shard.fingerprint, Shard.device)
    )


WHOLE = ("decode_tokens", "bytes_to_host", "bytes_to_device", "shared", "measured")
REAL = ("decode_s", "tokens_per_s", "bytes_per_token", "copy_bytes_per_s", "transfer_s", "transfer_decode_s")


def _device(row: Any) -> DeviceSpeed:
    """Postgres sums integers into Decimals."""
    return DeviceSpeed(
        **{**row, **{name: int(row[name]) for name in WHOLE}, **{name: _number(row[name]) for name in REAL}}
    )


def _number(value: Any) -> float | None:
    return None if value is None else float(value)
