"""Erasures: one open request for each subject, counted nodes, and the replacements of earlier maskings."""

from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "2026.6.2"
down_revision = "2026.6.1"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the key and nodes of open erasures, and fill `mask_replacements` from the policies in force."""
    with op.batch_alter_table("erasures") as batch_op:
        batch_op.add_column(sa.Column("open_key", sa.String(), nullable=True))
        batch_op.add_column(sa.Column("nodes", sa.JSON(), nullable=True))
        batch_op.create_unique_constraint("uq_erasures_open_key", ["open_key"])
    replacements = op.create_table(
        "mask_replacements",
        sa.Column("workspace_id", sa.String(), nullable=False),
        sa.Column("replacement", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("workspace_id", "replacement"),
        sqlite_with_rowid=False,
    )
    assert replacements is not None
    rows = [
        {"workspace_id": workspace_id, "replacement": text}
        for workspace_id, text in sorted(set(_read_replacements()))
    ]
    op.bulk_insert(replacements, rows)


def _read_replacements() -> Iterator[tuple[str, str]]:
    """Yield workspace and replacement of each pattern of a policy in force."""
    for table, owner in (("workspaces", "id"), ("workflows", "workspace_id")):
        masking = sa.column("masking", sa.JSON())
        rows: Any = op.get_bind().execute(sa.select(sa.column(owner), masking).select_from(sa.table(table)))
        for workspace_id, policy in rows:
            for pattern in (policy or {}).get("patterns") or ():
                if pattern.get("replacement"):
                    yield workspace_id, pattern["replacement"]


def downgrade() -> None:
    """Drop `mask_replacements`, and the key and nodes of open erasures."""
    op.drop_table("mask_replacements")
    with op.batch_alter_table("erasures") as batch_op:
        batch_op.drop_constraint("uq_erasures_open_key")
        batch_op.drop_column("nodes")
        batch_op.drop_column("open_key")
