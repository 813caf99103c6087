"""Diagnostics of samples."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.create_table(
        "diagnostics",
        sa.Column("fingerprint", sa.String(), nullable=False),
        sa.Column("problem_id", sa.String(), nullable=False),
        sa.Column("repeat", sa.BigInteger(), nullable=False, autoincrement=False),
        sa.Column("steps", sa.BigInteger(), nullable=False),
        sa.Column("fmm_acc", sa.Double(), nullable=True),
        sa.Column("fmm_fp", sa.Double(), nullable=True),
        sa.Column("fmm_acc_sinks", sa.Double(), nullable=True),
        sa.Column("fmm_fp_sinks", sa.Double(), nullable=True),
        sa.Column("churn", sa.Double(), nullable=True),
        sa.Column("lir_rescued", sa.BigInteger(), nullable=False),
        sa.Column("lir_eligible", sa.BigInteger(), nullable=False),
        sa.Column("recall", sa.Double(), nullable=True),
        sa.Column("output_error", sa.Double(), nullable=True),
        sa.Column("kl", sa.Double(), nullable=True),
        sa.Column("first_divergent", sa.BigInteger(), nullable=True),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("detail", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("fingerprint", "problem_id", "repeat", name="pk_diagnostics"),
        sa.ForeignKeyConstraint(["fingerprint"], ["cells.fingerprint"], name="fk_diagnostics_fingerprint_cells"),
    )


def downgrade() -> None:
    op.drop_table("diagnostics")
