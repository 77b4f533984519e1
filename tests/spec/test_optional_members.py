"""Contract §1, row by row: null for an optional member means absent, in the body of every request."""

from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from tests.support.completed_work import patch, sealed_session
from tests.support.factories import (
    Caller,
    assert_problem,
    event,
    frame,
    multipart,
    picture,
    running_app,
)
from tests.support.http_exports import BODY
from tests.support.object_stores import ENVIRONMENT, running_store
from tests.support.replay_requests import get_replay, post_recovery, post_replay
from tests.support.specification_checks import Rows
from tests.support.two_click_sessions import replay_all, sealed_run

ROWS = Rows()
HOOK = {"url": "http://127.0.0.1:9/hook", "events": ["session.sealed"]}
#: Optional members of a replay's or recovery's policy.
POLICY = (
    *("on_divergence", "heal", "thresholds", "min_support", "speed", "step_timeout_ms", "max_ms"),
    *(
        "repeat_consequential",
        "base_url_map",
        "allow_hosts",
        "allow_methods",
        "storage_state_ref",
        "viewport",
    ),
)


@pytest.mark.parametrize("name", ROWS)
def test_optional_members(caller: Caller, name: str) -> None:
    ROWS[name](caller)


def pointers(answer: Any) -> list[tuple[str, str]]:
    """Return the places at which a refused body is wrong, and the codes."""
    problem = assert_problem(answer, 422, "validation_failed")
    return [(error["pointer"], error["code"]) for error in problem["errors"]]


def nulls(*names: str) -> dict[str, Any]:
    """Return these members, each of them null."""
    return dict.fromkeys(names)


@ROWS.row("null for an optional member means absent, in every body")
def check_null_for_an_optional_member_means_absent_in_every_body(caller: Caller) -> None:
    nothing = {"metadata": None, "actor": None, "start": None, "started_at": None, "idempotency_key": None}
    session = caller.post("/v1/sessions", {"workflow": "checkout", **nothing})
    assert (
        session.status_code == 201
        and session.json()["metadata"] == {}
        and session.json()["status"] == "created"
    )
    session_id = caller.make_session()
    path = f"/v1/sessions/{session_id}"
    names = ("id", "target", "input", "url", "title", "app", "signals", "frame_id", "parent_id", "state_key")
    event_nulls = dict.fromkeys((*names, "trace", "data"))
    stored = caller.add_events(
        session_id, event(1, **event_nulls), event(2, input={"masked": None, "value": None})
    )
    assert stored.status_code == 202 and stored.json()["first_id"] < stored.json()["last_id"]
    names = ("id", "width", "height", "keyframe", "part", "dom", "url", "active_rect", "masked_rects")
    assert caller.add_frames(session_id, frame(1, **dict.fromkeys(names))).status_code == 202
    part = {"t_ms": 2, "content_type": "image/png", "part": "a", "data": None, "id": None}
    assert caller.request("POST", f"{path}/frames", files=multipart([part], a=picture())).status_code == 202
    tag = {"name": "seen", "data": None, "t_ms": None, "event_id": None, "frame_id": None}
    assert caller.post(f"{path}/tags", tag).status_code == 201
    key = caller.post("/v1/keys", {"label": "a", "scope": "read", "expires_at": None, "mode": None})
    assert key.status_code == 201
    webhook = caller.post("/v1/webhooks", HOOK | {"description": None})
    assert webhook.status_code == 201
    unchanged = {"url": None, "events": None, "description": None}
    assert caller.request("PATCH", f"/v1/webhooks/{webhook.json()['id']}", json=unchanged).status_code == 200
    before = caller.get("/v1/workflows/checkout").json()
    nulls = {"memory_graph": None, "tags": None, "masking": None, "outcome_rules": None}
    after = caller.request("PATCH", "/v1/workflows/checkout", json=nulls)
    assert after.status_code == 200 and after.json() == before | {"updated_at": after.json()["updated_at"]}
    before = caller.get("/v1/workspaces/current").json()
    days = {"frames_days": None, "events_days": None, "audit_days": None}
    sent = {"retention": days, "masking": {"builtins": None, "patterns": None}, "live_replay": None}
    after = caller.request("PATCH", "/v1/workspaces/current", json=sent)
    assert (after.status_code, after.json()) == (200, before)
    names = ("outcome", "since", "until", "actor.kind", "min_duration_ms", "max_duration_ms", "tag", "path")
    filters = dict.fromkeys((*names, "exclude_session_ids", "min_replayability"))
    sampling = {"mode": None, "interval_ms": None, "keep_action_frames": None}
    split = {"by": None, "validation": None, "test": None}
    destination = {"kind": "signed_url", "expires_in": None}
    request = BODY | {
        "filter": filters,
        "frame_sampling": sampling,
        "split": split,
        "destination": destination,
    }
    assert caller.post("/v1/exports", request | {"tag": None}).status_code == 202
    assert (
        caller.post("/v1/exports", BODY | dict.fromkeys(("filter", "frame_sampling", "split"))).status_code
        == 202
    )
    similar = caller.post("/v1/memory/similar", {"session_id": session_id, "limit": None})
    assert_problem(similar, 409, "session_not_sealed")


