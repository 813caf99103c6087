"""The tables. `db/migrations` creates the same ones; a test compares the two.

Wide text columns stand last: SQLite reads a row from the left, so sums over the numbers never touch a
60,000-token generation that lies behind them.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    DateTime,
    Dialect,
    Double,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Text,
    TypeDecorator,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column


class UtcDateTime(TypeDecorator[datetime]):
    """Aware UTC datetimes in and out. SQLite has no time zones, so the naive value it keeps is UTC by convention."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError(f"datetime {value!r} has no time zone; pass an aware one, e.g. datetime.now(UTC)")
        value = value.astimezone(UTC)
        return value.replace(tzinfo=None) if dialect.name == "sqlite" else value

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class Base(DeclarativeBase):
    """Shared metadata. Constraint names are fixed so that later migrations can address them on both databases."""

    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    type_annotation_map = {  # noqa: RUF012  (SQLAlchemy reads this class attribute)
        datetime: UtcDateTime(),
        dict[str, Any]: JSON(),
        int: BigInteger(),
        float: Double(),
        str: String(),
    }


class Sweep(Base):
    """One sweep file as it was submitted. `heartbeat_at` goes stale when its coordinator dies."""

    __tablename__ = "sweeps"

    id: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str]
    spec: Mapped[dict[str, Any]]
    environment: Mapped[dict[str, Any]]  # versions, host
    state: Mapped[str]
    total_samples: Mapped[int]
    created_at: Mapped[datetime]
    heartbeat_at: Mapped[datetime]
    control: Mapped[str | None]


class Cell(Base):
    """One point of a grid, whichever sweeps contain it."""

    __tablename__ = "cells"
    __table_args__ = (Index(None, "model", "benchmark", "protocol"),)

    fingerprint: Mapped[str] = mapped_column(primary_key=True)
    model: Mapped[str]
    benchmark: Mapped[str]
    policy: Mapped[str]
    policy_name: Mapped[str]
    protocol: Mapped[str]
    kv_bytes_per_token: Mapped[int]
    created_at: Mapped[datetime]
    config: Mapped[dict[str, Any]]


class SweepCell(Base):
    """Which cells a sweep asks for, in what order, and how many samples of each."""

    __tablename__ = "sweep_cells"
    __table_args__ = (Index(None, "fingerprint"),)

    sweep_id: Mapped[str] = mapped_column(ForeignKey("sweeps.id", ondelete="CASCADE"), primary_key=True)
    fingerprint: Mapped[str] = mapped_column(ForeignKey("cells.fingerprint"), primary_key=True)
    position: Mapped[int]
    expected_samples: Mapped[int]


class Lease(Base):
    """Who computes a cell now; see `db.leases`."""

    __tablename__ = "leases"

    fingerprint: Mapped[str] = mapped_column(ForeignKey("cells.fingerprint"), primary_key=True)
    holder: Mapped[str]
    sweep_id: Mapped[str]
    expires_at: Mapped[datetime]


class Sample(Base):
    """One finished sample; see `db.rows.SampleRow` for units."""

    __tablename__ = "samples"
    __table_args__ = (Index(None, "fingerprint", "outcome"),)

    fingerprint: Mapped[str] = mapped_column(ForeignKey("cells.fingerprint"), primary_key=True)
    problem_id: Mapped[str] = mapped_column(primary_key=True)
    repeat: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    attempt: Mapped[int]
    seed: Mapped[int]
    outcome: Mapped[str]
    score: Mapped[float | None]
    grader: Mapped[str | None]
    finish_reason: Mapped[str]
    prompt_tokens: Mapped[int | None]
    output_tokens: Mapped[int | None]
    ttft_s: Mapped[float | None]
    wall_s: Mapped[float | None]
    hbm_tokens: Mapped[int | None]
    ddr_tokens: Mapped[int | None]
    packed_tokens: Mapped[int | None]
    evicted_tokens: Mapped[int | None]
    hbm_bytes_mean: Mapped[float | None]
    hbm_bytes_peak: Mapped[int | None]
    ddr_bytes_mean: Mapped[float | None]
    packed_bytes_mean: Mapped[float | None]
    evicted_bytes_end: Mapped[int | None]
    full_bytes_mean: Mapped[float | None]
    full_bytes_end: Mapped[int | None]
    metadata_bytes_peak: Mapped[int | None]
    # Not a foreign key: samples stream in before the shard that made them has ended.
    shard_id: Mapped[str | None]
    finished_at: Mapped[datetime]
    extracted: Mapped[str | None] = mapped_column(Text)
    reference: Mapped[str] = mapped_column(Text)
    error: Mapped[str | None] = mapped_column(Text)
    prompt: Mapped[str] = mapped_column(Text)
    output: Mapped[str] = mapped_column(Text)


