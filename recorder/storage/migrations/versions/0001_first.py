"""The first schema."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "batch_keys",
        sa.Column("session_id", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("batch_key", sa.String(), nullable=False),
        sa.Column("body_digest", sa.LargeBinary(), nullable=False),
        sa.Column("answer", sa.LargeBinary(), nullable=False),
        sa.Column("received_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("session_id", "kind", "batch_key"),
        sqlite_with_rowid=False,
    )
    with op.batch_alter_table("batch_keys", schema=None) as batch_op:
        batch_op.create_index("ix_batch_keys_age", ["received_ms"], unique=False)

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
        sa.Column("digest", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("session_id", "event_id"),
        sqlite_with_rowid=False,
    )
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
        sa.Column("shards_total", sa.Integer(), nullable=True),
        sa.Column("shards_done", sa.Integer(), nullable=False),
        sa.Column("rows", sa.BigInteger(), nullable=True),
        sa.Column("shards", sa.Integer(), nullable=True),
        sa.Column("shard_size_bytes", sa.BigInteger(), nullable=True),
        sa.Column("frames", sa.BigInteger(), nullable=True),
        sa.Column("actions", sa.BigInteger(), nullable=True),
        sa.Column("plan_key", sa.String(), nullable=True),
        sa.Column("plan_sha256", sa.String(), nullable=True),
        sa.Column("row_set_sha256", sa.String(), nullable=True),
        sa.Column("manifest_sha256", sa.String(), nullable=True),
        sa.Column("error", sa.JSON(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("completed_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("id"),
    )
    with op.batch_alter_table("exports", schema=None) as batch_op:
        batch_op.create_index("ix_exports_list", ["workspace_id", "mode", "id"], unique=False)
        batch_op.create_index("ix_exports_status", ["status", "id"], unique=False)

    op.create_table(
        "frames",
        sa.Column("session_id", sa.String(), nullable=False),
        sa.Column("frame_id", sa.String(), nullable=False),
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
        sa.Column("digest", sa.LargeBinary(), nullable=True),
        sa.PrimaryKeyConstraint("session_id", "frame_id"),
    )
    with op.batch_alter_table("frames", schema=None) as batch_op:
        batch_op.create_index("ix_frames_order", ["session_id", "t_ms", "frame_id"], unique=False)

    op.create_table(
        "graph_edges",
        sa.Column("workspace_id", sa.String(), nullable=False),
        sa.Column("mode", sa.String(), nullable=False),
        sa.Column("workflow", sa.String(), nullable=False),
        sa.Column("day", sa.String(), nullable=False),
        sa.Column("from_node", sa.Integer(), nullable=False),
        sa.Column("to_node", sa.Integer(), nullable=False),
        sa.Column("outcome", sa.String(), nullable=False),
        sa.Column("actor_kind", sa.String(), nullable=False),
        sa.Column("n", sa.BigInteger(), nullable=False),
        sa.Column("sum_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint(
            "workspace_id", "mode", "workflow", "day", "from_node", "to_node", "outcome", "actor_kind"
        ),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "graph_micro_states",
        sa.Column("workspace_id", sa.String(), nullable=False),
        sa.Column("mode", sa.String(), nullable=False),
        sa.Column("workflow", sa.String(), nullable=False),
        sa.Column("micro_key", sa.BigInteger(), nullable=False),
        sa.Column("node", sa.Integer(), nullable=False),
        sa.Column("created_version", sa.BigInteger(), nullable=False),
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
        sa.Column("path_id", sa.String(), nullable=False),
        sa.Column("variant_key", sa.BigInteger(), nullable=False),
        sa.Column("outcome", sa.String(), nullable=False),
        sa.Column("duration_ms", sa.BigInteger(), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("sealed_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("actor_kind", sa.String(), nullable=True),
        sa.Column("edge_ms", sa.JSON(), nullable=False),
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
        "graph_variants",
        sa.Column("workspace_id", sa.String(), nullable=False),
        sa.Column("mode", sa.String(), nullable=False),
        sa.Column("workflow", sa.String(), nullable=False),
        sa.Column("variant_key", sa.BigInteger(), nullable=False),
        sa.Column("nodes", sa.JSON(), nullable=False),
        sa.Column("path", sa.Integer(), nullable=False),
        sa.Column("n", sa.BigInteger(), nullable=False),
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
        "outbox",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("workspace_id", sa.String(), nullable=False),
        sa.Column("mode", sa.String(), nullable=False),
        sa.Column("type", sa.String(), nullable=False),
        sa.Column("subject_id", sa.String(), nullable=False),
        sa.Column("data", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("dispatched_at", sa.DateTime(timezone=True), nullable=True),
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
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.Column("session_ids", sa.JSON(), nullable=False),
        sa.Column("first_seal_seq", sa.BigInteger(), nullable=False),
        sa.Column("is_done", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("workspace_id", "mode", "number"),
    )
    with op.batch_alter_table("seal_batches", schema=None) as batch_op:
        batch_op.create_index(
            "ix_seal_batches_open",
            ["workspace_id"],
            unique=False,
            sqlite_where=sa.text("NOT is_done"),
            postgresql_where=sa.text("NOT is_done"),
        )

    op.create_table(
        "seal_counters",
        sa.Column("workspace_id", sa.String(), nullable=False),
        sa.Column("mode", sa.String(), nullable=False),
        sa.Column("batch_number", sa.BigInteger(), nullable=False),
        sa.Column("seal_seq", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("workspace_id", "mode"),
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
        sa.Column("is_import", sa.Boolean(), nullable=False),
        sa.Column("origin", sa.String(), nullable=True),
        sa.Column("duration_ms", sa.BigInteger(), nullable=False),
        sa.Column("frame_count", sa.Integer(), nullable=False),
        sa.Column("event_count", sa.Integer(), nullable=False),
        sa.Column("max_t_ms", sa.BigInteger(), nullable=False),
        sa.Column("last_position", sa.BigInteger(), nullable=False),
        sa.Column("outcome", sa.String(), nullable=True),
        sa.Column("event_mark", sa.JSON(), nullable=True),
        sa.Column("has_error_event", sa.Boolean(), nullable=False),
        sa.Column("seal_seq", sa.BigInteger(), nullable=True),
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
        batch_op.create_index("ix_sessions_status", ["workspace_id", "mode", "status", "id"], unique=False)
        batch_op.create_index(
            "ix_sessions_to_seal",
            ["workspace_id", "mode", "stopped_at"],
            unique=False,
            sqlite_where=sa.text("status = 'stopped'"),
            postgresql_where=sa.text("status = 'stopped'"),
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
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("name"),
    )


def downgrade() -> None:
    op.drop_table("workspaces")
    op.drop_table("workflows")
    with op.batch_alter_table("tags", schema=None) as batch_op:
        batch_op.drop_index("ix_tags_session")
        batch_op.drop_index("ix_tags_name")

    op.drop_table("tags")
    with op.batch_alter_table("sessions", schema=None) as batch_op:
        batch_op.drop_index("ix_sessions_workflow_status")
        batch_op.drop_index("ix_sessions_workflow_outcome")
        batch_op.drop_index("ix_sessions_workflow")
        batch_op.drop_index(
            "ix_sessions_to_sweep",
            sqlite_where=sa.text("is_hot AND status = 'sealed'"),
            postgresql_where=sa.text("is_hot AND status = 'sealed'"),
        )
        batch_op.drop_index(
            "ix_sessions_to_seal",
            sqlite_where=sa.text("status = 'stopped'"),
            postgresql_where=sa.text("status = 'stopped'"),
        )
        batch_op.drop_index("ix_sessions_status")
        batch_op.drop_index("ix_sessions_outcome")
        batch_op.drop_index("ix_sessions_list")
        batch_op.drop_index("ix_sessions_actor_kind")

    op.drop_table("sessions")
    op.drop_table("session_statuses")
    op.drop_table("session_metadata")
    op.drop_table("seal_counters")
    with op.batch_alter_table("seal_batches", schema=None) as batch_op:
        batch_op.drop_index(
            "ix_seal_batches_open",
            sqlite_where=sa.text("NOT is_done"),
            postgresql_where=sa.text("NOT is_done"),
        )

    op.drop_table("seal_batches")
    with op.batch_alter_table("outbox", schema=None) as batch_op:
        batch_op.drop_index("ix_outbox_subject")
        batch_op.drop_index(
            "ix_outbox_pending",
            sqlite_where=sa.text("dispatched_at IS NULL"),
            postgresql_where=sa.text("dispatched_at IS NULL"),
        )

    op.drop_table("outbox")
    op.drop_table("leases")
    with op.batch_alter_table("keys", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_keys_workspace_id"))

    op.drop_table("keys")
    with op.batch_alter_table("idempotency_keys", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_idempotency_keys_resource_id"))
        batch_op.drop_index(batch_op.f("ix_idempotency_keys_created_at"))

    op.drop_table("idempotency_keys")
    op.drop_table("graph_versions")
    op.drop_table("graph_variants")
    with op.batch_alter_table("graph_session_paths", schema=None) as batch_op:
        batch_op.drop_index(
            "ix_graph_session_paths_removed",
            sqlite_where=sa.text("removed_version IS NOT NULL"),
            postgresql_where=sa.text("removed_version IS NOT NULL"),
        )
        batch_op.drop_index("ix_graph_session_paths_added")

    op.drop_table("graph_session_paths")
    op.drop_table("graph_pauses")
    op.drop_table("graph_paths")
    op.drop_table("graph_nodes")
    op.drop_table("graph_micro_states")
    op.drop_table("graph_edges")
    with op.batch_alter_table("frames", schema=None) as batch_op:
        batch_op.drop_index("ix_frames_order")

    op.drop_table("frames")
    with op.batch_alter_table("exports", schema=None) as batch_op:
        batch_op.drop_index("ix_exports_status")
        batch_op.drop_index("ix_exports_list")

    op.drop_table("exports")
    with op.batch_alter_table("export_workflows", schema=None) as batch_op:
        batch_op.drop_index("ix_export_workflows")

    op.drop_table("export_workflows")
    op.drop_table("export_shards")
    op.drop_table("event_keys")
    op.drop_table("event_batches")
    with op.batch_alter_table("batch_keys", schema=None) as batch_op:
        batch_op.drop_index("ix_batch_keys_age")

    op.drop_table("batch_keys")
