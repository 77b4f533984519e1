"""Check value of the deployment's secret: a start with another secret is refused."""

import sqlalchemy as sa
from alembic import op

revision = "2026.6.27"
down_revision = "2026.6.26"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add `deployment.secret_check`; the next start fills it."""
    op.add_column("deployment", sa.Column("secret_check", sa.String(), nullable=True))


def downgrade() -> None:
    """Drop `deployment.secret_check`."""
    op.drop_column("deployment", "secret_check")
