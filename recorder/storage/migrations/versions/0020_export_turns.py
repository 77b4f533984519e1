"""Workspaces take turns: open exports have an index, recounts of exports and tries of recipes have a time."""

import sqlalchemy as sa
from alembic import op

revision = "2026.6.18"
down_revision = "2026.6.17"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the times of recounts and tries, and index open exports."""
    op.add_column("exports", sa.Column("awaited_counted_at", sa.DateTime(timezone=True), nullable=True))
    op.add_column("export_recipes", sa.Column("tried_at", sa.DateTime(timezone=True), nullable=True))
    where = sa.text("completed_at IS NULL")
    op.create_index(
        "ix_exports_open", "exports", ["workspace_id"], sqlite_where=where, postgresql_where=where
    )


def downgrade() -> None:
    """Drop the index of open exports, and the times of recounts and tries."""
    op.drop_index("ix_exports_open", table_name="exports")
    op.drop_column("export_recipes", "tried_at")
    op.drop_column("exports", "awaited_counted_at")
