"""Exports that take over files of the one before, can be cancelled, and say what holds them up."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # All may be null: rows of the release before are read, and carried on, as they are.
    with op.batch_alter_table("exports", schema=None) as batch_op:
        batch_op.add_column(sa.Column("progressed_attempt", sa.Integer(), nullable=True))
        batch_op.add_column(sa.Column("last_error", sa.String(), nullable=True))
        batch_op.add_column(sa.Column("files_left", sa.Boolean(), nullable=True))
        batch_op.add_column(sa.Column("series_sha256", sa.String(), nullable=True))
        batch_op.add_column(sa.Column("lineage", sa.JSON(), nullable=True))
        batch_op.create_index("ix_exports_series", ["workspace_id", "mode", "series_sha256", "id"])
        batch_op.create_index(
            "ix_exports_files_left",
            ["id"],
            sqlite_where=sa.text("files_left"),
            postgresql_where=sa.text("files_left"),
        )
    with op.batch_alter_table("export_shards", schema=None) as batch_op:
        batch_op.add_column(sa.Column("reused_from", sa.String(), nullable=True))
