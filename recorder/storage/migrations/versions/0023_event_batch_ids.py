"""Batches of events are found by the ids that the service assigned to their events."""

from alembic import op

revision = "2026.6.21"
down_revision = "2026.6.20"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Compare ids of event batches by their bytes, as SQLite does, and index the first one."""
    if op.get_context().dialect.name == "postgresql":
        op.execute('ALTER TABLE event_batches ALTER COLUMN first_id TYPE VARCHAR COLLATE "C"')
    op.create_index("ix_event_batches_first_id", "event_batches", ["session_id", "first_id"])


def downgrade() -> None:
    """Drop the index of first ids, and compare ids as the database does."""
    op.drop_index("ix_event_batches_first_id", table_name="event_batches")
    if op.get_context().dialect.name == "postgresql":
        op.execute('ALTER TABLE event_batches ALTER COLUMN first_id TYPE VARCHAR COLLATE "default"')
