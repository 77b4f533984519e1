"""Webhooks made over HTTP."""

from typing import Any

from tests.support.factories import Caller

WEBHOOKS = "/v1/webhooks"
#: A name that no resolver is asked for.
URL = "https://hooks.invalid/in"
LOCAL = "http://127.0.0.1:9/in"


def body(**members: Any) -> dict[str, Any]:
    """A body of `POST /v1/webhooks`."""
    return {"url": URL, "events": ["session.sealed"], **members}


def make(caller: Caller, **members: Any) -> dict[str, Any]:
    """A webhook; returns the answer."""
    answer = caller.post(WEBHOOKS, body(**members))
    assert answer.status_code == 201, answer.text
    made: dict[str, Any] = answer.json()
    return made
