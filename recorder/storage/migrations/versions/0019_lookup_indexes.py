"""Masking policies, audit entries and graphs are found by indexes; changes of policies are counted."""

import sqlalchemy as sa
from alembic import op

revision = "2026.6.17"
down_revision = "2026.6.16"
branch_labels = None
depends_on = None

_AUDIT = {"action": "action", "actor": "actor_id", "resource": "resource_id"}


def upgrade() -> None:
    """Add `workspaces.workflow_policy_version`, store empty policies as null, and index what is looked up."""
    op.add_column(
        "workspaces",
        sa.Column("workflow_policy_version", sa.BigInteger(), server_default="0", nullable=False),
    )
    op.execute("UPDATE workflows SET masking = NULL WHERE CAST(masking AS TEXT) = 'null'")
    masks, is_first = sa.text("masking IS NOT NULL"), sa.text("version = 1")
    op.create_index(
        "ix_workflows_masking",
        "workflows",
        ["workspace_id", "mode"],
        sqlite_where=masks,
        postgresql_where=masks,
    )
    op.create_index(
        "ix_graph_versions_first",
        "graph_versions",
        ["workspace_id", "mode", "workflow"],
        sqlite_where=is_first,
        postgresql_where=is_first,
    )
    for name, column in _AUDIT.items():
        op.create_index(f"ix_audit_entries_{name}", "audit_entries", ["workspace_id", column, "number"])


def downgrade() -> None:
    """Drop the indexes of policies, audit entries and graphs, and `workspaces.workflow_policy_version`."""
    for name in _AUDIT:
        op.drop_index(f"ix_audit_entries_{name}", table_name="audit_entries")
    op.drop_index("ix_graph_versions_first", table_name="graph_versions")
    op.drop_index("ix_workflows_masking", table_name="workflows")
    op.drop_column("workspaces", "workflow_policy_version")
