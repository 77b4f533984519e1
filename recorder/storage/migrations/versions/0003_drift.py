"""Drift remembers the changes that it noticed, so that each is reported once."""

import sqlalchemy as sa
from alembic import op

revision = "2026.6.1"
down_revision = "2026.6.0"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add `drift_states.changes`; rows of an earlier release have none."""
    op.add_column("drift_states", sa.Column("changes", sa.JSON(), nullable=True))


def downgrade() -> None:
    """Drop `drift_states.changes`."""
    op.drop_column("drift_states", "changes")
