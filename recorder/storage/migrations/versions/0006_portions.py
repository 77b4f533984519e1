"""Stored bytes of sessions, and portions of large ones that are prepared for sealing."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "seal_portions",
        sa.Column("session_id", sa.String(), nullable=False),
        sa.Column("n", sa.Integer(), nullable=False),
        sa.Column("date", sa.String(), nullable=False),
        sa.Column("state", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("session_id", "n"),
        sqlite_with_rowid=False,
    )
    for name in ("event_bytes", "frame_bytes"):
        op.add_column("sessions", sa.Column(name, sa.BigInteger(), nullable=False, server_default="0"))
