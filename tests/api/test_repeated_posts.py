"""Every POST under an Idempotency-Key, sent twice: carried out once, and secrets shown once. Contract §1."""

from collections.abc import Callable
from typing import Any

import pytest

from recorder.models.tables import METADATA
from tests.support.completed_work import sealed_session
from tests.support.factories import Caller, Service, stored_rows
from tests.support.repeated_requests import REPLAYED
from tests.support.two_click_sessions import replay_all, sealed_run

EXPORT = {"workflow": "checkout", "format": "parquet", "destination": {"kind": "signed_url"}}
HOOK = {"url": "http://127.0.0.1:9/hook", "events": ["session.created"]}
#: Batches keep ids of their own.
BATCHES = {"/v1/sessions/{session_id}/events", "/v1/sessions/{session_id}/frames"}

Request = tuple[dict[str, str], dict[str, Any] | None]


def webhook(caller: Caller) -> str:
    """Return the id of a new webhook."""
    made: str = caller.post("/v1/webhooks", HOOK).json()["id"]
    return made


def delivery(caller: Caller) -> dict[str, str]:
    """Return the ids of a webhook and of an attempt to send to it."""
    made = webhook(caller)
    sent: str = caller.post(f"/v1/webhooks/{made}/test").json()["id"]
    return {"webhook_id": made, "delivery_id": sent}


def exported(caller: Caller) -> Request:
    """Return an export of a workflow that exists."""
    caller.make_session()
    return {}, EXPORT


def waiting_export(caller: Caller) -> Request:
    """Export that no run has begun."""
    caller.make_session()
    made: str = caller.post("/v1/exports", EXPORT).json()["id"]
    return {"export_id": made}, None


def awaiting_replay(caller: Caller) -> Request:
    """Return a guided replay that awaits a decision."""
    body = {"session_id": sealed_run(caller), "sandbox": "dry", "mode": "guided"}
    made: str = caller.post("/v1/replays", body).json()["id"]
    replay_all(caller)
    return {"replay_id": made}, None


def failed_run(caller: Caller) -> dict[str, Any]:
    """Return the body of a recovery."""
    return {"session_id": sealed_run(caller), "sandbox": "dry", "failure_tag": "ready"}


def started_recovery(caller: Caller) -> Request:
    """Return a recovery that no run has continued."""
    made: str = caller.post("/v1/recoveries", failed_run(caller)).json()["id"]
    return {"recovery_id": made}, None


#: One request for every address: the ids in its path, and its body.
REQUESTS: dict[str, Callable[[Caller], Request]] = {
    "/v1/sessions": lambda _: ({}, {"workflow": "checkout"}),
    "/v1/sessions/{session_id}/start": lambda item: (
        {"session_id": item.make_session(status="created")},
        None,
    ),
    "/v1/sessions/{session_id}/stop": lambda item: ({"session_id": item.make_session()}, None),
    "/v1/sessions/{session_id}/tags": lambda item: ({"session_id": item.make_session()}, {"name": "seen"}),
    "/v1/sessions:batch_stop": lambda item: ({}, {"ids": [item.make_session(), item.make_session()]}),
    "/v1/memory/similar": lambda item: ({}, {"session_id": sealed_session(item)}),
    "/v1/exports": exported,
    "/v1/exports/{export_id}/cancel": waiting_export,
    "/v1/replays": lambda item: ({}, {"session_id": sealed_session(item), "sandbox": "dry"}),
    "/v1/replays/{replay_id}/cancel": awaiting_replay,
    "/v1/replays/{replay_id}/decision": lambda item: (
        awaiting_replay(item)[0],
        {"step": 2, "action": "act"},
    ),
    "/v1/recoveries": lambda item: ({}, failed_run(item)),
    "/v1/recoveries/{recovery_id}/cancel": started_recovery,
    "/v1/keys": lambda _: ({}, {"label": "robot", "scope": "write"}),
    "/v1/webhooks": lambda _: ({}, HOOK),
    "/v1/privacy/erasure": lambda _: ({}, {"subject": "nowhere", "scope": "all"}),
    "/v1/webhooks/{webhook_id}/secret": lambda item: ({"webhook_id": webhook(item)}, None),
    "/v1/webhooks/{webhook_id}/test": lambda item: ({"webhook_id": webhook(item)}, None),
    "/v1/webhooks/{webhook_id}/deliveries/{delivery_id}/redeliver": lambda item: (delivery(item), None),
}
SECRETS = {"/v1/keys": "key", "/v1/webhooks": "secret", "/v1/webhooks/{webhook_id}/secret": "secret"}


def test_the_table_holds_every_post(service: Service) -> None:
    described = service.app.openapi()["paths"]
    assert {path for path, methods in described.items() if "post" in methods} == set(REQUESTS) | BATCHES


@pytest.mark.parametrize("path", REQUESTS)
def test_a_post_that_is_sent_twice_is_carried_out_once(caller: Caller, path: str) -> None:
    ids, body = REQUESTS[path](caller)
    address = path.format(**ids)
    first = caller.post(address, body, key="k")
    before = stored_rows(caller.service.runtime)
    second = caller.post(address, body, key="k")
    assert first.status_code in (200, 201, 202), first.text
    assert (second.status_code, second.headers.get(REPLAYED)) == (first.status_code, "true")
    shown_once = {SECRETS[path]: None} if path in SECRETS else {}
    assert second.json() == {**first.json(), **shown_once}
    assert list(second.json()) == list(first.json())
    assert stored_rows(caller.service.runtime) == before


@pytest.mark.parametrize("path", SECRETS)
def test_a_secret_is_stored_nowhere_in_clear(caller: Caller, path: str) -> None:
    ids, body = REQUESTS[path](caller)
    secret: str = caller.post(path.format(**ids), body, key="k").json()[SECRETS[path]]
    assert len(secret) > 30
    with caller.service.runtime.database.transaction(write=False) as db:
        connection = db.connection()
        for table in METADATA.sorted_tables:
            for row in connection.execute(table.select()):
                assert secret not in repr(tuple(row)), table.name
