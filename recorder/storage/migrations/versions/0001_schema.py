"""Schema of the first release."""

import sqlalchemy as sa
from alembic import op

revision = "2026.5.0"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create all tables of the first release."""
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
        "batch_keys",
        sa.Column("session_id", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("batch_key", sa.String(), nullable=False),
        sa.Column("body_digest", sa.LargeBinary(), nullable=False),
        sa.Column("answer", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("session_id", "kind", "batch_key"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "deployment",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("region", sa.String(), nullable=False),
        sa.Column("seal_slots", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "drift_alarms",
        sa.Column("workspace_id", sa.String(), nullable=False),
        sa.Column("mode", sa.String(), nullable=False),
        sa.Column("workflow", sa.String(), nullable=False),
        sa.Column("type", sa.String(), nullable=False),
        sa.Column("subject_id", sa.String(), nullable=False),
        sa.Column("seal_seq", sa.BigInteger(), nullable=False),
        sa.Column("event_id", sa.String(), nullable=False),
        sa.Column("data", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("workspace_id", "mode", "workflow", "type", "subject_id", "seal_seq"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "drift_states",
        sa.Column("workspace_id", sa.String(), nullable=False),
        sa.Column("mode", sa.String(), nullable=False),
        sa.Column("workflow", sa.String(), nullable=False),
        sa.Column("looked_seq", sa.BigInteger(), nullable=False),
        sa.Column("baseline_from_seq", sa.BigInteger(), nullable=True),
        sa.Column("baseline_to_seq", sa.BigInteger(), nullable=True),
        sa.Column("baseline_sessions", sa.Integer(), nullable=False),
        sa.Column("known_to_seq", sa.BigInteger(), nullable=True),
        sa.Column("inherited", sa.JSON(), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("workspace_id", "mode", "workflow"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "event_batches",
        sa.Column("session_id", sa.String(), nullable=False),
        sa.Column("first_position", sa.BigInteger(), nullable=False),
        sa.Column("n", sa.Integer(), nullable=False),
        sa.Column("t_min", sa.BigInteger(), nullable=False),
        sa.Column("t_max", sa.BigInteger(), nullable=False),
        sa.Column("first_id", sa.String(), nullable=False),
        sa.Column("received_ms", sa.BigInteger(), nullable=False),
        sa.Column("payload", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("session_id", "first_position"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "event_keys",
        sa.Column("session_id", sa.String(), nullable=False),
        sa.Column("event_id", sa.String(), nullable=False),
        sa.Column("t_ms", sa.BigInteger(), nullable=False),
        sa.Column("digest", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("session_id", "event_id"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "export_recipes",
        sa.Column("workspace_id", sa.String(), nullable=False),
        sa.Column("mode", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("body", sa.JSON(), nullable=False),
        sa.Column("cron", sa.String(), nullable=False),
        sa.Column("timezone", sa.String(), nullable=False),
        sa.Column("next_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("last_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("last_export_id", sa.String(), nullable=True),
        sa.Column("last_error", sa.JSON(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("workspace_id", "mode", "name"),
    )
    with op.batch_alter_table("export_recipes", schema=None) as batch_op:
        batch_op.create_index("ix_export_recipes_due", ["next_at"], unique=False)

    op.create_table(
        "export_shards",
        sa.Column("export_id", sa.String(), nullable=False),
        sa.Column("path", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("workflow", sa.String(), nullable=False),
        sa.Column("bucket", sa.Integer(), nullable=False),
        sa.Column("content_key", sa.String(), nullable=False),
        sa.Column("rows", sa.BigInteger(), nullable=False),
        sa.Column("sessions", sa.Integer(), nullable=False),
        sa.Column("is_done", sa.Boolean(), nullable=False),
        sa.Column("reused_from", sa.String(), nullable=True),
        sa.Column("size_bytes", sa.BigInteger(), nullable=True),
        sa.Column("sha256", sa.String(), nullable=True),
        sa.PrimaryKeyConstraint("export_id", "path"),
    )
    op.create_table(
        "export_workflows",
        sa.Column("export_id", sa.String(), nullable=False),
        sa.Column("workflow", sa.String(), nullable=False),
        sa.Column("workspace_id", sa.String(), nullable=False),
        sa.Column("mode", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("export_id", "workflow"),
    )
    with op.batch_alter_table("export_workflows", schema=None) as batch_op:
        batch_op.create_index(
            "ix_export_workflows", ["workspace_id", "mode", "workflow", "export_id"], unique=False
        )

    op.create_table(
        "exports",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("workspace_id", sa.String(), nullable=False),
        sa.Column("mode", sa.String(), nullable=False),
        sa.Column("status", sa.String(), nullable=False),
        sa.Column("format", sa.String(), nullable=False),
        sa.Column("spec", sa.JSON(), nullable=False),
        sa.Column("destination", sa.JSON(), nullable=False),
        sa.Column("tag", sa.String(), nullable=True),
        sa.Column("dataset", sa.String(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("has_own_run", sa.Boolean(), nullable=False),
        sa.Column("progressed_attempt", sa.Integer(), nullable=True),
        sa.Column("last_error", sa.String(), nullable=True),
        sa.Column("files_left", sa.Boolean(), nullable=True),
        sa.Column("shards_total", sa.Integer(), nullable=True),
        sa.Column("shards_done", sa.Integer(), nullable=False),
        sa.Column("rows", sa.BigInteger(), nullable=True),
        sa.Column("shards", sa.Integer(), nullable=True),
        sa.Column("shard_size_bytes", sa.BigInteger(), nullable=True),
        sa.Column("frames", sa.BigInteger(), nullable=True),
        sa.Column("actions", sa.BigInteger(), nullable=True),
        sa.Column("reserved_rows", sa.BigInteger(), nullable=True),
        sa.Column("reserved_period", sa.String(), nullable=True),
        sa.Column("plan_key", sa.String(), nullable=True),
        sa.Column("plan_sha256", sa.String(), nullable=True),
        sa.Column("series_sha256", sa.String(), nullable=True),
        sa.Column("lineage", sa.JSON(), nullable=True),
        sa.Column("row_set_sha256", sa.String(), nullable=True),
        sa.Column("manifest_sha256", sa.String(), nullable=True),
        sa.Column("error", sa.JSON(), nullable=True),
        sa.Column("request_id", sa.String(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("completed_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("id"),
    )
    with op.batch_alter_table("exports", schema=None) as batch_op:
        batch_op.create_index(
            "ix_exports_files_left",
            ["id"],
            unique=False,
            sqlite_where=sa.text("files_left"),
            postgresql_where=sa.text("files_left"),
        )
        batch_op.create_index("ix_exports_list", ["workspace_id", "mode", "id"], unique=False)
        batch_op.create_index(
            "ix_exports_series", ["workspace_id", "mode", "series_sha256", "id"], unique=False
        )
        batch_op.create_index("ix_exports_status", ["status", "id"], unique=False)

    op.create_table(
        "frames",
        sa.Column("session_id", sa.String(), nullable=False),
        sa.Column(
            "frame_id", sa.String().with_variant(sa.String(collation="C"), "postgresql"), nullable=False
        ),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("t_ms", sa.BigInteger(), nullable=False),
        sa.Column("content_type", sa.String(), nullable=False),
        sa.Column("width", sa.Integer(), nullable=False),
        sa.Column("height", sa.Integer(), nullable=False),
        sa.Column("keyframe", sa.Boolean(), nullable=True),
        sa.Column("bytes", sa.Integer(), nullable=False),
        sa.Column("sha256", sa.String(), nullable=False),
        sa.Column("object", sa.String(), nullable=False),
        sa.Column("offset", sa.BigInteger(), nullable=False),
        sa.Column("length", sa.Integer(), nullable=False),
        sa.Column("dom_object", sa.String(), nullable=True),
        sa.Column("dom_offset", sa.BigInteger(), nullable=True),
        sa.Column("dom_length", sa.Integer(), nullable=True),
        sa.Column("url", sa.String(), nullable=True),
        sa.Column("active_rect", sa.JSON(), nullable=True),
        sa.Column("masked_rects", sa.JSON(), nullable=True),
        sa.Column("received_ms", sa.BigInteger(), nullable=True),
        sa.Column("digest", sa.LargeBinary(), nullable=True),
        sa.PrimaryKeyConstraint("session_id", "frame_id"),
    )
    with op.batch_alter_table("frames", schema=None) as batch_op:
        batch_op.create_index("ix_frames_order", ["session_id", "t_ms", "frame_id"], unique=False)
        batch_op.create_index("ix_frames_position", ["session_id", "position"], unique=False)

    op.create_table(
        "graph_micro_states",
        sa.Column("workspace_id", sa.String(), nullable=False),
        sa.Column("mode", sa.String(), nullable=False),
        sa.Column("workflow", sa.String(), nullable=False),
        sa.Column("micro_key", sa.BigInteger(), nullable=False),
        sa.Column("node", sa.Integer(), nullable=False),
        sa.Column("created_version", sa.BigInteger(), nullable=False),
        sa.Column("features", sa.LargeBinary(), nullable=True),
        sa.PrimaryKeyConstraint("workspace_id", "mode", "workflow", "micro_key"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "graph_nodes",
        sa.Column("workspace_id", sa.String(), nullable=False),
        sa.Column("mode", sa.String(), nullable=False),
        sa.Column("workflow", sa.String(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("node_id", sa.String(), nullable=False),
        sa.Column("label", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("micro_key", sa.BigInteger(), nullable=False),
        sa.Column("act", sa.BigInteger(), nullable=False),
        sa.Column("screen", sa.Integer(), nullable=False),
        sa.Column("features", sa.LargeBinary(), nullable=False),
        sa.Column("created_version", sa.BigInteger(), nullable=False),
        sa.Column("merged_into", sa.Integer(), nullable=True),
        sa.PrimaryKeyConstraint("workspace_id", "mode", "workflow", "number"),
        sa.UniqueConstraint("node_id"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "graph_paths",
        sa.Column("workspace_id", sa.String(), nullable=False),
        sa.Column("mode", sa.String(), nullable=False),
        sa.Column("workflow", sa.String(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("path_id", sa.String(), nullable=False),
        sa.Column("leader", sa.BigInteger(), nullable=False),
        sa.Column("nodes", sa.JSON(), nullable=False),
        sa.Column("created_version", sa.BigInteger(), nullable=False),
        sa.Column("merged_into", sa.Integer(), nullable=True),
        sa.PrimaryKeyConstraint("workspace_id", "mode", "workflow", "number"),
        sa.UniqueConstraint("path_id"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "graph_pauses",
        sa.Column("workspace_id", sa.String(), nullable=False),
        sa.Column("mode", sa.String(), nullable=False),
        sa.Column("workflow", sa.String(), nullable=False),
        sa.Column("from_seq", sa.BigInteger(), nullable=False),
        sa.Column("to_seq", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("workspace_id", "mode", "workflow", "from_seq"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "graph_session_paths",
        sa.Column("session_id", sa.String(), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("removed_version", sa.BigInteger(), nullable=True),
        sa.Column("workspace_id", sa.String(), nullable=False),
        sa.Column("mode", sa.String(), nullable=False),
        sa.Column("workflow", sa.String(), nullable=False),
        sa.Column("trace_key", sa.BigInteger(), nullable=False),
        sa.Column("outcome", sa.String(), nullable=False),
        sa.Column("duration_ms", sa.BigInteger(), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("sealed_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("actor_kind", sa.String(), nullable=True),
        sa.Column("seal_seq", sa.BigInteger(), nullable=False),
        sa.Column("step_ms", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("session_id", "version"),
        sqlite_with_rowid=False,
    )
    with op.batch_alter_table("graph_session_paths", schema=None) as batch_op:
        batch_op.create_index(
            "ix_graph_session_paths_added", ["workspace_id", "mode", "workflow", "version"], unique=False
        )
        batch_op.create_index(
            "ix_graph_session_paths_removed",
            ["workspace_id", "mode", "workflow", "removed_version"],
            unique=False,
            sqlite_where=sa.text("removed_version IS NOT NULL"),
            postgresql_where=sa.text("removed_version IS NOT NULL"),
        )

    op.create_table(
        "graph_traces",
        sa.Column("workspace_id", sa.String(), nullable=False),
        sa.Column("mode", sa.String(), nullable=False),
        sa.Column("workflow", sa.String(), nullable=False),
        sa.Column("trace_key", sa.BigInteger(), nullable=False),
        sa.Column("steps", sa.LargeBinary(), nullable=False),
        sa.Column("variant_key", sa.BigInteger(), nullable=False),
        sa.Column("n", sa.BigInteger(), nullable=False),
        sa.Column("created_version", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("workspace_id", "mode", "workflow", "trace_key"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "graph_variants",
        sa.Column("workspace_id", sa.String(), nullable=False),
        sa.Column("mode", sa.String(), nullable=False),
        sa.Column("workflow", sa.String(), nullable=False),
        sa.Column("variant_key", sa.BigInteger(), nullable=False),
        sa.Column("nodes", sa.JSON(), nullable=False),
        sa.Column("path", sa.Integer(), nullable=False),
        sa.Column("created_version", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("workspace_id", "mode", "workflow", "variant_key"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "graph_versions",
        sa.Column("workspace_id", sa.String(), nullable=False),
        sa.Column("mode", sa.String(), nullable=False),
        sa.Column("workflow", sa.String(), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("parent", sa.BigInteger(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("writer", sa.String(), nullable=False),
        sa.Column("params", sa.JSON(), nullable=False),
        sa.Column("up_to_seal_seq", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("workspace_id", "mode", "workflow", "version"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "idempotency_keys",
        sa.Column("workspace_id", sa.String(), nullable=False),
        sa.Column("mode", sa.String(), nullable=False),
        sa.Column("method", sa.String(), nullable=False),
        sa.Column("path", sa.String(), nullable=False),
        sa.Column("key", sa.String(), nullable=False),
        sa.Column("body_digest", sa.LargeBinary(), nullable=False),
        sa.Column("status", sa.Integer(), nullable=True),
        sa.Column("answer", sa.LargeBinary(), nullable=True),
        sa.Column("resource_id", sa.String(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("workspace_id", "mode", "method", "path", "key"),
    )
    with op.batch_alter_table("idempotency_keys", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_idempotency_keys_created_at"), ["created_at"], unique=False)
        batch_op.create_index(batch_op.f("ix_idempotency_keys_resource_id"), ["resource_id"], unique=False)

    op.create_table(
        "keys",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("workspace_id", sa.String(), nullable=False),
        sa.Column("mode", sa.String(), nullable=False),
        sa.Column("label", sa.String(), nullable=False),
        sa.Column("scope", sa.String(), nullable=False),
        sa.Column("key_hash", sa.String(), nullable=False),
        sa.Column("last4", sa.String(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("revoked_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("key_hash"),
    )
    with op.batch_alter_table("keys", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_keys_workspace_id"), ["workspace_id"], unique=False)

    op.create_table(
        "leases",
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("owner", sa.String(), nullable=False),
        sa.Column("fence", sa.BigInteger(), nullable=False),
        sa.Column("expires_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )
    op.create_table(
        "orchestration_status",
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("seen_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("kind", "name"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "outbox",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("workspace_id", sa.String(), nullable=False),
        sa.Column("mode", sa.String(), nullable=False),
        sa.Column("type", sa.String(), nullable=False),
        sa.Column("subject_id", sa.String(), nullable=False),
        sa.Column("data", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("dispatched_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("request_id", sa.String(), nullable=True),
        sa.Column("body", sa.LargeBinary(), nullable=True),
        sa.PrimaryKeyConstraint("id"),
    )
    with op.batch_alter_table("outbox", schema=None) as batch_op:
        batch_op.create_index(
            "ix_outbox_pending",
            ["id"],
            unique=False,
            sqlite_where=sa.text("dispatched_at IS NULL"),
            postgresql_where=sa.text("dispatched_at IS NULL"),
        )
        batch_op.create_index("ix_outbox_subject", ["subject_id"], unique=False)

    op.create_table(
        "seal_batches",
        sa.Column("workspace_id", sa.String(), nullable=False),
        sa.Column("mode", sa.String(), nullable=False),
        sa.Column("slot", sa.Integer(), nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.Column("session_ids", sa.JSON(), nullable=False),
        sa.Column("first_seal_seq", sa.BigInteger(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("begun", sa.Integer(), nullable=False),
        sa.Column("ended", sa.Integer(), nullable=False),
        sa.Column("failures", sa.Integer(), nullable=False),
        sa.Column("last_error", sa.String(), nullable=True),
        sa.Column("not_before", sa.DateTime(timezone=True), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("workspace_id", "mode", "slot", "number"),
    )
    with op.batch_alter_table("seal_batches", schema=None) as batch_op:
        batch_op.create_index(
            "ix_seal_batches_open",
            ["workspace_id", "mode", "slot", "number"],
            unique=False,
            sqlite_where=sa.text("state <> 'done'"),
            postgresql_where=sa.text("state <> 'done'"),
        )

    op.create_table(
        "seal_counters",
        sa.Column("workspace_id", sa.String(), nullable=False),
        sa.Column("mode", sa.String(), nullable=False),
        sa.Column("slot", sa.Integer(), nullable=False),
        sa.Column("batch_number", sa.BigInteger(), nullable=False),
        sa.Column("seal_seq", sa.BigInteger(), nullable=False),
        sa.Column("served_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("workspace_id", "mode", "slot"),
    )
    op.create_table(
        "seal_portions",
        sa.Column("session_id", sa.String(), nullable=False),
        sa.Column("n", sa.Integer(), nullable=False),
        sa.Column("date", sa.String(), nullable=False),
        sa.Column("state", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("session_id", "n"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "session_metadata",
        sa.Column("session_id", sa.String(), nullable=False),
        sa.Column("metadata", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("session_id"),
    )
    op.create_table(
        "session_statuses",
        sa.Column("session_id", sa.String(), nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("status", sa.String(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("session_id", "position"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "sessions",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("workspace_id", sa.String(), nullable=False),
        sa.Column("mode", sa.String(), nullable=False),
        sa.Column("workflow", sa.String(), nullable=False),
        sa.Column("status", sa.String(), nullable=False),
        sa.Column("actor_id", sa.String(), nullable=True),
        sa.Column("actor_kind", sa.String(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("stopped_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("sealed_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("deleted_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("purge_after", sa.DateTime(timezone=True), nullable=True),
        sa.Column("is_import", sa.Boolean(), nullable=False),
        sa.Column("origin", sa.String(), nullable=True),
        sa.Column("duration_ms", sa.BigInteger(), nullable=False),
        sa.Column("frame_count", sa.Integer(), nullable=False),
        sa.Column("event_count", sa.Integer(), nullable=False),
        sa.Column("event_bytes", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("frame_bytes", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("max_t_ms", sa.BigInteger(), nullable=False),
        sa.Column("charged_from_ms", sa.BigInteger(), server_default="9007199254740992", nullable=False),
        sa.Column("charged_ms", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("charged_before_ms", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("last_position", sa.BigInteger(), nullable=False),
        sa.Column("outcome", sa.String(), nullable=True),
        sa.Column("event_mark", sa.JSON(), nullable=True),
        sa.Column("has_error_event", sa.Boolean(), nullable=False),
        sa.Column("seal_seq", sa.BigInteger(), nullable=True),
        sa.Column("waiting_since", sa.DateTime(timezone=True), nullable=True),
        sa.Column("seal_slot", sa.Integer(), nullable=True),
        sa.Column("seal_failures", sa.Integer(), nullable=False),
        sa.Column("seal_repairs", sa.Integer(), nullable=False),
        sa.Column("seal_error_code", sa.String(), nullable=True),
        sa.Column("seal_error_message", sa.String(), nullable=True),
        sa.Column("seal_error_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("has_seal_error_event", sa.Boolean(), nullable=False),
        sa.Column("lake_date", sa.String(), nullable=True),
        sa.Column("is_hot", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        postgresql_with={"fillfactor": "50"},
        sqlite_with_rowid=False,
    )
    with op.batch_alter_table("sessions", schema=None) as batch_op:
        batch_op.create_index(
            "ix_sessions_actor_kind", ["workspace_id", "mode", "actor_kind", "id"], unique=False
        )
        batch_op.create_index("ix_sessions_list", ["workspace_id", "mode", "id"], unique=False)
        batch_op.create_index("ix_sessions_outcome", ["workspace_id", "mode", "outcome", "id"], unique=False)
        batch_op.create_index(
            "ix_sessions_set_aside",
            ["workspace_id", "id"],
            unique=False,
            sqlite_where=sa.text("seal_error_code IS NOT NULL"),
            postgresql_where=sa.text("seal_error_code IS NOT NULL"),
        )
        batch_op.create_index("ix_sessions_status", ["workspace_id", "mode", "status", "id"], unique=False)
        batch_op.create_index(
            "ix_sessions_to_purge",
            ["purge_after"],
            unique=False,
            sqlite_where=sa.text("purge_after IS NOT NULL"),
            postgresql_where=sa.text("purge_after IS NOT NULL"),
        )
        batch_op.create_index(
            "ix_sessions_to_seal",
            ["workspace_id", "mode", "seal_slot", "waiting_since", "id"],
            unique=False,
            sqlite_where=sa.text("waiting_since IS NOT NULL"),
            postgresql_where=sa.text("waiting_since IS NOT NULL"),
        )
        batch_op.create_index(
            "ix_sessions_to_sweep",
            ["sealed_at"],
            unique=False,
            sqlite_where=sa.text("is_hot AND status = 'sealed'"),
            postgresql_where=sa.text("is_hot AND status = 'sealed'"),
        )
        batch_op.create_index(
            "ix_sessions_workflow", ["workspace_id", "mode", "workflow", "id"], unique=False
        )
        batch_op.create_index(
            "ix_sessions_workflow_outcome",
            ["workspace_id", "mode", "workflow", "outcome", "id"],
            unique=False,
        )
        batch_op.create_index(
            "ix_sessions_workflow_status", ["workspace_id", "mode", "workflow", "status", "id"], unique=False
        )

    op.create_table(
        "tags",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("session_id", sa.String(), nullable=False),
        sa.Column("workspace_id", sa.String(), nullable=False),
        sa.Column("mode", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("data", sa.JSON(), nullable=True),
        sa.Column("t_ms", sa.BigInteger(), nullable=False),
        sa.Column("event_id", sa.String(), nullable=True),
        sa.Column("frame_id", sa.String(), nullable=True),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    with op.batch_alter_table("tags", schema=None) as batch_op:
        batch_op.create_index("ix_tags_name", ["workspace_id", "mode", "name", "session_id"], unique=False)
        batch_op.create_index("ix_tags_session", ["session_id", "t_ms", "id"], unique=False)

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

    op.create_table(
        "workflows",
        sa.Column("workspace_id", sa.String(), nullable=False),
        sa.Column("mode", sa.String(), nullable=False),
        sa.Column("workflow", sa.String(), nullable=False),
        sa.Column("memory_graph", sa.Boolean(), nullable=False),
        sa.Column("outcome_rules", sa.JSON(), nullable=True),
        sa.Column("tags", sa.JSON(), nullable=False),
        sa.Column("masking", sa.JSON(), nullable=True),
        sa.Column("session_count", sa.Integer(), nullable=False),
        sa.Column("last_session_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("workspace_id", "mode", "workflow"),
    )
    op.create_table(
        "workspaces",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("region", sa.String(), nullable=False),
        sa.Column("status", sa.String(), nullable=False),
        sa.Column("tier", sa.String(), nullable=False),
        sa.Column("frames_days", sa.Integer(), nullable=False),
        sa.Column("events_days", sa.Integer(), nullable=False),
        sa.Column("audit_days", sa.Integer(), nullable=False),
        sa.Column("masking", sa.JSON(), nullable=True),
        sa.Column("live_hosts", sa.JSON(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("name"),
    )
