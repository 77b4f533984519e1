"""Live replays that wait have an index, so that workers find those of each workspace without reading all."""

import sqlalchemy as sa
from alembic import op

revision = "2026.6.19"
down_revision = "2026.6.18"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the index of waiting live replays."""
    where = sa.text("sandbox = 'live' AND status = 'queued' AND finished_at IS NULL")
    op.create_index(
        "ix_replays_live_queued",
        "replays",
        ["workspace_id", "mode", "id"],
        sqlite_where=where,
        postgresql_where=where,
    )


def downgrade() -> None:
    """Drop the index of waiting live replays."""
    op.drop_index("ix_replays_live_queued", table_name="replays")
