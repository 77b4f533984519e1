"""Texts of recorded pages name nodes only where sessions share them: one row for each session that proves it."""

import sqlalchemy as sa
from alembic import op

revision = "2026.6.3"
down_revision = "2026.6.2"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create `graph_labels`; labels that quote a page become empty until sessions share a text again."""
    op.create_table(
        "graph_labels",
        sa.Column("workspace_id", sa.String(), nullable=False),
        sa.Column("mode", sa.String(), nullable=False),
        sa.Column("workflow", sa.String(), nullable=False),
        sa.Column("session_id", sa.String(), nullable=False),
        sa.Column("micro_key", sa.BigInteger(), nullable=False),
        sa.Column("kind", sa.Integer(), nullable=False),
        sa.Column("text", sa.String(), nullable=False),
        sa.Column("actor", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint(
            "workspace_id", "mode", "workflow", "session_id", "micro_key", "kind", "text"
        ),
        sqlite_with_rowid=False,
    )
    op.execute("UPDATE graph_nodes SET label = '' WHERE kind NOT IN ('activity', 'tool_call')")


def downgrade() -> None:
    """Drop `graph_labels`."""
    op.drop_table("graph_labels")
