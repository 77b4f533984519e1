"""Searches for candidates are counted before they begin, and recoveries keep that they went live."""

import sqlalchemy as sa
from alembic import op

revision = "2026.6.7"
down_revision = "2026.6.6"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the counts of searches, and `recoveries.went_live`, set where a live attempt is still there."""
    for table in ("replays", "recoveries"):
        op.add_column(table, sa.Column("searches", sa.Integer(), server_default="0", nullable=False))
    op.add_column(
        "recoveries", sa.Column("went_live", sa.Boolean(), server_default=sa.false(), nullable=False)
    )
    op.execute(
        "UPDATE recoveries SET went_live = true WHERE EXISTS (SELECT 1 FROM replays "
        "WHERE replays.cause = recoveries.id AND replays.sandbox = 'live')"
    )


def downgrade() -> None:
    """Drop the counts of searches and `recoveries.went_live`."""
    op.drop_column("recoveries", "went_live")
    for table in ("recoveries", "replays"):
        op.drop_column(table, "searches")
