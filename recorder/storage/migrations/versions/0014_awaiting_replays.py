"""Dry replays that a run can work on have an index, and those that wait for a decision one by its time."""

import sqlalchemy as sa
from alembic import op

revision = "2026.6.12"
down_revision = "2026.6.11"
branch_labels = None
depends_on = None

_INDEXES = {
    "ix_replays_to_run": ("id", "sandbox = 'dry' AND finished_at IS NULL AND awaiting_step IS NULL"),
    "ix_replays_awaiting": (
        "awaiting_until",
        "sandbox = 'dry' AND finished_at IS NULL AND awaiting_until IS NOT NULL",
    ),
}


def upgrade() -> None:
    """Create the indexes of dry replays to run and of replays that wait for a decision."""
    for name, (last, condition) in _INDEXES.items():
        where = sa.text(condition)
        op.create_index(
            name, "replays", ["workspace_id", "mode", last], sqlite_where=where, postgresql_where=where
        )


def downgrade() -> None:
    """Drop the indexes of dry replays to run and of replays that wait for a decision."""
    for name in _INDEXES:
        op.drop_index(name, table_name="replays")
