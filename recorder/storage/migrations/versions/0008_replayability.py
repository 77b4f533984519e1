"""Replayability of sessions, and exports that wait for it."""

import sqlalchemy as sa
from alembic import op

revision = "2026.6.6"
down_revision = "2026.6.5"
branch_labels = None
depends_on = None

_WAITING = sa.text(
    "sealed_at IS NOT NULL AND replayability_at IS NULL AND deleted_at IS NULL AND waiting_since IS NULL"
)


def upgrade() -> None:
    """Add `sessions.replayability` and what waits for it; sessions that are sealed by now wait too."""
    with op.batch_alter_table("sessions") as batch_op:
        batch_op.add_column(sa.Column("replayability", sa.Float(), nullable=True))
        batch_op.add_column(sa.Column("replayability_at", sa.DateTime(timezone=True), nullable=True))
    op.create_index(
        "ix_sessions_to_replay",
        "sessions",
        ["workspace_id", "mode", "sealed_at", "id"],
        sqlite_where=_WAITING,
        postgresql_where=_WAITING,
    )
    with op.batch_alter_table("exports") as batch_op:
        batch_op.add_column(sa.Column("awaited_sessions", sa.Integer(), nullable=True))


def downgrade() -> None:
    """Drop `sessions.replayability`, its time and index, and `exports.awaited_sessions`."""
    with op.batch_alter_table("exports") as batch_op:
        batch_op.drop_column("awaited_sessions")
    op.drop_index("ix_sessions_to_replay", table_name="sessions")
    with op.batch_alter_table("sessions") as batch_op:
        batch_op.drop_column("replayability_at")
        batch_op.drop_column("replayability")
