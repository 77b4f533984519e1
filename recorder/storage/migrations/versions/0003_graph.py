"""The memory graph by traces of micro-states, so that it can be rebuilt; drift."""

from typing import Any

import sqlalchemy as sa
import xxhash
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_PLACE = ("workspace_id", "mode", "workflow")


def upgrade() -> None:
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
    for table in ("graph_nodes", "graph_paths"):
        with op.batch_alter_table(table, schema=None) as batch_op:
            batch_op.add_column(sa.Column("merged_into", sa.Integer(), nullable=True))
    with op.batch_alter_table("graph_micro_states", schema=None) as batch_op:
        batch_op.add_column(sa.Column("features", sa.LargeBinary(), nullable=True))
    with op.batch_alter_table("graph_session_paths", schema=None) as batch_op:
        batch_op.add_column(sa.Column("trace_key", sa.BigInteger(), nullable=True))
        batch_op.add_column(sa.Column("seal_seq", sa.BigInteger(), nullable=True))
        batch_op.alter_column("edge_ms", new_column_name="step_ms", existing_type=sa.JSON())

    _trace_sessions()

    with op.batch_alter_table("graph_session_paths", schema=None) as batch_op:
        batch_op.alter_column("trace_key", existing_type=sa.BigInteger(), nullable=False)
        batch_op.alter_column("seal_seq", existing_type=sa.BigInteger(), nullable=False)
        batch_op.drop_column("path_id")
        batch_op.drop_column("variant_key")
    with op.batch_alter_table("graph_variants", schema=None) as batch_op:
        batch_op.drop_column("n")
    op.drop_table("graph_edges")

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


def _trace_sessions() -> None:
    """Give the sessions of the release before traces: it knew their nodes, so exemplars stand for the steps."""
    connection = op.get_bind()
    nodes = _table("graph_nodes", "number", "micro_key")
    micro_of = {
        (*row[:3], row.number): row.micro_key for row in connection.execute(sa.select(*nodes.c)).all()
    }
    variants = _table("graph_variants", "variant_key", "n", "created_version", nodes=sa.JSON())
    traces = []
    for row in connection.execute(sa.select(*variants.c)).all():
        steps = b"".join(
            micro_of[*row[:3], number].to_bytes(8, "little", signed=True) for number in row.nodes
        )
        key = xxhash.xxh64_intdigest(steps)
        traces.append(
            {
                **dict(zip(_PLACE, row[:3], strict=True)),
                "trace_key": key - 2**64 if key >= 2**63 else key,
                "steps": steps,
                "variant_key": row.variant_key,
                "n": row.n,
                "created_version": row.created_version,
            }
        )
    if not traces:
        return
    made = _table("graph_traces", "trace_key", "variant_key", "n", "created_version", steps=sa.LargeBinary())
    connection.execute(made.insert(), traces)
    op.execute(
        """
        UPDATE graph_session_paths SET trace_key = (
            SELECT t.trace_key FROM graph_traces AS t
            WHERE t.workspace_id = graph_session_paths.workspace_id AND t.mode = graph_session_paths.mode
                AND t.workflow = graph_session_paths.workflow
                AND t.variant_key = graph_session_paths.variant_key
        ), seal_seq = COALESCE((
            SELECT s.seal_seq FROM sessions AS s WHERE s.id = graph_session_paths.session_id
        ), 0)
        """
    )


def _table(name: str, *numbers: str, **others: sa.types.TypeEngine[Any]) -> sa.TableClause:
    """A table as far as it is read or written here: whose graph it is, numbers, and other columns."""
    return sa.table(
        name,
        *(sa.column(place, sa.String()) for place in _PLACE),
        *(sa.column(number, sa.BigInteger()) for number in numbers),
        *(sa.column(other, kind) for other, kind in others.items()),
    )
