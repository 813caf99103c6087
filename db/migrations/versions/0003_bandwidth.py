"""What decode steps read, and how fast the device's memory is."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.add_column("shards", sa.Column("decode_read_bytes", sa.BigInteger(), nullable=True))
    op.add_column("shards", sa.Column("copy_bytes_per_s", sa.Double(), nullable=True))
    op.add_column("shards", sa.Column("transfer_s", sa.Double(), nullable=True))


def downgrade() -> None:
    for name in ("transfer_s", "copy_bytes_per_s", "decode_read_bytes"):
        op.drop_column("shards", name)