@ROWS.row("null for an optional member of a replay, its places, its policy and a decision means absent")
def check_null_for_an_optional_member_of_a_replay_and_a_decision(caller: Caller) -> None:
    session_id = sealed_run(caller)
    names = ("mode", "anchor", "until", "against", "inputs", "policy")
    plain, sent = post_replay(caller, session_id), post_replay(caller, session_id, **nulls(*names))
    assert {name: sent[name] for name in names if name in sent} == {
        name: plain[name] for name in names if name in plain
    }
    anchor = {"tag": "ready", **nulls("frame_id", "event_id", "auto")}
    last = caller.get(f"/v1/sessions/{session_id}/events").json()["data"][-1]["id"]
    until = {"event_id": last, **nulls("tag", "frame_id")}
    against = {"session_id": session_id, **nulls("path_id", "graph")}
    sent = post_replay(
        caller,
        session_id,
        mode="partial",
        anchor=anchor,
        until=until,
        against=against,
        policy=nulls(*POLICY),
    )
    assert (sent["anchor"], sent["against"]) == ({"tag": "ready"}, {"session_id": session_id})
    assert sent["policy"] == plain["policy"]
    inner = {"thresholds": nulls("ok", "diverged"), "viewport": None}
    assert post_replay(caller, session_id, policy=inner)["policy"] == plain["policy"]
    guided = post_replay(caller, session_id, mode="guided")
    replay_all(caller)
    step = get_replay(caller, guided["id"])["awaiting"]["step"]
    path = f"/v1/replays/{guided['id']}/decision"
    assert caller.post(path, {"step": step, "action": "act", "selector": None}).status_code == 200
    without = caller.post(path, {"step": step, "action": None})
    assert [pointer for pointer, _ in pointers(without)] == ["/action"]


@ROWS.row("null for an optional member of a recovery and its recovery point means absent")
def check_null_for_an_optional_member_of_a_recovery_means_absent(caller: Caller) -> None:
    session_id = sealed_session(caller, tag="error")
    frame_id = caller.get(f"/v1/sessions/{session_id}/frames").json()["data"][0]["id"]
    names = ("failure_tag", "recovery_point", "inputs", "policy")
    plain, sent = post_recovery(caller, session_id), post_recovery(caller, session_id, **nulls(*names))
    assert {**sent, **nulls("id", "created_at")} == {**plain, **nulls("id", "created_at")}
    point = {"session_id": session_id, "frame_id": frame_id, "event_id": None}
    sent = post_recovery(caller, session_id, recovery_point=point, policy=nulls(*POLICY))
    assert sent["status"] == "started"


@ROWS.row("null for an optional member of a masking pattern or an outcome rule means absent")
def check_null_for_an_optional_member_of_a_masking_pattern_means(caller: Caller) -> None:
    caller.make_session()
    pattern = {"name": "order", "pattern": "order-[0-9]{6}", "replacement": None}
    rules = {"error_tags": ["stuck"], **nulls("success_tags", "error_events", "success_events")}
    for path in ("/v1/workspaces/current", "/v1/workflows/checkout"):
        before = caller.get(path).json()["masking"]
        shown = patch(caller, path, {"masking": {"builtins": None, "patterns": [pattern]}})["masking"]
        assert shown == before | {"patterns": [pattern | {"replacement": ""}]}
        again = patch(caller, path, {"masking": {"builtins": ["email"], "patterns": None}})["masking"]
        assert again == shown | {"builtins": ["email"]}
    before = caller.get("/v1/workflows/checkout").json()["outcome_rules"]
    shown = patch(caller, "/v1/workflows/checkout", {"outcome_rules": rules})["outcome_rules"]
    assert shown == before | {"error_tags": ["stuck"]}
    hosts = patch(caller, "/v1/workspaces/current", {"live_replay": {"allow_hosts": ["shop.example"]}})
    kept = patch(caller, "/v1/workspaces/current", {"live_replay": {"allow_hosts": None}})
    assert kept["live_replay"] == hosts["live_replay"] == {"allow_hosts": ["shop.example"]}


@ROWS.row("null for an optional member of a destination means absent, of every kind")
def check_null_for_an_optional_member_of_a_destination_means(caller: Caller) -> None:
    optional = {
        "s3": ("prefix", "region", "role_arn"),
        "gcs": ("prefix", "service_account"),
        "azure_blob": ("prefix",),
    }
    sealed_session(caller)
    signed = {"kind": "signed_url", "expires_in": None}
    assert caller.post("/v1/exports", BODY | {"destination": signed}).status_code == 202
    settings = caller.service.runtime.settings
    with ExitStack() as stack:
        variables = stack.enter_context(pytest.MonkeyPatch.context())
        for name, value in ENVIRONMENT.items():
            variables.setenv(name, value)
        stores = {kind: stack.enter_context(running_store(kind)) for kind in optional}
        chosen = {store.setting: store.url for store in stores.values()}
        listed = tuple(store.listed for store in stores.values())
        folder = Path(stack.enter_context(TemporaryDirectory()))
        (folder / "secret").write_bytes(settings.secret)
        service = stack.enter_context(
            running_app(folder, settings.database_url, export_buckets=listed, **chosen)
        )
        for kind, names in optional.items():
            sent = stores[kind].destination("") | nulls(*names)
            made = Caller(service, caller.key).post("/v1/exports", BODY | {"destination": sent})
            assert made.status_code == 202, (kind, made.text)


@ROWS.row("null for a required member, and under an unknown name, is refused")
def check_null_for_a_required_member_and_under_an_unknown_name(caller: Caller) -> None:
    assert [pointer for pointer, _ in pointers(caller.post("/v1/sessions", {"workflow": None}))] == [
        "/workflow"
    ]
    unknown = caller.post("/v1/sessions", {"workflow": "checkout", "x": None})
    assert pointers(unknown) == [("/x", "unknown_field")]
    actor = caller.post("/v1/sessions", {"workflow": "checkout", "actor": {"id": "a", "kind": None}})
    assert [pointer for pointer, _ in pointers(actor)] == ["/actor/kind"]
