"""Webhooks made over HTTP."""

from typing import Any

from sqlmodel import col, func, select

from recorder.models.operations import OutboxRow
from recorder.models.webhook import DeliveryRow
from tests.support.factories import Caller

WEBHOOKS = "/v1/webhooks"
#: A name that no resolver is asked for.
URL = "https://hooks.invalid/in"
LOCAL = "http://127.0.0.1:9/in"


def body(**members: Any) -> dict[str, Any]:
    """Return a body of `POST /v1/webhooks`."""
    return {"url": URL, "events": ["session.sealed"], **members}


def make(caller: Caller, **members: Any) -> dict[str, Any]:
    """Create a webhook; return the answer."""
    answer = caller.post(WEBHOOKS, body(**members))
    assert answer.status_code == 201, answer.text
    made: dict[str, Any] = answer.json()
    return made


def count_undelivered(caller: Caller) -> int:
    """Return how many events wait for deliveries, and how many attempts have not ended."""
    with caller.service.runtime.database.transaction(write=False) as db:
        events = db.exec(select(func.count()).where(col(OutboxRow.dispatched_at).is_(None))).one()
        return events + db.exec(select(func.count()).where(DeliveryRow.status == "pending")).one()
