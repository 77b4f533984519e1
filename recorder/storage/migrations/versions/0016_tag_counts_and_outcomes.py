"""Sessions count their tags, indexes of tags hold names and positions, and outcomes change in place in graphs."""

import sqlalchemy as sa
from alembic import op

revision = "2026.6.14"
down_revision = "2026.6.13"
branch_labels = None
depends_on = None

_PATHS = "graph_session_paths"
_HAS_CHANGED = sa.text("outcome_version IS NOT NULL")


def upgrade() -> None:
    """Count the tags of sessions, replace the indexes of tags, and keep outcomes of a graph in place."""
    op.add_column("sessions", sa.Column("tag_count", sa.Integer(), server_default="0", nullable=False))
    op.execute(
        "UPDATE sessions SET tag_count = (SELECT count(*) FROM tags WHERE tags.session_id = sessions.id) "
        "WHERE id IN (SELECT session_id FROM tags)"
    )
    op.drop_index("ix_tags_session", table_name="tags")
    op.create_index("ix_tags_session", "tags", ["session_id", "t_ms", "id", "name"])
    op.create_index("ix_tags_position", "tags", ["session_id", "position"])
    op.add_column(_PATHS, sa.Column("outcome_version", sa.BigInteger(), nullable=True))
    op.add_column(_PATHS, sa.Column("earlier_outcome", sa.String(), nullable=True))
    # A session had one more row, with all its times, for each change of its outcome.
    op.execute(
        "DELETE FROM graph_session_paths WHERE EXISTS (SELECT 1 FROM graph_session_paths AS later "
        "WHERE later.session_id = graph_session_paths.session_id "
        "AND later.version = graph_session_paths.removed_version)"
    )
    op.create_index(
        "ix_graph_session_paths_outcome",
        _PATHS,
        ["workspace_id", "mode", "workflow", "outcome_version"],
        sqlite_where=_HAS_CHANGED,
        postgresql_where=_HAS_CHANGED,
    )


def downgrade() -> None:
    """Restore the indexes of tags, and drop the counts of tags and the columns for changed outcomes."""
    op.drop_index("ix_graph_session_paths_outcome", table_name=_PATHS)
    op.drop_column(_PATHS, "earlier_outcome")
    op.drop_column(_PATHS, "outcome_version")
    op.drop_index("ix_tags_position", table_name="tags")
    op.drop_index("ix_tags_session", table_name="tags")
    op.create_index("ix_tags_session", "tags", ["session_id", "t_ms", "id"])
    op.drop_column("sessions", "tag_count")
