"""Waiting events have an index by workspace, and webhooks count the events that they did not get."""

import sqlalchemy as sa
from alembic import op

revision = "2026.6.15"
down_revision = "2026.6.14"
branch_labels = None
depends_on = None

_WHERE = sa.text("dispatched_at IS NULL")


def upgrade() -> None:
    """Index pending outbox events by workspace, and add the counts of skipped events to webhooks."""
    op.drop_index("ix_outbox_pending", table_name="outbox")
    op.create_index(
        "ix_outbox_pending",
        "outbox",
        ["workspace_id", "id"],
        sqlite_where=_WHERE,
        postgresql_where=_WHERE,
    )
    op.add_column("webhooks", sa.Column("skipped_count", sa.BigInteger(), server_default="0", nullable=False))
    for name in ("skipped_first_at", "skipped_last_at"):
        op.add_column("webhooks", sa.Column(name, sa.DateTime(timezone=True), nullable=True))


def downgrade() -> None:
    """Index pending outbox events by id, and drop the counts of skipped events."""
    for name in ("skipped_last_at", "skipped_first_at", "skipped_count"):
        op.drop_column("webhooks", name)
    op.drop_index("ix_outbox_pending", table_name="outbox")
    op.create_index("ix_outbox_pending", "outbox", ["id"], sqlite_where=_WHERE, postgresql_where=_WHERE)
