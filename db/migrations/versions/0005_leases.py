"""Who computes a cell now, what a sweep is told to do, and an index for comparing a problem's samples."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    op.create_table(
        "leases",
        sa.Column("fingerprint", sa.String(), nullable=False),
        sa.Column("holder", sa.String(), nullable=False),
        sa.Column("sweep_id", sa.String(), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["fingerprint"], ["cells.fingerprint"], name="fk_leases_fingerprint_cells"),
        sa.PrimaryKeyConstraint("fingerprint", name="pk_leases"),
    )
    # The cells that one problem met under one protocol: the way to a problem's other samples.
    op.create_index("ix_cells_model_benchmark_protocol", "cells", ["model", "benchmark", "protocol"])
    op.add_column("sweeps", sa.Column("control", sa.String(), nullable=True))


def downgrade() -> None:
    op.drop_column("sweeps", "control")
    op.drop_index("ix_cells_model_benchmark_protocol", "cells")
    op.drop_table("leases")
