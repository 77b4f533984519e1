"""Alembic environment: runs the migrations for SQLite and PostgreSQL, called by `Database.migrate`."""

from alembic import context
from sqlmodel import SQLModel

import recorder.models  # noqa: F401  (registers every table)

connection = context.config.attributes["connection"]
# Batch mode rebuilds tables where SQLite cannot alter them.
context.configure(connection=connection, target_metadata=SQLModel.metadata, render_as_batch=True)
with context.begin_transaction():
    context.run_migrations()
