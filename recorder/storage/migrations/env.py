"""Alembic environment: runs the migrations for SQLite and PostgreSQL, called by `Database.migrate`."""

from alembic import context

from recorder.models.tables import METADATA

connection = context.config.attributes["connection"]
# Batch mode rebuilds tables where SQLite cannot alter them.
context.configure(connection=connection, target_metadata=METADATA, render_as_batch=True)
with context.begin_transaction():
    context.run_migrations()
