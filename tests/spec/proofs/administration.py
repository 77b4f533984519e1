"""Spec §4.4 and §4.5: webhooks, keys, the workspace, usage and the audit log."""

from tests.support.completed_work import make_webhook, patch, shown_delivery
from tests.support.factories import Caller, assert_problem
from tests.support.specification_checks import Rows

ROWS = Rows()


@ROWS.row("4.4 create")
def check_create(caller: Caller) -> None:
    made = make_webhook(caller, description="to the lake")
    assert set(made) == {"id", "url", "events", "secret"}


@ROWS.row("4.4 list")
def check_list(caller: Caller) -> None:
    made = [make_webhook(caller)["id"] for _ in range(2)]
    assert [item["id"] for item in caller.get("/v1/webhooks").json()["data"]] == made[::-1]


@ROWS.row("4.4 read")
def check_read(caller: Caller) -> None:
    made = make_webhook(caller)
    assert caller.get(f"/v1/webhooks/{made['id']}").json()["url"] == made["url"]


@ROWS.row("4.4 deliveries")
def check_deliveries(caller: Caller) -> None:
    sent = shown_delivery(caller)
    assert sent.record["id"] == sent.request.headers["service-delivery-id"]


@ROWS.row("4.4 redeliver")
def check_redeliver(caller: Caller) -> None:
    sent = shown_delivery(caller)
    old = sent.record
    answer = sent.owner.post(f"/v1/webhooks/{sent.webhook['id']}/deliveries/{old['id']}/redeliver")
    new = answer.json()
    assert (answer.status_code, new["redelivery_of"], new["trigger"]) == (202, old["id"], "manual")
    assert new["id"] != old["id"] and new["request"]["body"] == old["request"]["body"]


@ROWS.row("4.4 delete")
def check_delete(caller: Caller) -> None:
    address = f"/v1/webhooks/{make_webhook(caller)['id']}"
    assert caller.delete(address).status_code == 204
    assert_problem(caller.get(address), 404, "not_found")


@ROWS.row("4.5 POST keys")
def check_post_keys(caller: Caller) -> None:
    body = {"label": "robot", "scope": "read", "expires_at": "2999-01-01T00:00:00Z"}
    made = caller.post("/v1/keys", body)
    assert made.status_code == 201 and {"id", "label", "scope", "key"} <= set(made.json())
    writer = caller.service.make_caller(scope="write", workspace_id=caller.key.workspace_id)
    assert_problem(writer.post("/v1/keys", body), 403, "insufficient_scope")


@ROWS.row("4.5 PATCH workspace")
def check_patch_workspace(caller: Caller) -> None:
    wanted = {"frames_days": 30, "events_days": 60}
    changed = patch(caller, "/v1/workspaces/current", {"retention": wanted})
    assert wanted.items() <= changed["retention"].items()
    assert caller.get("/v1/workspaces/current").json() == changed


@ROWS.row("4.5 quota")
def check_quota(caller: Caller) -> None:
    assert set(caller.get("/v1/quota").json()) == {
        "period_start",
        "period_end",
        "captured_minutes",
        "captured_minutes_limit",
        "exported_rows",
        "exported_rows_limit",
    }


@ROWS.row("4.5 audit")
def check_audit(caller: Caller) -> None:
    make_webhook(caller)
    answer = caller.get("/v1/audit", Accept="application/x-ndjson")
    assert '"webhook.create"' in answer.text and answer.headers["content-type"].startswith(
        "application/x-ndjson"
    )
