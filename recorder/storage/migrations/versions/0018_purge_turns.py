"""Open purges, and sessions whose hot rows wait to be swept, have indexes by workspace."""

import sqlalchemy as sa
from alembic import op

revision = "2026.6.16"
down_revision = "2026.6.15"
branch_labels = None
depends_on = None

_OPEN = "step <> 'done'"
_PURGES = {
    "ix_purges_of_workspace": (["workspace_id", "mode", "due_at"], _OPEN),
    "ix_purges_hard_deletes": (["workspace_id", "mode", "due_at"], f"{_OPEN} AND cause = 'hard_delete'"),
    "ix_purges_requested": (["workspace_id", "requested_at"], _OPEN),
}
_SWEEP = "ix_sessions_to_sweep"
_HOT = "is_hot AND status = 'sealed'"


def upgrade() -> None:
    """Create the indexes of open purges, and index the sessions to sweep by workspace."""
    for name, (columns, condition) in _PURGES.items():
        _create_index(name, "purges", columns=columns, condition=condition)
    op.drop_index(_SWEEP, table_name="sessions")
    condition = f"{_HOT} AND waiting_since IS NULL AND seal_error_code IS NULL"
    _create_index(
        _SWEEP, "sessions", columns=["workspace_id", "mode", "sealed_at", "id"], condition=condition
    )


def downgrade() -> None:
    """Restore the index of sessions to sweep, and drop those of open purges."""
    op.drop_index(_SWEEP, table_name="sessions")
    _create_index(_SWEEP, "sessions", columns=["sealed_at"], condition=_HOT)
    for name in _PURGES:
        op.drop_index(name, table_name="purges")


def _create_index(name: str, table: str, *, columns: list[str], condition: str) -> None:
    where = sa.text(condition)
    op.create_index(name, table, columns, sqlite_where=where, postgresql_where=where)
