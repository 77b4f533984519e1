"""Holds, purges, erasures, pruned audit entries, expired exports and their sessions."""

import sqlalchemy as sa
from alembic import op

revision = "2026.6.0"
down_revision = "2026.5.0"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the tables of holds, purges, erasures and exported sessions, and add what expiry needs."""
    op.create_table(
        "holds",
        sa.Column("workspace_id", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("value", sa.String(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("workspace_id", "kind", "value"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "purges",
        sa.Column("session_id", sa.String(), nullable=False),
        sa.Column("workspace_id", sa.String(), nullable=False),
        sa.Column("mode", sa.String(), nullable=False),
        sa.Column("workflow", sa.String(), nullable=False),
        sa.Column("cause", sa.String(), nullable=False),
        sa.Column("step", sa.String(), nullable=False),
        sa.Column("due_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("requested_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("done_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("dates", sa.JSON(), nullable=False),
        sa.Column("event_bytes", sa.BigInteger(), nullable=False),
        sa.Column("frame_bytes", sa.BigInteger(), nullable=False),
        sa.Column("events", sa.Integer(), nullable=False),
        sa.Column("frames", sa.Integer(), nullable=False),
        sa.Column("erasure_id", sa.String(), nullable=True),
        sa.PrimaryKeyConstraint("session_id"),
        sqlite_with_rowid=False,
    )
    with op.batch_alter_table("purges", schema=None) as batch_op:
        batch_op.create_index(
            "ix_purges_open",
            ["due_at"],
            unique=False,
            sqlite_where=sa.text("step <> 'done'"),
            postgresql_where=sa.text("step <> 'done'"),
        )
        batch_op.create_index("ix_purges_workflow", ["workspace_id", "mode", "workflow"], unique=False)
        batch_op.create_index(batch_op.f("ix_purges_erasure_id"), ["erasure_id"], unique=False)
    op.create_table(
        "audit_hashes",
        sa.Column("workspace_id", sa.String(), nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.Column("prev_hash", sa.String(), nullable=False),
        sa.Column("hash", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("workspace_id", "number"),
        sqlite_with_rowid=False,
    )
    with op.batch_alter_table("audit_hashes", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_audit_hashes_hash"), ["hash"], unique=False)
    op.create_table(
        "erasures",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("workspace_id", sa.String(), nullable=False),
        sa.Column("mode", sa.String(), nullable=False),
        sa.Column("status", sa.String(), nullable=False),
        sa.Column("subject_hash", sa.String(), nullable=False),
        sa.Column("subject", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("due_by", sa.DateTime(timezone=True), nullable=False),
        sa.Column("searched_mode", sa.String(), nullable=True),
        sa.Column("searched_id", sa.String(), nullable=True),
        sa.Column("is_searched", sa.Boolean(), nullable=False),
        sa.Column("counts", sa.JSON(), nullable=False),
        sa.Column("held", sa.Integer(), nullable=False),
        sa.Column("exports", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    with op.batch_alter_table("erasures", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_erasures_workspace_id"), ["workspace_id"], unique=False)
    with op.batch_alter_table("exports", schema=None) as batch_op:
        batch_op.add_column(sa.Column("expired_at", sa.DateTime(timezone=True), nullable=True))
        batch_op.add_column(sa.Column("revision", sa.Integer(), server_default="1", nullable=False))
        batch_op.add_column(sa.Column("next_manifest_sha256", sa.String(), nullable=True))
        batch_op.add_column(sa.Column("is_indexed", sa.Boolean(), server_default=sa.false(), nullable=False))
        batch_op.create_index(
            "ix_exports_not_indexed",
            ["id"],
            unique=False,
            sqlite_where=sa.text("NOT is_indexed"),
            postgresql_where=sa.text("NOT is_indexed"),
        )
    with op.batch_alter_table("sessions", schema=None) as batch_op:
        batch_op.add_column(sa.Column("frames_archived_at", sa.DateTime(timezone=True), nullable=True))
    op.create_table(
        "export_sessions",
        sa.Column("session_id", sa.String(), nullable=False),
        sa.Column("export_id", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("session_id", "export_id"),
        sqlite_with_rowid=False,
    )
    with op.batch_alter_table("export_sessions", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_export_sessions_export_id"), ["export_id"], unique=False)
