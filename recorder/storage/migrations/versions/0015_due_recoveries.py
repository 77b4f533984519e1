"""Recoveries that a run can continue have an index: those without an attempt under way."""

import sqlalchemy as sa
from alembic import op

revision = "2026.6.13"
down_revision = "2026.6.12"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add `recoveries.attempt_is_open`, set where an attempt is under way, and index the others."""
    op.add_column(
        "recoveries", sa.Column("attempt_is_open", sa.Boolean(), server_default=sa.false(), nullable=False)
    )
    op.execute(
        "UPDATE recoveries SET attempt_is_open = TRUE WHERE finished_at IS NULL AND EXISTS (SELECT 1 "
        "FROM replays WHERE replays.cause = recoveries.id AND replays.finished_at IS NULL)"
    )
    where = sa.text("finished_at IS NULL AND NOT attempt_is_open")
    op.create_index(
        "ix_recoveries_due",
        "recoveries",
        ["workspace_id", "mode", "id"],
        sqlite_where=where,
        postgresql_where=where,
    )


def downgrade() -> None:
    """Drop `recoveries.attempt_is_open` and its index."""
    op.drop_index("ix_recoveries_due", table_name="recoveries")
    op.drop_column("recoveries", "attempt_is_open")
