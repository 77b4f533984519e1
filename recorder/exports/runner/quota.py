"""An export's rows in the quota: held at the plan, counted or given back at the end. Spec §8.2."""

from sqlmodel import Session as DbSession

from recorder.access.quota import reserve_rows, settle_rows
from recorder.models.export import ExportRow


def hold_rows(db: DbSession, row: ExportRow, rows: int) -> None:
    """Hold the rows of an export's plan; what a plan before it held stays held where it is enough.

    Raises:
        QuotaExceeded: if fewer are left; the transaction must then be rolled back.
    """
    if row.reserved_rows is not None and row.reserved_rows < rows:
        settle(db, row, exported=0)
    if row.reserved_period is None:
        row.reserved_period = reserve_rows(db, row.tenant, rows)
        row.reserved_rows = rows


def settle(db: DbSession, row: ExportRow, *, exported: int) -> None:
    """Count what a finished export wrote, and hold nothing any more; 0 where it failed."""
    if row.reserved_period is not None and row.reserved_rows is not None:
        settle_rows(db, row.workspace_id, row.reserved_period, reserved=row.reserved_rows, exported=exported)
    row.reserved_rows = row.reserved_period = None
