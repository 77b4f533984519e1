"""Sessions whose hot rows are being deleted have a table; their ids were the owner of a lease."""

import json

import sqlalchemy as sa
from alembic import op

revision = "2026.6.11"
down_revision = "2026.6.10"
branch_labels = None
depends_on = None

_LEASES = sa.table("leases", *(sa.column(name) for name in ("name", "owner", "fence", "expires_ms")))
_IS_SWEEP = _LEASES.c.name == "seal-sweep"


def upgrade() -> None:
    """Create `sweeps` with the sessions of a run that was killed."""
    sweeps = op.create_table(
        "sweeps",
        sa.Column("session_id", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("session_id"),
        sqlite_with_rowid=False,
    )
    session_ids = json.loads(op.get_bind().scalar(sa.select(_LEASES.c.owner).where(_IS_SWEEP)) or "[]")
    op.bulk_insert(sweeps, [{"session_id": session_id} for session_id in session_ids])
    op.execute(sa.delete(_LEASES).where(_IS_SWEEP))


def downgrade() -> None:
    """Drop `sweeps`, and name its sessions in a lease."""
    session_ids = op.get_bind().scalars(sa.text("SELECT session_id FROM sweeps ORDER BY session_id")).all()
    if session_ids:
        owner = json.dumps(session_ids)
        op.bulk_insert(_LEASES, [{"name": "seal-sweep", "owner": owner, "fence": 0, "expires_ms": 0}])
    op.drop_table("sweeps")
