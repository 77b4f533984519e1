"""Dry replays carry the key of a result that another one may copy."""

import sqlalchemy as sa
from alembic import op

revision = "2026.6.9"
down_revision = "2026.6.8"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add `replays.result_key` and its index; results of earlier releases are not copied."""
    op.add_column("replays", sa.Column("result_key", sa.String(), nullable=True))
    has_key = sa.text("result_key IS NOT NULL")
    op.create_index(
        "ix_replays_result", "replays", ["result_key"], sqlite_where=has_key, postgresql_where=has_key
    )


def downgrade() -> None:
    """Drop `replays.result_key` and its index."""
    op.drop_index("ix_replays_result", "replays")
    op.drop_column("replays", "result_key")
