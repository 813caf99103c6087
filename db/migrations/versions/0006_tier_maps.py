"""Where each token of a sample lay while it ran."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    op.create_table(
        "tier_maps",
        sa.Column("fingerprint", sa.String(), nullable=False),
        sa.Column("problem_id", sa.String(), nullable=False),
        sa.Column("repeat", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("steps", sa.BigInteger(), nullable=False),
        sa.Column("prompt_tokens", sa.BigInteger(), nullable=False),
        sa.Column("tokens", sa.BigInteger(), nullable=False),
        sa.Column("looks", sa.BigInteger(), nullable=False),
        sa.Column("layers", sa.BigInteger(), nullable=False),
        sa.Column("kv_heads", sa.BigInteger(), nullable=False),
        sa.Column("no_importance", sa.String(), nullable=True),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("blob", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["fingerprint"], ["cells.fingerprint"], name="fk_tier_maps_fingerprint_cells"),
        sa.PrimaryKeyConstraint("fingerprint", "problem_id", "repeat", name="pk_tier_maps"),
    )


def downgrade() -> None:
    op.drop_table("tier_maps")
