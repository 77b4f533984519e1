"""Chosen sessions whose rows the lake lacks for now: those to be sealed again, and those set aside.

The sweep deletes the rows of a session that the lake holds in part, and has it sealed again. During that time
the session stays `sealed`: an export may not leave it out, and finds no rows of it.
"""

import polars as pl
from sqlmodel import Session as DbSession
from sqlmodel import col, select

from recorder.errors import RecorderError, Unavailable
from recorder.models.session import SessionRow
from recorder.number_formats import format_count
from recorder.storage.conditions import in_tenant
from recorder.tenant import Tenant

_NAMED_SESSIONS = 3


class SealingAwaited(Unavailable):
    """Sessions of the export are to be sealed again; the next run continues."""

    def __init__(self, count: int) -> None:
        sessions = format_count(count, "session")
        text = f"The export waits until the lake has the rows of {sessions} again; the next run continues."
        RecorderError.__init__(self, text)


class SessionsSetAside(RecorderError):
    """Sealed sessions were set aside, since the lake lost their rows."""

    code = "rows_missing"
    title = "Rows missing"

    def __init__(self, session_ids: list[str]) -> None:
        sessions = format_count(len(session_ids), "sealed session")
        command = f"recorder sessions reseal {' '.join(session_ids[:_NAMED_SESSIONS])}"
        has_more = len(session_ids) > _NAMED_SESSIONS
        others = "; `recorder sessions quarantined` lists all of them" if has_more else ""
        super().__init__(
            f"The lake lost the rows of {sessions}, set aside since. The operator checks the lake's store "
            f"and runs `{command}`{others}. Then create the export again."
        )


def require_sealed_rows(db: DbSession, tenant: Tenant, chosen: pl.DataFrame) -> None:
    """Check that the lake is not known to lack rows of chosen sessions.

    Args:
        db: the transaction in which the sessions were chosen.
        tenant: workspace and mode.
        chosen: the sealed sessions, with `session_id`.

    Raises:
        SessionsSetAside: if some were set aside after they were sealed.
        SealingAwaited: if some are to be sealed again.
    """
    # Without their status: for these conditions alone there are indexes of few sessions.
    of_tenant = select(SessionRow.id).where(*in_tenant(SessionRow, tenant))
    set_aside = set(db.exec(of_tenant.where(col(SessionRow.seal_error_code).is_not(None))))
    waiting = set(db.exec(of_tenant.where(col(SessionRow.waiting_since).is_not(None))))
    if not set_aside and not waiting:
        return
    session_ids = set(chosen["session_id"])
    if set_aside := set_aside & session_ids:
        raise SessionsSetAside(sorted(set_aside))
    if waiting := waiting & session_ids:
        raise SealingAwaited(len(waiting))
