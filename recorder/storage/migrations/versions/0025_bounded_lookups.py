"""Indexes for lookups whose cost must not grow with the rows of one workspace."""

import sqlalchemy as sa
from alembic import op

revision = "2026.6.23"
down_revision = "2026.6.22"
branch_labels = None
depends_on = None

_DATASET = ["dataset", "workspace_id", "mode", "status", "id"]
_LIVE_RUNNING = "sandbox = 'live' AND status = 'running' AND finished_at IS NULL"


def upgrade() -> None:
    """Index exports by dataset and running live replays; the index of pending events covers its condition."""
    _create_partial_index(
        "ix_exports_dataset", table="exports", columns=_DATASET, condition="expired_at IS NULL"
    )
    _create_partial_index("ix_replays_live_running", table="replays", columns=["id"], condition=_LIVE_RUNNING)
    _replace_outbox_index(["workspace_id", "id", "dispatched_at"])


def downgrade() -> None:
    """Restore the index of pending events, and drop those of datasets and running live replays."""
    _replace_outbox_index(["workspace_id", "id"])
    op.drop_index("ix_replays_live_running", table_name="replays")
    op.drop_index("ix_exports_dataset", table_name="exports")


def _replace_outbox_index(columns: list[str]) -> None:
    op.drop_index("ix_outbox_pending", table_name="outbox")
    _create_partial_index(
        "ix_outbox_pending", table="outbox", columns=columns, condition="dispatched_at IS NULL"
    )


def _create_partial_index(name: str, *, table: str, columns: list[str], condition: str) -> None:
    where = sa.text(condition)
    op.create_index(name, table, columns, sqlite_where=where, postgresql_where=where)
