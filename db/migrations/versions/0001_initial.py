"""The first tables."""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def required(name: str, kind: sa.types.TypeEngine[Any]) -> sa.Column[Any]:
    return sa.Column(name, kind, nullable=False)


def optional(name: str, kind: sa.types.TypeEngine[Any]) -> sa.Column[Any]:
    return sa.Column(name, kind, nullable=True)


def moment(name: str) -> sa.Column[Any]:
    return sa.Column(name, sa.DateTime(timezone=True), nullable=False)


def reference(table: str, column: str, target: str, ondelete: str | None = None) -> sa.ForeignKeyConstraint:
    referred = target.split(".")[0]
    return sa.ForeignKeyConstraint([column], [target], name=f"fk_{table}_{column}_{referred}", ondelete=ondelete)


def upgrade() -> None:
    create_sweeps_and_cells()
    create_samples()
    create_shards()
    create_events()


def create_sweeps_and_cells() -> None:
    op.create_table(
        "sweeps",
        required("id", sa.String()),
        required("name", sa.String()),
        required("spec", sa.JSON()),
        required("environment", sa.JSON()),
        required("state", sa.String()),
        required("total_samples", sa.BigInteger()),
        moment("created_at"),
        moment("heartbeat_at"),
        sa.PrimaryKeyConstraint("id", name="pk_sweeps"),
    )
    op.create_table(
        "cells",
        required("fingerprint", sa.String()),
        required("model", sa.String()),
        required("benchmark", sa.String()),
        required("policy", sa.String()),
        required("policy_name", sa.String()),
        required("protocol", sa.String()),
        required("kv_bytes_per_token", sa.BigInteger()),
        moment("created_at"),
        required("config", sa.JSON()),
        sa.PrimaryKeyConstraint("fingerprint", name="pk_cells"),
    )
    op.create_table(
        "sweep_cells",
        required("sweep_id", sa.String()),
        required("fingerprint", sa.String()),
        required("position", sa.BigInteger()),
        required("expected_samples", sa.BigInteger()),
        sa.PrimaryKeyConstraint("sweep_id", "fingerprint", name="pk_sweep_cells"),
        reference("sweep_cells", "sweep_id", "sweeps.id", ondelete="CASCADE"),
        reference("sweep_cells", "fingerprint", "cells.fingerprint"),
    )
    op.create_index("ix_sweep_cells_fingerprint", "sweep_cells", ["fingerprint"])


def create_samples() -> None:
    op.create_table(
        "samples",
        required("fingerprint", sa.String()),
        required("problem_id", sa.String()),
        sa.Column("repeat", sa.BigInteger(), nullable=False, autoincrement=False),
        required("attempt", sa.BigInteger()),
        required("seed", sa.BigInteger()),
        required("outcome", sa.String()),
        required("finish_reason", sa.String()),
        optional("prompt_tokens", sa.BigInteger()),
        optional("output_tokens", sa.BigInteger()),
        optional("ttft_s", sa.Double()),
        optional("wall_s", sa.Double()),
        optional("hbm_tokens", sa.BigInteger()),
        optional("ddr_tokens", sa.BigInteger()),
        optional("packed_tokens", sa.BigInteger()),
        optional("evicted_tokens", sa.BigInteger()),
        optional("hbm_bytes_mean", sa.Double()),
        optional("hbm_bytes_peak", sa.BigInteger()),
        optional("ddr_bytes_mean", sa.Double()),
        optional("packed_bytes_mean", sa.Double()),
        optional("evicted_bytes_end", sa.BigInteger()),
        optional("full_bytes_mean", sa.Double()),
        optional("full_bytes_end", sa.BigInteger()),
        optional("metadata_bytes_peak", sa.BigInteger()),
        optional("shard_id", sa.String()),
        moment("finished_at"),
        optional("extracted", sa.Text()),
        required("reference", sa.Text()),
        optional("error", sa.Text()),
        required("prompt", sa.Text()),
        required("output", sa.Text()),
        sa.PrimaryKeyConstraint("fingerprint", "problem_id", "repeat", name="pk_samples"),
        reference("samples", "fingerprint", "cells.fingerprint"),
    )
    op.create_index("ix_samples_fingerprint_outcome", "samples", ["fingerprint", "outcome"])


def create_shards() -> None:
    op.create_table(
        "shards",
        required("id", sa.String()),
        required("fingerprint", sa.String()),
        required("sweep_id", sa.String()),
        required("actor", sa.String()),
        required("host", sa.String()),
        required("device", sa.String()),
        moment("started_at"),
        moment("finished_at"),
        required("samples", sa.BigInteger()),
        required("prefill_tokens", sa.BigInteger()),
        required("prefill_s", sa.Double()),
        required("decode_tokens", sa.BigInteger()),
        required("decode_s", sa.Double()),
        required("decode_steps", sa.BigInteger()),
        optional("tpot_p50_s", sa.Double()),
        optional("tpot_p99_s", sa.Double()),
        optional("ttft_p50_s", sa.Double()),
        optional("max_rows", sa.BigInteger()),
        optional("allocated_bytes_peak", sa.BigInteger()),
        optional("device_peak_bytes", sa.BigInteger()),
        required("device_peak_source", sa.String()),
        required("bytes_to_host", sa.BigInteger()),
        required("bytes_to_device", sa.BigInteger()),
        required("exclusive", sa.Boolean()),
        sa.PrimaryKeyConstraint("id", name="pk_shards"),
        reference("shards", "fingerprint", "cells.fingerprint"),
        reference("shards", "sweep_id", "sweeps.id"),
    )
    op.create_index("ix_shards_fingerprint", "shards", ["fingerprint"])


def create_events() -> None:
    op.create_table(
        "events",
        required("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite")),
        required("uid", sa.String()),
        required("sweep_id", sa.String()),
        moment("at"),
        required("kind", sa.String()),
        optional("fingerprint", sa.String()),
        required("message", sa.Text()),
        required("data", sa.JSON()),
        sa.PrimaryKeyConstraint("id", name="pk_events"),
        sa.UniqueConstraint("uid", name="uq_events_uid"),
        reference("events", "sweep_id", "sweeps.id"),
    )
    op.create_index("ix_events_sweep_id", "events", ["sweep_id"])
    op.create_table(
        "revision",
        sa.Column("id", sa.BigInteger(), nullable=False, autoincrement=False),
        required("number", sa.BigInteger()),
        sa.PrimaryKeyConstraint("id", name="pk_revision"),
    )


def downgrade() -> None:
    for table in ("revision", "events", "shards", "samples", "sweep_cells", "cells", "sweeps"):
        op.drop_table(table)
