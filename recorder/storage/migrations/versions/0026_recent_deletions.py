"""Index of sessions by the time of their deletion, for exports that check the last ones as they complete."""

import sqlalchemy as sa
from alembic import op

revision = "2026.6.24"
down_revision = "2026.6.23"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the index of sessions by the time of their deletion."""
    where = sa.text("deleted_at IS NOT NULL")
    columns = ["workspace_id", "mode", "deleted_at", "id"]
    op.create_index("ix_sessions_deleted", "sessions", columns, sqlite_where=where, postgresql_where=where)


def downgrade() -> None:
    """Drop the index of sessions by the time of their deletion."""
    op.drop_index("ix_sessions_deleted", table_name="sessions")
