"""Bounded purges: nodes of erasures are rows, batches have an index, and erasures are searched twice."""

from collections import defaultdict

import sqlalchemy as sa
from alembic import op

revision = "2026.6.20"
down_revision = "2026.6.19"
branch_labels = None
depends_on = None

_ERASURES = sa.table(
    "erasures", sa.column("id"), sa.column("counts", sa.JSON()), sa.column("nodes", sa.JSON())
)
_NODES = sa.table("erasure_nodes", sa.column("erasure_id"), sa.column("node_id"))


def upgrade() -> None:
    """Create `erasure_nodes`, index seal batches, and add the columns of an erasure's second search."""
    op.create_index("ix_seal_batches_created", "seal_batches", ["workspace_id", "mode", "created_at"])
    op.create_table(
        "erasure_nodes",
        sa.Column("erasure_id", sa.String(), nullable=False),
        sa.Column("node_id", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("erasure_id", "node_id"),
        sqlite_with_rowid=False,
    )
    for erasure_id, counts, nodes in op.get_bind().execute(sa.select(_ERASURES)).all():
        op.bulk_insert(_NODES, [{"erasure_id": erasure_id, "node_id": node} for node in nodes or ()])
        _update_erasure(erasure_id, counts={**counts, "nodes": len(nodes or ())})
    with op.batch_alter_table("erasures") as batch_op:
        batch_op.drop_column("nodes")
        batch_op.add_column(sa.Column("newest_id", sa.String(), nullable=True))
        batch_op.add_column(sa.Column("second_search_at", sa.DateTime(timezone=True), nullable=True))


def downgrade() -> None:
    """Drop the index and the columns, and move the rows of `erasure_nodes` to their erasures."""
    with op.batch_alter_table("erasures") as batch_op:
        batch_op.drop_column("second_search_at")
        batch_op.drop_column("newest_id")
        batch_op.add_column(sa.Column("nodes", sa.JSON(), nullable=True))
    nodes: defaultdict[str, list[str]] = defaultdict(list)
    for erasure_id, node in op.get_bind().execute(sa.select(_NODES).order_by(_NODES.c.node_id)).all():
        nodes[erasure_id].append(node)
    for erasure_id, of_erasure in nodes.items():
        _update_erasure(erasure_id, nodes=of_erasure)
    op.drop_table("erasure_nodes")
    op.drop_index("ix_seal_batches_created", table_name="seal_batches")


def _update_erasure(erasure_id: str, **values: object) -> None:
    op.execute(sa.update(_ERASURES).where(_ERASURES.c.id == erasure_id).values(values))
