"""Recoveries keep the policy of their attempts."""

import sqlalchemy as sa
from alembic import op

revision = "2026.6.10"
down_revision = "2026.6.9"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add `recoveries.policy`; recoveries of earlier releases have the default policy."""
    op.add_column("recoveries", sa.Column("policy", sa.JSON(), nullable=True))


def downgrade() -> None:
    """Drop `recoveries.policy`."""
    op.drop_column("recoveries", "policy")
