"""One line of numbers a cell: what the comparison charts and tables show."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, Engine, Select, Subquery, case, func, null, select
from sqlalchemy.orm import Session

from db.counted import cells_of, samples_of
from db.intervals import normal, wilson
from db.paired import score_of
from db.rows import OUTCOMES
from db.schema import Cell, Shard, SweepCell

MEASURES = (
    "output_tokens",
    "ttft_s",
    "hbm_bytes_mean",
    "ddr_bytes_mean",
    "packed_bytes_mean",
    "evicted_bytes_end",
    "full_bytes_mean",
    "metadata_bytes_peak",
)
TIERS = ("hbm_tokens", "ddr_tokens", "packed_tokens", "evicted_tokens")
_SUMMED = ("fingerprint", "problem_id", "outcome", "score", *MEASURES, *TIERS)


@dataclass(frozen=True, slots=True, kw_only=True)
class CellSummary:
    """A cell's numbers; None means not measured. Bytes are the ledger's logical bytes, mean per sequence."""

    fingerprint: str
    model: str
    benchmark: str
    policy: str
    policy_name: str
    protocol: str
    kv_bytes_per_token: int
    expected: int | None  # what the asked-for sweep expects; None when no sweep was named
    n: int  # judged samples: all but the failed
    problems: int
    correct: int
    wrong: int
    no_answer: int
    truncated: int
    failed: int
    accuracy: float | None  # mean score: correct / n, unless the metric gives part marks
    accuracy_low: float | None  # 95% interval: Wilson's, with part marks the normal one
    accuracy_high: float | None
    truncation_rate: float | None
    output_tokens: float | None
    ttft_s: float | None
    hbm_bytes: float | None
    ddr_bytes: float | None
    packed_bytes: float | None
    evicted_bytes: float | None  # at the end
    full_bytes: float | None
    metadata_bytes_peak: float | None
    kept_share: float | None  # tokens not evicted at the end / tokens seen
    decode_tokens_per_s: float | None  # sum of tokens / sum of seconds over the cell's shards
    prefill_tokens_per_s: float | None
    tpot_p50_s: float | None  # mean of the shards' percentiles, weighted by decode steps
    tpot_p99_s: float | None
    max_rows: int | None
    bytes_to_host: int | None
    bytes_to_device: int | None
    bandwidth_share: float | None  # bytes that decode steps read a second, over what the memory copies
    transfer_share: float | None  # of decode time, in which bytes crossed the bus; None where there is none
    device_peak_bytes: int | None
    device_peak_sources: tuple[str, ...]
    devices: tuple[str, ...]
    shards: int
    exclusive: bool | None  # False if any shard shared its node, so that throughput isn't the policy's alone

    @property
    def resident_bytes(self) -> float | None:
        """Return what lies in device memory: tokens in full precision and quantised ones."""
        return None if self.hbm_bytes is None else self.hbm_bytes + (self.packed_bytes or 0.0)

    @property
    def resident_share(self) -> float | None:
        """Return resident bytes over what the full cache would have held."""
        if self.resident_bytes is None or not self.full_bytes:
            return None
        return self.resident_bytes / self.full_bytes


def cell_summaries(
    engine: Engine, sweep_id: str | None = None, *, model: str | None = None, benchmark: str | None = None
) -> list[CellSummary]:
    """Return a summary of each cell: of one sweep in its order, or of all by model, benchmark and policy.

    With a model or a benchmark only its cells: of a large sweep that is a small part of the work.
    `db.counted` says which samples count for a sweep.
    """
    cells: Select[*tuple[Any, ...]]
    if sweep_id is None:
        cells = select(Cell, null().label("expected")).order_by(Cell.model, Cell.benchmark, Cell.policy)
    else:
        cells = (
            select(Cell, SweepCell.expected_samples.label("expected"))
            .join(SweepCell, SweepCell.fingerprint == Cell.fingerprint)
            .where(SweepCell.sweep_id == sweep_id)
            .order_by(SweepCell.position)
        )
    chosen = cells_of(model, benchmark)
    machine = select(Shard.fingerprint, Shard.device, Shard.device_peak_source).distinct().order_by(Shard.device)
    if chosen is not None:
        cells = cells.where(Cell.fingerprint.in_(chosen))
        machine = machine.where(Shard.fingerprint.in_(chosen))
    with Session(engine) as session:
        connection = session.connection()
        found = session.execute(cells).all()
        counted = samples_of(sweep_id, _SUMMED, model=model, benchmark=benchmark)
        samples = _by_fingerprint(connection, _sample_numbers(counted))
        shards = _by_fingerprint(connection, _shard_numbers(chosen))
        machines = connection.execute(machine).all()
    devices: dict[str, list[str]] = {}
    sources: dict[str, list[str]] = {}
    for fingerprint, device, source in machines:
        devices.setdefault(fingerprint, []).append(device)
        sources.setdefault(fingerprint, []).append(source)
    return [
        _summary(
            row.Cell,
            row.expected,
            samples.get(row.Cell.fingerprint, {}),
            shards.get(row.Cell.fingerprint, {}),
            tuple(dict.fromkeys(devices.get(row.Cell.fingerprint, []))),
            tuple(dict.fromkeys(sources.get(row.Cell.fingerprint, []))),
        )
        for row in found
    ]


def list_policies(engine: Engine) -> list[tuple[str, str]]:
    """Return every (label, preset) in the database, in order."""
    statement = select(Cell.policy, Cell.policy_name).distinct().order_by(Cell.policy, Cell.policy_name)
    with engine.connect() as connection:
        return [(label, preset) for label, preset in connection.execute(statement)]


def _sample_numbers(source: Subquery) -> Select[*tuple[Any, ...]]:
    judged, score = source.c.outcome != "failed", score_of(source.c)
    return select(
        source.c.fingerprint,
        func.count(func.distinct(case((judged, source.c.problem_id)))).label("problems"),
        *(func.sum(case((source.c.outcome == outcome, 1), else_=0)).label(f"n_{outcome}") for outcome in OUTCOMES),
        func.sum(case((judged, score))).label("scores"),
        func.sum(case((judged, score * score))).label("squares"),
        *(func.avg(case((judged, source.c[name]))).label(name) for name in MEASURES),
        *(func.sum(case((judged, source.c[name]))).label(name) for name in TIERS),
    ).group_by(source.c.fingerprint)


def _shard_numbers(chosen: Select[str] | None) -> Select[*tuple[Any, ...]]:
    steps = func.sum(Shard.decode_steps)
    statement = select(
        Shard.fingerprint,
        func.count().label("shards"),
        (func.sum(Shard.decode_tokens) / func.nullif(func.sum(Shard.decode_s), 0.0)).label("decode_tokens_per_s"),
        (func.sum(Shard.prefill_tokens) / func.nullif(func.sum(Shard.prefill_s), 0.0)).label("prefill_tokens_per_s"),
        (func.sum(Shard.tpot_p50_s * Shard.decode_steps) / func.nullif(steps, 0)).label("tpot_p50_s"),
        (func.sum(Shard.tpot_p99_s * Shard.decode_steps) / func.nullif(steps, 0)).label("tpot_p99_s"),
        func.max(Shard.max_rows).label("max_rows"),
        func.sum(Shard.bytes_to_host).label("bytes_to_host"),
        func.sum(Shard.bytes_to_device).label("bytes_to_device"),
        _share(Shard.decode_read_bytes, Shard.decode_s * Shard.copy_bytes_per_s).label("bandwidth_share"),
        _share(Shard.transfer_s, Shard.decode_s).label("transfer_share"),
        func.max(Shard.device_peak_bytes).label("device_peak_bytes"),
        func.min(case((Shard.exclusive, 1), else_=0)).label("exclusive"),
    ).group_by(Shard.fingerprint)
    return statement if chosen is None else statement.where(Shard.fingerprint.in_(chosen))


def _share(part: Any, whole: Any) -> ColumnElement[Any]:
    """Over the shards for which both were measured."""
    both = part.is_not(None) & whole.is_not(None)
    return func.sum(case((both, part * 1.0))) / func.nullif(func.sum(case((both, whole))), 0.0)


def _by_fingerprint(connection: Connection, statement: Select[*tuple[Any, ...]]) -> dict[str, dict[str, Any]]:
    return {row.fingerprint: dict(row._mapping) for row in connection.execute(statement)}


def _summary(
    cell: Cell,
    expected: int | None,
    samples: dict[str, Any],
    shards: dict[str, Any],
    devices: tuple[str, ...],
    sources: tuple[str, ...],
) -> CellSummary:
    counts = {outcome: int(samples.get(f"n_{outcome}") or 0) for outcome in OUTCOMES}
    n = sum(counts.values()) - counts["failed"]
    accuracy, low, high = _accuracy(counts["correct"], n, samples)
    tiers = {name: int(samples.get(name) or 0) for name in TIERS}
    seen = sum(tiers.values())
    exclusive = shards.get("exclusive")
    return CellSummary(
        fingerprint=cell.fingerprint,
        model=cell.model,
        benchmark=cell.benchmark,
        policy=cell.policy,
        policy_name=cell.policy_name,
        protocol=cell.protocol,
        kv_bytes_per_token=cell.kv_bytes_per_token,
        expected=expected,
        n=n,
        problems=int(samples.get("problems") or 0),
        **counts,
        accuracy=accuracy,
        accuracy_low=low,
        accuracy_high=high,
        truncation_rate=counts["truncated"] / n if n else None,
        output_tokens=_number(samples.get("output_tokens")),
        ttft_s=_number(samples.get("ttft_s")),
        hbm_bytes=_number(samples.get("hbm_bytes_mean")),
        ddr_bytes=_number(samples.get("ddr_bytes_mean")),
        packed_bytes=_number(samples.get("packed_bytes_mean")),
        evicted_bytes=_number(samples.get("evicted_bytes_end")),
        full_bytes=_number(samples.get("full_bytes_mean")),
        metadata_bytes_peak=_number(samples.get("metadata_bytes_peak")),
        kept_share=1 - tiers["evicted_tokens"] / seen if seen else None,
        decode_tokens_per_s=_number(shards.get("decode_tokens_per_s")),
        prefill_tokens_per_s=_number(shards.get("prefill_tokens_per_s")),
        tpot_p50_s=_number(shards.get("tpot_p50_s")),
        tpot_p99_s=_number(shards.get("tpot_p99_s")),
        max_rows=shards.get("max_rows"),
        bytes_to_host=_integer(shards.get("bytes_to_host")),
        bytes_to_device=_integer(shards.get("bytes_to_device")),
        bandwidth_share=_number(shards.get("bandwidth_share")),
        transfer_share=_number(shards.get("transfer_share")),
        device_peak_bytes=shards.get("device_peak_bytes"),
        device_peak_sources=sources,
        devices=devices,
        shards=shards.get("shards") or 0,
        exclusive=None if exclusive is None else bool(exclusive),
    )


def _accuracy(correct: int, n: int, samples: dict[str, Any]) -> tuple[float | None, float | None, float | None]:
    """Mean score and its 95% interval."""
    scores, squares = float(samples.get("scores") or 0.0), float(samples.get("squares") or 0.0)
    if n and not scores == squares == correct:
        return normal(scores, squares, n, 0.0, 1.0) or (None, None, None)
    low, high = wilson(correct, n) or (None, None)
    return (correct / n if n else None), low, high


def _number(value: Any) -> float | None:
    """Postgres averages integers into Decimals."""
    return None if value is None else float(value)


def _integer(value: Any) -> int | None:
    return None if value is None else int(value)
