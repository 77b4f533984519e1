"""Requests that are sent again under their Idempotency-Key, and what they must not have done twice."""

from typing import Any

from sqlmodel import select

from recorder.models.session import SessionRow
from tests.support.factories import Caller

SESSIONS = "/v1/sessions"
CHECKOUT = {"workflow": "checkout", "metadata": {"ticket": 7, "who": "Zoë"}, "start": True}
REPLAYED = "idempotent-replayed"


def assert_replayed(first: Any, second: Any) -> None:
    """Check that the second answer is the first one, and says so."""
    assert second.headers.get(REPLAYED) == "true", second.text
    assert REPLAYED not in first.headers
    assert (second.status_code, second.content) == (first.status_code, first.content)
    assert second.headers["content-type"] == first.headers["content-type"]
    assert second.headers["x-request-id"] != first.headers["x-request-id"]


def sessions_of(caller: Caller) -> list[str]:
    """Return the ids of all sessions of a workspace."""
    with caller.service.runtime.database.transaction(write=False) as db:
        rows = select(SessionRow.id).where(SessionRow.workspace_id == caller.key.workspace_id)
        return list(db.exec(rows))
