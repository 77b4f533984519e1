"""Spec §8: how buckets behave on the wire, quotas and their events, the constants."""

import time
from typing import Any

from recorder import limits
from tests.support.completed_work import LONG_AGO, outbox, patch, shown_dataset, shown_delivery
from tests.support.factories import Caller, assert_problem, event
from tests.support.specification_checks import Rows

ROWS = Rows()
HEADERS = ("X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset", "X-Scope")


def fresh(caller: Caller, tier: str = "default") -> Caller:
    """Return a caller whose workspace has the limits of the specification."""
    return caller.service.make_caller(tier=tier)


def answers(caller: Caller) -> list[Any]:
    """Return successes, a refusal of each kind, and an address outside the interface."""
    stranger = caller.service.client.get("/v1/sessions")
    weak = caller.service.make_caller(scope="read", workspace_id=caller.key.workspace_id)
    return [
        caller.get("/v1/sessions"),
        caller.get("/v1/sessions/ses_unknown"),
        caller.get("/v1/sessions?unknown=1"),
        caller.post_raw("/v1/sessions", b"{"),
        weak.post("/v1/sessions", {"workflow": "checkout"}),
        stranger,
        caller.service.client.get("/healthz"),
        caller.get("/v1/nowhere"),
        caller.request("PUT", "/v1/sessions"),
        caller.post_raw("/v1/sessions", b"{}", content_type="text/plain"),
        caller.post_raw("/v1/sessions", b" " * (limits.BODY_BYTES + 1)),
        caller.delete(f"/v1/sessions/{caller.make_session()}"),
        [caller.post("/v1/exports", {}) for _ in range(6)][-1],
    ]


def header_everywhere(caller: Caller, name: str) -> list[str]:
    """Return the values of a header in all these answers."""
    first_answers = answers(fresh(caller))
    statuses = [answer.status_code for answer in first_answers]
    assert statuses == [200, 404, 422, 400, 403, 401, 200, 404, 405, 415, 413, 204, 429]
    return [answer.headers[name] for answer in first_answers]


@ROWS.row("8.1 X-RateLimit-Limit")
def check_x_ratelimit_limit(caller: Caller) -> None:
    shown = header_everywhere(caller, "X-RateLimit-Limit")
    assert shown[0] == "400" and all(int(value) > 0 for value in shown)  # a bucket of twice 200


@ROWS.row("8.1 X-RateLimit-Remaining")
def check_x_ratelimit_remaining(caller: Caller) -> None:
    shown = header_everywhere(caller, "X-RateLimit-Remaining")
    assert shown[0] == "399" and all(int(value) >= 0 for value in shown)


@ROWS.row("8.1 X-RateLimit-Reset")
def check_x_ratelimit_reset(caller: Caller) -> None:
    now = time.time()
    assert all(now - 1 <= int(value) <= now + 120 for value in header_everywhere(caller, "X-RateLimit-Reset"))


@ROWS.row("8.1 X-Scope")
def check_x_scope(caller: Caller) -> None:
    shown = header_everywhere(caller, "X-Scope")
    assert (shown[0], shown[5]) == ("per_key", "per_address")
    assert set(shown) <= {"per_key", "per_workspace", "per_address", "per_webhook"}


def refused(caller: Caller) -> Any:
    """Return the first answer that a limit of five exports a minute refuses."""
    body = {"workflow": "none", "format": "parquet", "destination": {"kind": "signed_url"}}
    created = [caller.post("/v1/exports", body) for _ in range(6)]
    assert [answer.status_code for answer in created] == [404] * 5 + [429]
    return created[-1]


@ROWS.row("8.1 Retry-After")
def check_retry_after(caller: Caller) -> None:
    answer = refused(fresh(caller))
    assert_problem(answer, 429, "rate_limited")
    assert 1 <= int(answer.headers["Retry-After"]) <= 12


@ROWS.row("8.2 exported rows")
def check_exported_rows(caller: Caller) -> None:
    assert shown_dataset(caller).quota["exported_rows"] == shown_dataset(caller).export["rows"] == 3


@ROWS.row("8.2 null")
def check_null(caller: Caller) -> None:
    body = caller.get("/v1/quota").json()
    assert (body["captured_minutes_limit"], body["exported_rows_limit"]) == (None, None)


def told_quotas(caller: Caller) -> list[tuple[str, dict[str, Any]]]:
    """Return the type and data of the quota events in the outbox."""
    return [item for item in outbox(caller, caller.key.workspace_id) if item[0].startswith("quota.")]


def capture(caller: Caller, minutes: int) -> Any:
    """Record so many minutes; the answer of the batch."""
    session_id = caller.make_session(started_at=LONG_AGO)
    return caller.add_events(session_id, event(minutes * 60_000))


@ROWS.row("8.2 quota.warning")
def check_quota_warning(caller: Caller) -> None:
    trial = fresh(caller, "trial")
    capture(trial, 799)
    assert told_quotas(trial) == []
    capture(trial, 1)
    ((type, data),) = told_quotas(trial)
    assert (type, data["metric"], data["used"], data["limit"]) == (
        "quota.warning",
        "captured_minutes",
        800,
        1_000,
    )


@ROWS.row("8.2 quota.exhausted")
def check_quota_exhausted(caller: Caller) -> None:
    trial = fresh(caller, "trial")
    capture(trial, 1_000)
    assert [type for type, _ in told_quotas(trial)] == ["quota.warning", "quota.exhausted"]
    answer = trial.post("/v1/sessions", {"workflow": "checkout"})
    assert_problem(answer, 429, "quota_exceeded")
    assert "Retry-After" not in answer.headers


@ROWS.row("8.3 metadata")
def check_metadata(caller: Caller) -> None:
    body = {"workflow": "checkout", "metadata": {"a": "x" * (limits.METADATA_BYTES - len('{"a":""}'))}}
    assert caller.post("/v1/sessions", body).status_code == 201
    body["metadata"]["a"] += "x"  # type: ignore[index]
    assert_problem(caller.post("/v1/sessions", body), 422, "metadata_too_large")


@ROWS.row("8.3 frames retention")
def check_frames_retention(caller: Caller) -> None:
    retention_row(caller, "frames_days", 90)


@ROWS.row("8.3 events retention")
def check_events_retention(caller: Caller) -> None:
    retention_row(caller, "events_days", 548)


@ROWS.row("8.3 audit retention")
def check_audit_retention(caller: Caller) -> None:
    retention_row(caller, "audit_days", 548)


def retention_row(caller: Caller, name: str, default: int) -> None:
    """Check that a number of days has this default, and may be 1 to 3650."""
    path = "/v1/workspaces/current"
    assert caller.get(path).json()["retention"][name] == default
    for days in (1, 3650):
        assert patch(caller, path, {"retention": {name: days}})["retention"][name] == days
    for days in (0, 3651):
        answer = caller.request("PATCH", path, json={"retention": {name: days}})
        assert_problem(answer, 422, "validation_failed")


@ROWS.row("8.3 delivery response body")
def check_delivery_response_body(caller: Caller) -> None:
    response = shown_delivery(caller).record["response"]
    assert (len(response["body"]), response["body_truncated"]) == (4_096, True)
