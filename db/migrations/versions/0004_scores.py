"""A score beside each outcome, for metrics that give part marks, and the grader that gave it."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    # SQLite would put new columns behind the long texts, and every sum over them would read those: rebuild the table.
    rebuild = op.get_bind().dialect.name == "sqlite"
    with op.batch_alter_table("samples", recreate="always" if rebuild else "never") as samples:
        for name, kind, before in (("score", sa.Double(), "outcome"), ("grader", sa.String(), "score")):
            samples.add_column(sa.Column(name, kind, nullable=True), insert_after=before if rebuild else None)
    op.execute(
        "UPDATE samples SET score = CASE WHEN outcome = 'correct' THEN 1.0 ELSE 0.0 END WHERE outcome <> 'failed'"
    )


def downgrade() -> None:
    with op.batch_alter_table("samples") as samples:
        samples.drop_column("grader")
        samples.drop_column("score")
