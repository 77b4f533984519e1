"""Holds and hard deletes that come while retention or an erasure hides the session. Contract §7."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from sqlmodel import select

from recorder import clock
from recorder.audit.log import Origin
from recorder.errors import NotFound
from recorder.governance.erasure_search import request_erasure_purges
from recorder.governance.holds import add_hold
from recorder.governance.purging.due_sessions import DueSession, begin_purges
from recorder.governance.purging.purge_rows import request_purge
from recorder.models.governance import PurgeRow
from recorder.models.session import SessionRow
from recorder.models.workspace import WorkspaceRow
from tests.support.factories import Caller
from tests.support.recorded_sessions import execute

#: Time in which a thread reaches the lock that it waits for.
_WAIT_S = 0.5


def hard_delete(caller: Caller, session_id: str) -> None:
    """Ask for the hard delete of a session."""
    caller.delete(f"/v1/sessions/{session_id}?hard=true")


def expire(caller: Caller, session_id: str) -> None:
    """Hide a session that is due, as retention does."""
    runtime, at = caller.service.runtime, clock.now() + timedelta(days=600)
    with runtime.database.transaction(write=True) as db:
        workspace = db.get_one(WorkspaceRow, caller.key.workspace_id)
        begin_purges(db, workspace, [DueSession(session_id, "retention", 0, False)], at=at, now=clock.now())


def erase(caller: Caller, session_id: str) -> None:
    """Hide a session that an erasure found."""
    runtime = caller.service.runtime
    answer = caller.post("/v1/privacy/erasure", {"subject": "nobody", "scope": "all"})
    with runtime.database.transaction(write=True) as db:
        request_erasure_purges(db, answer.json()["id"], [session_id])


@pytest.mark.parametrize("remove", [expire, erase, hard_delete])
def test_a_session_is_held_or_purged(caller: Caller, remove: Callable[[Caller, str], None]) -> None:
    runtime, origin = caller.service.runtime, Origin.operator(caller.key.workspace_id)
    session_id = caller.make_session()

    def hold() -> bool:
        try:
            with runtime.database.transaction(write=True) as db:
                return add_hold(db, origin, kind="session", value=session_id)
        except NotFound:
            return False

    with ThreadPoolExecutor(2) as pool:
        with runtime.database.transaction(write=True) as db:
            db.exec(select(SessionRow).where(SessionRow.id == session_id).with_for_update()).one()
            removed = pool.submit(remove, caller, session_id)
            time.sleep(_WAIT_S)
            held = pool.submit(hold)
            time.sleep(_WAIT_S)
        removed.result(30)
    with runtime.database.transaction(write=False) as db:
        is_purged = db.get(PurgeRow, session_id) is not None
    assert held.result(0) is not is_purged
    execute(runtime, "DELETE FROM erasures")


def test_a_hard_delete_in_the_moment_of_its_expiry_stops_no_retention(caller: Caller) -> None:
    runtime, session_id = caller.service.runtime, caller.make_session(status="deleted")
    with ThreadPoolExecutor(1) as pool:
        with runtime.database.transaction(write=True) as db:
            row = db.exec(select(SessionRow).where(SessionRow.id == session_id).with_for_update()).one()
            expired = pool.submit(expire, caller, session_id)
            time.sleep(_WAIT_S)
            request_purge(db, row, "hard_delete", at=clock.now())
        expired.result(30)
    with runtime.database.transaction(write=False) as db:
        assert db.get_one(PurgeRow, session_id).cause == "hard_delete"
