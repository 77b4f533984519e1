"""Time of the last rewrite of SQLite's file, so that retention rewrites it once a day, however often it runs."""

import sqlalchemy as sa
from alembic import op

revision = "2026.6.25"
down_revision = "2026.6.24"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add `deployment.rewritten_at`."""
    op.add_column("deployment", sa.Column("rewritten_at", sa.DateTime(timezone=True), nullable=True))


def downgrade() -> None:
    """Drop `deployment.rewritten_at`."""
    op.drop_column("deployment", "rewritten_at")