class Diagnostic(Base):
    """What was measured of a sample; see `db.rows.DiagnosticRow`. A table of its own: few sweeps ask for it, and
    samples keep their columns."""

    __tablename__ = "diagnostics"

    fingerprint: Mapped[str] = mapped_column(ForeignKey("cells.fingerprint"), primary_key=True)
    problem_id: Mapped[str] = mapped_column(primary_key=True)
    repeat: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    steps: Mapped[int]
    fmm_acc: Mapped[float | None]
    fmm_fp: Mapped[float | None]
    fmm_acc_sinks: Mapped[float | None]
    fmm_fp_sinks: Mapped[float | None]
    churn: Mapped[float | None]
    lir_rescued: Mapped[int]
    lir_eligible: Mapped[int]
    recall: Mapped[float | None]
    output_error: Mapped[float | None]
    kl: Mapped[float | None]
    first_divergent: Mapped[int | None]
    finished_at: Mapped[datetime]
    detail: Mapped[dict[str, Any]]


class StoredTierMap(Base):
    """Where each token of a sample lay while it ran; `db.tier_codec` says what the blob holds, `db.tier_maps` reads."""

    __tablename__ = "tier_maps"

    fingerprint: Mapped[str] = mapped_column(ForeignKey("cells.fingerprint"), primary_key=True)
    problem_id: Mapped[str] = mapped_column(primary_key=True)
    repeat: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    steps: Mapped[int]
    prompt_tokens: Mapped[int]
    tokens: Mapped[int]
    looks: Mapped[int]
    layers: Mapped[int]
    kv_heads: Mapped[int]
    no_importance: Mapped[str | None]
    finished_at: Mapped[datetime]
    blob: Mapped[bytes]


class Shard(Base):
    """One engine call; see `db.rows.ShardRow` for units."""

    __tablename__ = "shards"
    __table_args__ = (Index(None, "fingerprint"),)

    id: Mapped[str] = mapped_column(primary_key=True)
    fingerprint: Mapped[str] = mapped_column(ForeignKey("cells.fingerprint"))
    sweep_id: Mapped[str] = mapped_column(ForeignKey("sweeps.id"))
    actor: Mapped[str]
    host: Mapped[str]
    device: Mapped[str]
    started_at: Mapped[datetime]
    finished_at: Mapped[datetime]
    samples: Mapped[int]
    prefill_tokens: Mapped[int]
    prefill_s: Mapped[float]
    decode_tokens: Mapped[int]
    decode_s: Mapped[float]
    decode_steps: Mapped[int]
    tpot_p50_s: Mapped[float | None]
    tpot_p99_s: Mapped[float | None]
    ttft_p50_s: Mapped[float | None]
    max_rows: Mapped[int | None]
    allocated_bytes_peak: Mapped[int | None]
    device_peak_bytes: Mapped[int | None]
    device_peak_source: Mapped[str]
    bytes_to_host: Mapped[int]
    bytes_to_device: Mapped[int]
    exclusive: Mapped[bool]
    decode_read_bytes: Mapped[int | None]
    copy_bytes_per_s: Mapped[float | None]
    transfer_s: Mapped[float | None]


class Event(Base):
    """A line of a sweep's log. `uid` makes a replayed event land once."""

    __tablename__ = "events"
    __table_args__ = (Index(None, "sweep_id"),)

    # SQLite numbers rows by itself only in a column declared INTEGER.
    id: Mapped[int] = mapped_column(BigInteger().with_variant(Integer(), "sqlite"), primary_key=True)
    uid: Mapped[str] = mapped_column(unique=True)
    sweep_id: Mapped[str] = mapped_column(ForeignKey("sweeps.id"))
    at: Mapped[datetime]
    kind: Mapped[str]
    fingerprint: Mapped[str | None]
    message: Mapped[str] = mapped_column(Text)
    data: Mapped[dict[str, Any]]


class Revision(Base):
    """One row, counted up by every change that a reader can see: the dashboard's cheap 'is there anything new?'."""

    __tablename__ = "revision"

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    number: Mapped[int]
