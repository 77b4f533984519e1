"""Spec §2: the fields of keys, webhooks, exports, paths, workflows, quotas and workspace settings."""

import hashlib
import re
from datetime import datetime
from io import BytesIO
from typing import Any

from pyarrow import parquet

from tests.support.completed_work import make_webhook, patch, shown_dataset, shown_delivery, shown_paths
from tests.support.factories import Caller
from tests.support.http_exports import keyless
from tests.support.http_graph_sessions import shown_points, shown_walks
from tests.support.specification_checks import Rows

ROWS = Rows()
ISO = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")


def is_id(value: str, prefix: str) -> bool:
    """Return whether a text is an id of this kind."""
    return re.fullmatch(f"{prefix}_[0-9a-z]{{26}}", value) is not None


def make_key(caller: Caller, **body: Any) -> dict[str, Any]:
    """Return a key made over HTTP."""
    answer = caller.post("/v1/keys", {"label": "robot", "scope": "write", **body})
    assert answer.status_code == 201, answer.text
    made: dict[str, Any] = answer.json()
    return made


@ROWS.row("2.3 id")
def check_id(caller: Caller) -> None:
    assert is_id(make_key(caller)["id"], "key")


@ROWS.row("2.3 label")
def check_label(caller: Caller) -> None:
    assert make_key(caller, label="night shift")["label"] == "night shift"


@ROWS.row("2.3 scope")
def check_scope(caller: Caller) -> None:
    assert [make_key(caller, scope=scope)["scope"] for scope in ("read", "write", "admin")] == [
        "read",
        "write",
        "admin",
    ]


@ROWS.row("2.3 expires_at")
def check_expires_at(caller: Caller) -> None:
    end = "2999-12-31T23:59:59.000Z"
    assert make_key(caller)["expires_at"] is None
    assert make_key(caller, expires_at=end)["expires_at"] == end


@ROWS.row("2.3 key")
def check_key(caller: Caller) -> None:
    made = make_key(caller)
    listed = caller.get("/v1/keys")
    assert made["key"].startswith("nsk_") and made["key"] not in listed.text
    assert made["id"] in listed.text


@ROWS.row("2.4 id")
def check_id_2(caller: Caller) -> None:
    assert is_id(make_webhook(caller)["id"], "whk")


@ROWS.row("2.4 url")
def check_url(caller: Caller) -> None:
    made = make_webhook(caller, url="http://127.0.0.1:9/hooks?a=1")
    assert made["url"] == "http://127.0.0.1:9/hooks?a=1"


@ROWS.row("2.4 events")
def check_events(caller: Caller) -> None:
    events = ["session.sealed", "export.completed"]
    assert make_webhook(caller, events=events)["events"] == events


@ROWS.row("2.4 description")
def check_description(caller: Caller) -> None:
    made = [make_webhook(caller), make_webhook(caller, description="to the lake")]
    descriptions = [caller.get(f"/v1/webhooks/{item['id']}").json()["description"] for item in made]
    assert descriptions == [None, "to the lake"]


@ROWS.row("2.4 secret")
def check_secret(caller: Caller) -> None:
    made = make_webhook(caller)
    rotated = caller.post(f"/v1/webhooks/{made['id']}/secret").json()
    secrets = [made["secret"], rotated["secret"]]
    shown = caller.get(f"/v1/webhooks/{made['id']}").text + caller.get("/v1/webhooks").text
    assert all(secret.startswith("whsec_") and secret not in shown for secret in secrets)
    assert secrets[0] != secrets[1]


@ROWS.row("2.4 delivery")
def check_delivery(caller: Caller) -> None:
    sent = shown_delivery(caller)
    assert sent.record["request"]["url"] == sent.webhook["url"]
    assert sent.record["request"]["body"].encode() == sent.request.body
    assert sent.record["response"]["status"] == 200 and sent.record["response"]["body"].startswith('"xxx')
    assert isinstance(sent.record["duration_ms"], int)


@ROWS.row("2.5 id")
def check_id_3(caller: Caller) -> None:
    assert is_id(shown_dataset(caller).export["id"], "exp")


@ROWS.row("2.5 status")
def check_status(caller: Caller) -> None:
    assert shown_dataset(caller).export["status"] == "completed"


@ROWS.row("2.5 rows")
def check_rows(caller: Caller) -> None:
    assert shown_dataset(caller).export["rows"] == 3


@ROWS.row("2.5 shards")
def check_shards(caller: Caller) -> None:
    shown = shown_dataset(caller)
    assert shown.export["shards"] == len(shown.manifest["shards"]) == 2


@ROWS.row("2.5 shard_size_bytes")
def check_shard_size_bytes(caller: Caller) -> None:
    shown = shown_dataset(caller)
    assert shown.export["shard_size_bytes"] == max(shard["size_bytes"] for shard in shown.manifest["shards"])


@ROWS.row("2.5 frames")
def check_frames(caller: Caller) -> None:
    assert shown_dataset(caller).export["frames"] == 1


@ROWS.row("2.5 actions")
def check_actions(caller: Caller) -> None:
    assert shown_dataset(caller).export["actions"] == 2


@ROWS.row("2.5 manifest_url")
def check_manifest_url(caller: Caller) -> None:
    caller.make_session()
    body = {"workflow": "checkout", "format": "parquet", "destination": {"kind": "signed_url"}}
    assert caller.post("/v1/exports", body).json()["manifest_url"] is None
    assert shown_dataset(caller).export["manifest_url"].startswith("http")


@ROWS.row("2.5 created_at")
def check_created_at(caller: Caller) -> None:
    assert ISO.fullmatch(shown_dataset(caller).export["created_at"])


