"""Tables of PostgreSQL that are to be rewritten before an erasure ends."""

import sqlalchemy as sa
from alembic import op

revision = "2026.6.4"
down_revision = "2026.6.3"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add `erasures.stale_tables`; open erasures wait for their tables too."""
    with op.batch_alter_table("erasures") as batch_op:
        batch_op.add_column(sa.Column("stale_tables", sa.String(), nullable=True))


def downgrade() -> None:
    """Drop `erasures.stale_tables`."""
    with op.batch_alter_table("erasures") as batch_op:
        batch_op.drop_column("stale_tables")
