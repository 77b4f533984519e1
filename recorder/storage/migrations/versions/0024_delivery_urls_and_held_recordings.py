"""Attempts of deliveries keep their URL, and held recordings of replays the hashes of their sources' texts."""

import sqlalchemy as sa
from alembic import op

revision = "2026.6.22"
down_revision = "2026.6.21"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add `webhook_deliveries.request_url` and `session_metadata.source_hashes`, empty for earlier rows."""
    op.add_column("webhook_deliveries", sa.Column("request_url", sa.String(), nullable=True))
    op.add_column("session_metadata", sa.Column("source_hashes", sa.JSON(), nullable=True))


def downgrade() -> None:
    """Drop `session_metadata.source_hashes` and `webhook_deliveries.request_url`."""
    op.drop_column("session_metadata", "source_hashes")
    op.drop_column("webhook_deliveries", "request_url")
