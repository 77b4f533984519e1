"""Recoveries keep inputs for their live attempt, encrypted, until they end."""

import sqlalchemy as sa
from alembic import op

revision = "2026.6.8"
down_revision = "2026.6.7"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the inputs of recoveries; recoveries of earlier releases have none."""
    op.add_column("recoveries", sa.Column("input_names", sa.JSON(), nullable=True))
    op.add_column("recoveries", sa.Column("input_values", sa.LargeBinary(), nullable=True))


def downgrade() -> None:
    """Drop the inputs of recoveries."""
    op.drop_column("recoveries", "input_values")
    op.drop_column("recoveries", "input_names")
