"""Replays of sealed sessions and their steps, and recoveries of failed sessions."""

import sqlalchemy as sa
from alembic import op

revision = "2026.6.5"
down_revision = "2026.6.4"
branch_labels = None
depends_on = None

_TIME = sa.DateTime(timezone=True)


def upgrade() -> None:
    """Create `replays`, `replay_steps` and `recoveries` with their indexes."""
    op.create_table(
        "replays",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("workspace_id", sa.String(), nullable=False),
        sa.Column("mode", sa.String(), nullable=False),
        sa.Column("workflow", sa.String(), nullable=False),
        sa.Column("session_id", sa.String(), nullable=False),
        sa.Column("sandbox", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("status", sa.String(), nullable=False),
        sa.Column("spec", sa.JSON(), nullable=False),
        sa.Column("anchor_event", sa.JSON(), nullable=True),
        sa.Column("against_session_id", sa.String(), nullable=True),
        sa.Column("input_names", sa.JSON(), nullable=False),
        sa.Column("input_values", sa.LargeBinary(), nullable=True),
        sa.Column("decisions", sa.JSON(), nullable=False),
        sa.Column("awaiting_step", sa.Integer(), nullable=True),
        sa.Column("awaiting_until", _TIME, nullable=True),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("steps", sa.Integer(), nullable=True),
        sa.Column("summary", sa.JSON(), nullable=True),
        sa.Column("divergence", sa.JSON(), nullable=True),
        sa.Column("result_session_id", sa.String(), nullable=True),
        sa.Column("cause", sa.String(), nullable=True),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("error", sa.JSON(), nullable=True),
        sa.Column("request_id", sa.String(), nullable=True),
        sa.Column("created_at", _TIME, nullable=False),
        sa.Column("started_at", _TIME, nullable=True),
        sa.Column("finished_at", _TIME, nullable=True),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_replays_list", "replays", ["workspace_id", "mode", "id"])
    op.create_index("ix_replays_session", "replays", ["session_id", "id"])
    for name, columns, condition in (
        ("ix_replays_other", ["against_session_id"], sa.text("against_session_id IS NOT NULL")),
        ("ix_replays_cause", ["cause"], sa.text("cause IS NOT NULL")),
        ("ix_replays_open", ["workspace_id", "mode", "id"], sa.text("finished_at IS NULL")),
    ):
        op.create_index(name, "replays", columns, sqlite_where=condition, postgresql_where=condition)
    op.create_table(
        "replay_steps",
        sa.Column("replay_id", sa.String(), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("event_id", sa.String(), nullable=False),
        sa.Column("outcome", sa.String(), nullable=False),
        sa.Column("similarity", sa.Float(), nullable=True),
        sa.Column("locator", sa.String(), nullable=True),
        sa.Column("ms", sa.Integer(), nullable=True),
        sa.Column("frame_id", sa.String(), nullable=True),
        sa.Column("delivery", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("replay_id", "step"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "recoveries",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("workspace_id", sa.String(), nullable=False),
        sa.Column("mode", sa.String(), nullable=False),
        sa.Column("workflow", sa.String(), nullable=False),
        sa.Column("session_id", sa.String(), nullable=False),
        sa.Column("failure_tag", sa.String(), nullable=True),
        sa.Column("failed_at_ms", sa.BigInteger(), nullable=False),
        sa.Column("sandbox", sa.String(), nullable=False),
        sa.Column("status", sa.String(), nullable=False),
        sa.Column("point_session_id", sa.String(), nullable=True),
        sa.Column("point_t_ms", sa.BigInteger(), nullable=True),
        sa.Column("candidates", sa.JSON(), nullable=True),
        sa.Column("replay_ids", sa.JSON(), nullable=False),
        sa.Column("evidence", sa.String(), nullable=True),
        sa.Column("recovery_point", sa.JSON(), nullable=True),
        sa.Column("reason", sa.String(), nullable=True),
        sa.Column("recovery_ms", sa.BigInteger(), nullable=True),
        sa.Column("request_id", sa.String(), nullable=True),
        sa.Column("created_at", _TIME, nullable=False),
        sa.Column("finished_at", _TIME, nullable=True),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_recoveries_list", "recoveries", ["workspace_id", "mode", "id"])
    op.create_index("ix_recoveries_session", "recoveries", ["session_id"])
    for name, columns, condition in (
        ("ix_recoveries_point", ["point_session_id"], sa.text("point_session_id IS NOT NULL")),
        ("ix_recoveries_open", ["workspace_id", "mode", "id"], sa.text("finished_at IS NULL")),
    ):
        op.create_index(name, "recoveries", columns, sqlite_where=condition, postgresql_where=condition)


def downgrade() -> None:
    """Drop `recoveries`, `replay_steps` and `replays`."""
    op.drop_table("recoveries")
    op.drop_table("replay_steps")
    op.drop_table("replays")