@ROWS.row("2.5 manifest")
def check_manifest(caller: Caller) -> None:
    shards = shown_dataset(caller).manifest["shards"]
    assert {shard["kind"] for shard in shards} == {"events", "frames"}
    for shard in shards:
        data = keyless(caller, shard["url"]).content
        assert (shard["size_bytes"], shard["sha256"]) == (len(data), hashlib.sha256(data).hexdigest())
        assert shard["rows"] == parquet.read_table(BytesIO(data)).num_rows


@ROWS.row("2.6 path_id")
def check_path_id(caller: Caller) -> None:
    assert all(path["path_id"].startswith("pth_") for path in shown_paths(caller))


@ROWS.row("2.6 node_ids")
def check_node_ids(caller: Caller) -> None:
    nodes = [node for path in shown_paths(caller) for node in path["node_ids"]]
    assert nodes and all(node.startswith("nde_") for node in nodes)


@ROWS.row("2.6 frequency")
def check_frequency(caller: Caller) -> None:
    assert [path["frequency"] for path in shown_paths(caller)] == [0.75, 0.25]


@ROWS.row("2.6 outcomes")
def check_outcomes(caller: Caller) -> None:
    usual, rare = (path["outcomes"] for path in shown_paths(caller))
    assert usual == {"success": 0, "error": 0, "abandoned": 1}
    assert rare == {"success": 0, "error": 1, "abandoned": 0}


@ROWS.row("2.6 median_duration_ms")
def check_median_duration_ms(caller: Caller) -> None:
    assert [path["median_duration_ms"] for path in shown_paths(caller)] == [900, 900]


@ROWS.row("2.6 session_count")
def check_session_count(caller: Caller) -> None:
    assert [path["session_count"] for path in shown_paths(caller)] == [3, 1]


@ROWS.row("2.7 frame_id")
def check_frame_id(caller: Caller) -> None:
    owner = shown_walks(caller)
    for point in shown_points(caller):
        frames = owner.get(f"/v1/sessions/{point['session_id']}/frames").json()["data"]
        assert is_id(point["frame_id"], "frm") and point["frame_id"] in {frame["id"] for frame in frames}


@ROWS.row("2.7 session_id")
def check_session_id(caller: Caller) -> None:
    for point in shown_points(caller):
        session = shown_walks(caller).get(f"/v1/sessions/{point['session_id']}").json()
        assert (session["id"], session["outcome"]) == (point["session_id"], "success")


@ROWS.row("2.7 frequency")
def check_frequency_2(caller: Caller) -> None:
    assert [point["frequency"] for point in shown_points(caller)] == [0.5, 0.25]


@ROWS.row("2.7 median_recovery_ms")
def check_median_recovery_ms(caller: Caller) -> None:
    # The tag `success` is that of the end, where the last step is.
    assert [point["median_recovery_ms"] for point in shown_points(caller)] == [1_000, 2_000]


@ROWS.row("2.8 slug")
def check_slug(caller: Caller) -> None:
    caller.make_session(workflow="pay_invoice")
    assert caller.get("/v1/workflows/pay_invoice").json()["workflow"] == "pay_invoice"


@ROWS.row("2.8 memory_graph")
def check_memory_graph(caller: Caller) -> None:
    caller.make_session(workflow="pay_invoice")
    assert caller.get("/v1/workflows/pay_invoice").json()["memory_graph"] is True


def quota(caller: Caller) -> dict[str, Any]:
    """Return the quota of the caller."""
    body: dict[str, Any] = caller.get("/v1/quota").json()
    return body


def limited(caller: Caller) -> Caller:
    """Return a caller whose workspace has quotas."""
    return caller.service.make_caller(tier="trial")


@ROWS.row("2.9 period_start")
def check_period_start(caller: Caller) -> None:
    start = datetime.fromisoformat(quota(caller)["period_start"])
    assert (start.day, start.hour, start.minute) == (1, 0, 0)


@ROWS.row("2.9 period_end")
def check_period_end(caller: Caller) -> None:
    current = quota(caller)
    start, end = (datetime.fromisoformat(current[name]) for name in ("period_start", "period_end"))
    assert end.day == 1 and 28 <= (end - start).days <= 31


@ROWS.row("2.9 captured_minutes")
def check_captured_minutes(caller: Caller) -> None:
    session_id = caller.make_session(started_at="2024-01-01T00:00:00Z")
    caller.add_events(session_id, {"t_ms": 150_000, "type": "click"})
    assert quota(caller)["captured_minutes"] == 2


@ROWS.row("2.9 captured_minutes_limit")
def check_captured_minutes_limit(caller: Caller) -> None:
    assert [quota(item)["captured_minutes_limit"] for item in (caller, limited(caller))] == [None, 1_000]


@ROWS.row("2.9 exported_rows")
def check_exported_rows(caller: Caller) -> None:
    assert shown_dataset(caller).quota["exported_rows"] == 3


@ROWS.row("2.9 exported_rows_limit")
def check_exported_rows_limit(caller: Caller) -> None:
    assert [quota(item)["exported_rows_limit"] for item in (caller, limited(caller))] == [None, 1_000_000]


@ROWS.row("2.10 retention.frames_days")
def check_retention_frames_days(caller: Caller) -> None:
    changed = patch(caller, "/v1/workspaces/current", {"retention": {"frames_days": 30}})
    assert (changed["retention"]["frames_days"], changed["retention"]["events_days"]) == (30, 548)


@ROWS.row("2.10 retention.events_days")
def check_retention_events_days(caller: Caller) -> None:
    changed = patch(caller, "/v1/workspaces/current", {"retention": {"events_days": 365}})
    assert (changed["retention"]["frames_days"], changed["retention"]["events_days"]) == (90, 365)
