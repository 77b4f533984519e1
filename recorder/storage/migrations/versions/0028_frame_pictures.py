"""Index of the pictures of a session: an upload looks up equal ones, and would read all frames without it."""

from alembic import op

revision = "2026.6.26"
down_revision = "2026.6.25"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the index of a session's frames by picture."""
    op.create_index("ix_frames_picture", "frames", ["session_id", "sha256"], if_not_exists=True)


def downgrade() -> None:
    """Drop the index of a session's frames by picture."""
    op.drop_index("ix_frames_picture", "frames")
