"""Entries of the audit log: each action of docs/audit.md when it happens, with its origin. Contract §7."""

from typing import Any, get_args

import pytest

from api.gate.endpoints import ENDPOINTS
from recorder.access.key_admin import create_key_as_operator, revoke_key
from recorder.access.workspaces import create_workspace_as_operator, set_workspace
from recorder.audit.log import Action, Origin
from recorder.exports.runner.finalize import fail_export_of_cancelled_run, requeue_export
from recorder.ids import new_id
from recorder.models.export_request import ExportCreate
from recorder.models.workspace import KeyCreate
from recorder.storage.database import Database
from recorder.tenant import Tenant
from tests.support.factories import Caller
from tests.support.project_texts import PAGES, table

TOLD = {row[0].strip("`"): row for row in table(PAGES["docs/audit.md"], "## Actions\n")}
SESSION = {"workflow": "checkout"}
EXPORT = {"workflow": "checkout", "format": "parquet", "destination": {"kind": "signed_url"}}
HOOK = {"url": "http://127.0.0.1:9/hook?token=hush", "events": ["session.created"]}
KEY = {"label": "robot", "scope": "read"}

#: Details that an entry has in some cases only; the page says in which.
CONDITIONAL = {"sessions_until"}

#: A POST, PATCH or DELETE; `{id}` stands for what the POST before it made.
Step = tuple[str, str, dict[str, Any] | None]
BY_KEY: dict[str, list[Step]] = {
    "key.create": [("POST", "/v1/keys", KEY)],
    "key.revoke": [("POST", "/v1/keys", KEY), ("DELETE", "/v1/keys/{id}", None)],
    "webhook.create": [("POST", "/v1/webhooks", HOOK)],
    "webhook.update": [("POST", "/v1/webhooks", HOOK), ("PATCH", "/v1/webhooks/{id}", {"description": "x"})],
    "webhook.delete": [("POST", "/v1/webhooks", HOOK), ("DELETE", "/v1/webhooks/{id}", None)],
    "webhook.rotate_secret": [("POST", "/v1/webhooks", HOOK), ("POST", "/v1/webhooks/{id}/secret", None)],
    "webhook.test": [("POST", "/v1/webhooks", HOOK), ("POST", "/v1/webhooks/{id}/test", None)],
    "webhook.redeliver": [
        ("POST", "/v1/webhooks", HOOK),
        ("POST", "/v1/webhooks/{id}/test", None),
        ("POST", "/v1/webhooks/{first}/deliveries/{id}/redeliver", None),
    ],
    "workspace.update": [("PATCH", "/v1/workspaces/current", {"retention": {"frames_days": 30}})],
    "workflow.create": [("PATCH", "/v1/workflows/checkout", {"tags": ["billing"]})],
    "workflow.update": [
        ("POST", "/v1/sessions", SESSION),
        ("PATCH", "/v1/workflows/checkout", {"tags": ["billing"]}),
    ],
    "session.delete": [("POST", "/v1/sessions", SESSION), ("DELETE", "/v1/sessions/{id}", None)],
    "privacy.request": [("POST", "/v1/privacy/erasure", {"subject": "hush", "scope": "all"})],
    "export.create": [("POST", "/v1/sessions", SESSION), ("POST", "/v1/exports", EXPORT)],
    "export.cancel": [
        ("POST", "/v1/sessions", SESSION),
        ("POST", "/v1/exports", EXPORT),
        ("POST", "/v1/exports/{id}/cancel", None),
    ],
}
#: Changing addresses that record nothing: what they do is the recording itself, or a dry replay or recovery.
RECORDING = {
    *(f"POST /v1/replays{part}" for part in ("", "/{replay_id}/cancel", "/{replay_id}/decision")),
    *(f"POST /v1/recoveries{part}" for part in ("", "/{recovery_id}/cancel")),
    *("POST /v1/sessions", "POST /v1/sessions:batch_stop"),
    *(
        f"POST /v1/sessions/{{session_id}}/{action}"
        for action in ("start", "stop", "events", "frames", "tags")
    ),
}


def entries(caller: Caller, action: str) -> list[dict[str, Any]]:
    """Return the log's entries of an action."""
    items: list[dict[str, Any]] = caller.get(f"/v1/audit?action={action}").json()["data"]
    return items


def run(caller: Caller, steps: list[Step]) -> tuple[list[str], list[str]]:
    """Take the steps; gives the ids of what they made, and the secrets that they showed."""
    ids, secrets = [""], []
    for method, path, body in steps:
        answer = caller.request(method, path.format(id=ids[-1], first=ids[min(1, len(ids) - 1)]), json=body)
        assert answer.is_success, answer.text
        shown = answer.json() if answer.content else {}
        ids.append(shown.get("id") or ids[-1])
        secrets += [shown[name] for name in ("key", "secret") if name in shown]
    return ids[1:], secrets


