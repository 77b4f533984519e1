"""Frames: ids in the order of their bytes, so that the index gives pages in the order of the lake."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    if op.get_bind().dialect.name == "postgresql":
        op.alter_column(
            "frames",
            "frame_id",
            type_=sa.String(collation="C"),
            existing_type=sa.String(),
            existing_nullable=False,
        )
