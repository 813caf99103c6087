"""Alembic's entry. The connection and its transaction come from `db.migrate`, which holds the lock."""

from alembic import context

from db.schema import Base

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Base.metadata,
    transactional_ddl=True,  # true of SQLite as well, as our transactions begin explicitly
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