def test_the_page_tells_every_action() -> None:
    assert sorted(TOLD) == sorted(get_args(Action))


@pytest.mark.parametrize("action", BY_KEY)
def test_a_change_by_a_key_is_recorded_with_its_origin(caller: Caller, action: str) -> None:
    ids, secrets = run(caller, BY_KEY[action])
    [entry] = entries(caller, action)
    assert entry["actor"] == {"type": "key", "id": caller.key.key_id}
    assert entry["resource"]["type"] == action.partition(".")[0].replace("privacy", "erasure")
    assert entry["resource"]["id"] in {*ids, "checkout", caller.key.workspace_id}
    assert (entry["outcome"], entry["ip"]) == ("success", "testclient")
    assert entry["request_id"].startswith("req_")
    log = caller.get("/v1/audit", Accept="application/x-ndjson").text
    assert [secret for secret in [*secrets, "hush", caller.key.key] if secret in log] == []


@pytest.mark.parametrize("action", BY_KEY)
def test_the_details_are_those_that_the_page_tells(caller: Caller, action: str) -> None:
    run(caller, BY_KEY[action])
    [entry] = entries(caller, action)
    words = {word for word in TOLD[action][3].split("`")[1::2] if word not in ("from", "to")}
    if action in ("workspace.update", "workflow.create", "workflow.update"):
        assert {"from", "to"} == {name for setting in entry["details"].values() for name in setting}
    else:
        assert words - CONDITIONAL <= set(entry["details"]) <= words


def test_every_changing_address_records_or_records_a_session() -> None:
    changing = {
        f"{endpoint.method} {endpoint.path}"
        for endpoint in ENDPOINTS
        if endpoint.method != "GET" and not endpoint.only_reads
    }
    last_steps = [steps[-1] for steps in BY_KEY.values()]
    audited = {(method, len(path.split("/")), path.split("/")[2]) for method, path, _ in last_steps}
    for address in changing - RECORDING:
        method, _, path = address.partition(" ")
        assert (method, len(path.split("/")), path.split("/")[2]) in audited, address


def database(caller: Caller) -> Database:
    """Return the database of a caller's deployment."""
    return caller.service.runtime.database


def test_what_the_operator_does_is_recorded(caller: Caller) -> None:
    settings = caller.service.runtime.settings
    with database(caller).transaction(write=True) as db:
        opened = create_workspace_as_operator(db, settings, new_id("wsp"), tier="unlimited")
        origin = Origin.operator(opened.workspace_id)
        key = create_key_as_operator(db, origin, KeyCreate(label="desk", scope="admin"), settings.secret)
    with database(caller).transaction(write=True) as db:
        set_workspace(db, opened.workspace_id, tier="default")
        revoke_key(db, Tenant(opened.workspace_id, "live"), origin, key.id)
    operator = Caller(caller.service, opened)
    items = operator.get("/v1/audit").json()["data"]
    assert [entry["action"] for entry in items] == [
        "workspace.create",
        "key.create",
        "workspace.update",
        "key.revoke",
    ]
    assert {(entry["actor"]["type"], entry["request_id"], entry["ip"]) for entry in items} == {
        ("operator", None, None)
    }
    assert items[2]["details"] == {"tier": {"from": "unlimited", "to": "default"}}


def test_what_is_done_at_dagsters_pages_is_recorded(caller: Caller) -> None:
    caller.make_session()
    workspace_id, wanted = caller.key.workspace_id, ExportCreate.model_validate(EXPORT)
    runtime = caller.service.runtime
    export_id = requeue_export(runtime, Tenant(workspace_id, "live"), wanted, owner="run-1")
    fail_export_of_cancelled_run(runtime, export_id, owner="run-1")
    items = caller.get("/v1/audit?resource=export").json()["data"]
    assert [(entry["action"], entry["resource"]["id"]) for entry in items] == [
        ("export.create", export_id),
        ("export.cancel", export_id),
    ]
    assert {tuple(entry["actor"].values()) for entry in items} == {("operator", "dagster")}


def test_a_change_that_is_refused_or_changes_nothing_is_not_recorded(caller: Caller) -> None:
    same = caller.get("/v1/workspaces/current").json()["retention"]
    for method, path, body in (
        ("PATCH", "/v1/workspaces/current", {"retention": same}),
        ("PATCH", "/v1/workspaces/current", {"retention": {"frames_days": 0}}),
        ("DELETE", "/v1/keys/key_unknown", None),
        ("POST", "/v1/exports", EXPORT),
        ("POST", "/v1/webhooks", {**HOOK, "url": "ftp://127.0.0.1/"}),
    ):
        caller.request(method, path, json=body)
    assert caller.get("/v1/audit").json()["data"] == []


def test_a_request_that_is_sent_again_is_recorded_once(caller: Caller) -> None:
    for _ in range(3):
        assert caller.post("/v1/keys", KEY, key="k").status_code == 201
    assert len(entries(caller, "key.create")) == 1
