"""Access, limits, streams, webhooks, audit."""

from datetime import timedelta

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "audit_entries",
        sa.Column("workspace_id", sa.String(), nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("mode", sa.String(), nullable=True),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("actor_type", sa.String(), nullable=False),
        sa.Column("actor_id", sa.String(), nullable=False),
        sa.Column("action", sa.String(), nullable=False),
        sa.Column("resource_type", sa.String(), nullable=False),
        sa.Column("resource_id", sa.String(), nullable=False),
        sa.Column("outcome", sa.String(), nullable=False),
        sa.Column("request_id", sa.String(), nullable=True),
        sa.Column("ip", sa.String(), nullable=True),
        sa.Column("details", sa.JSON(), nullable=False),
        sa.Column("prev_hash", sa.String(), nullable=False),
        sa.Column("hash", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("workspace_id", "number"),
        sa.UniqueConstraint("id"),
    )
    with op.batch_alter_table("audit_entries", schema=None) as batch_op:
        batch_op.create_index("ix_audit_entries_at", ["workspace_id", "at"], unique=False)
        batch_op.create_index(batch_op.f("ix_audit_entries_hash"), ["hash"], unique=False)

    op.create_table(
        "audit_heads",
        sa.Column("workspace_id", sa.String(), nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.Column("hash", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("workspace_id"),
    )
    op.create_table(
        "deployment",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("region", sa.String(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "usage",
        sa.Column("workspace_id", sa.String(), nullable=False),
        sa.Column("period", sa.String(), nullable=False),
        sa.Column("captured_ms", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("exported_rows", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("reserved_rows", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("captured_told", sa.Integer(), server_default="0", nullable=False),
        sa.Column("exported_told", sa.Integer(), server_default="0", nullable=False),
        sa.PrimaryKeyConstraint("workspace_id", "period"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "webhook_deliveries",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("webhook_id", sa.String(), nullable=False),
        sa.Column("event_id", sa.String(), nullable=False),
        sa.Column("event_type", sa.String(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("trigger", sa.String(), nullable=False),
        sa.Column("redelivery_of", sa.String(), nullable=True),
        sa.Column("status", sa.String(), nullable=False),
        sa.Column("due_ms", sa.BigInteger(), nullable=False),
        sa.Column("begun_ms", sa.BigInteger(), nullable=True),
        sa.Column("request_headers", sa.JSON(), nullable=True),
        sa.Column("response", sa.JSON(), nullable=True),
        sa.Column("error", sa.String(), nullable=True),
        sa.Column("duration_ms", sa.BigInteger(), nullable=True),
        sa.Column("next_attempt_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    with op.batch_alter_table("webhook_deliveries", schema=None) as batch_op:
        batch_op.create_index("ix_webhook_deliveries_event", ["event_id"], unique=False)
        batch_op.create_index("ix_webhook_deliveries_list", ["webhook_id", "id"], unique=False)
        batch_op.create_index(
            "ix_webhook_deliveries_pending",
            ["webhook_id", "due_ms", "id"],
            unique=False,
            sqlite_where=sa.text("status = 'pending'"),
            postgresql_where=sa.text("status = 'pending'"),
        )

    op.create_table(
        "webhook_secrets",
        sa.Column("webhook_id", sa.String(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("key_id", sa.String(), nullable=False),
        sa.Column("ciphertext", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("webhook_id", "number"),
    )
    op.create_table(
        "webhooks",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("workspace_id", sa.String(), nullable=False),
        sa.Column("mode", sa.String(), nullable=False),
        sa.Column("url", sa.String(), nullable=False),
        sa.Column("events", sa.JSON(), nullable=False),
        sa.Column("description", sa.String(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("deleted_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("id"),
    )
    with op.batch_alter_table("webhooks", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_webhooks_workspace_id"), ["workspace_id"], unique=False)

    with op.batch_alter_table("exports", schema=None) as batch_op:
        batch_op.add_column(sa.Column("reserved_rows", sa.BigInteger(), nullable=True))
        batch_op.add_column(sa.Column("reserved_period", sa.String(), nullable=True))
        batch_op.add_column(sa.Column("request_id", sa.String(), nullable=True))

    with op.batch_alter_table("frames", schema=None) as batch_op:
        batch_op.add_column(sa.Column("received_ms", sa.BigInteger(), nullable=True))
        batch_op.create_index("ix_frames_position", ["session_id", "position"], unique=False)

    with op.batch_alter_table("outbox", schema=None) as batch_op:
        batch_op.add_column(sa.Column("request_id", sa.String(), nullable=True))
        batch_op.add_column(sa.Column("body", sa.LargeBinary(), nullable=True))

    with op.batch_alter_table("sessions", schema=None) as batch_op:
        batch_op.add_column(sa.Column("purge_after", sa.DateTime(timezone=True), nullable=True))
        batch_op.add_column(
            sa.Column(
                "charged_from_ms", sa.BigInteger(), server_default=sa.text("9007199254740992"), nullable=False
            )
        )
        batch_op.add_column(
            sa.Column("charged_ms", sa.BigInteger(), server_default=sa.text("0"), nullable=False)
        )
        batch_op.add_column(
            sa.Column("charged_before_ms", sa.BigInteger(), server_default=sa.text("0"), nullable=False)
        )
        batch_op.create_index(
            "ix_sessions_to_purge",
            ["purge_after"],
            unique=False,
            sqlite_where=sa.text("purge_after IS NOT NULL"),
            postgresql_where=sa.text("purge_after IS NOT NULL"),
        )

    with op.batch_alter_table("workspaces", schema=None) as batch_op:
        batch_op.add_column(sa.Column("masking", sa.JSON(), nullable=True))
        batch_op.add_column(sa.Column("live_hosts", sa.JSON(), nullable=True))

    _mark_for_purge()


def _mark_for_purge() -> None:
    """Give the sessions of the release before their end: deleted ones, and those of test keys."""
    sessions = sa.table(
        "sessions",
        sa.column("id", sa.String()),
        sa.column("mode", sa.String()),
        *(
            sa.column(name, sa.DateTime(timezone=True))
            for name in ("created_at", "deleted_at", "purge_after")
        ),
    )
    connection = op.get_bind()
    chosen = sa.select(sessions.c.id, sessions.c.mode, sessions.c.created_at, sessions.c.deleted_at)
    ends = []
    for session_id, mode, created_at, deleted_at in connection.execute(
        chosen.where(sa.or_(sessions.c.mode == "test", sessions.c.deleted_at.is_not(None)))
    ):
        dates = [created_at + timedelta(days=7)] if mode == "test" else []
        dates += [deleted_at + timedelta(days=30)] if deleted_at is not None else []
        ends.append({"which": session_id, "at": min(dates)})
    if ends:
        marked = sessions.update().where(sessions.c.id == sa.bindparam("which"))
        connection.execute(marked.values(purge_after=sa.bindparam("at")), ends)
