"""Contract §1 (everywhere), row by row: what every answer carries, and the place that each error names."""

import json

import pytest
from starlette.testclient import TestClient

from api.gate.endpoints import ENDPOINTS
from recorder import clock
from tests.support.completed_work import completed_export
from tests.support.dom_snapshots import snapshot
from tests.support.factories import JSON, Caller, assert_problem, event, frame, multipart, picture
from tests.support.http_exports import BODY
from tests.support.specification_checks import Rows

ROWS = Rows()
HEADERS = (
    "X-Request-Id",
    "Service-Version",
    "X-RateLimit-Limit",
    "X-RateLimit-Remaining",
    "X-RateLimit-Reset",
)
ASSET = "/static-offline-docs/favicon.png"
#: Addresses that need no key, beside `/metrics` and `/readyz`.
PAGES = ("/", "/healthz", "/openapi.json", "/docs", ASSET)
NOW_AND_THEN = {"x-request-id", "x-ratelimit-remaining", "x-ratelimit-reset", "x-scope", "x-ratelimit-limit"}
HOOK = {"url": "http://127.0.0.1:9/hook", "events": ["session.sealed"]}


@pytest.mark.parametrize("name", ROWS)
def test_contract_1(caller: Caller, name: str) -> None:
    ROWS[name](caller)


def assert_complete(answer: object, status: int, code: str) -> dict[str, object]:
    """Check that an answer carries every header; return its problem."""
    problem = assert_problem(answer, status, code)
    assert all(answer.headers[name] for name in (*HEADERS, "X-Scope"))  # type: ignore[attr-defined]
    return problem


def items(answer: object, code: str = "validation_failed") -> list[tuple[str, str, str]]:
    """Return the places at which a refused request is wrong: in, pointer, code."""
    problem = assert_complete(answer, 422, code)
    return [(error["in"], error["pointer"], error["code"]) for error in problem["errors"]]  # type: ignore[attr-defined]


def values(caller: Caller) -> dict[str, str]:
    """Return the names in addresses, and their values."""
    session_id = caller.make_session()
    caller.add_events(session_id, event(1))
    frame_id = caller.add_frames(session_id, frame(1, dom=snapshot(["html"]))).json()["data"][0]["id"]
    export_id = completed_export(caller)["id"]
    webhook_id = caller.post("/v1/webhooks", HOOK).json()["id"]
    manifest = caller.get(f"/v1/exports/{export_id}/manifest").json()
    sealed = caller.get("/v1/sessions?status=sealed").json()["data"][0]["id"]
    caller.post(f"/v1/sessions/{sealed}/tags", {"name": "stuck"})
    stuck = {"session_id": sealed, "sandbox": "dry", "failure_tag": "stuck"}
    return {
        "session_id": session_id,
        "frame_id": frame_id,
        "export_id": export_id,
        "webhook_id": webhook_id,
        "delivery_id": caller.post(f"/v1/webhooks/{webhook_id}/test").json()["id"],
        "key_id": caller.key.key_id,
        "workflow": "checkout",
        "erasure_id": caller.post("/v1/privacy/erasure", {"subject": "nowhere", "scope": "all"}).json()["id"],
        "replay_id": caller.post("/v1/replays", {"session_id": sealed, "sandbox": "dry"}).json()["id"],
        "recovery_id": caller.post("/v1/recoveries", stuck).json()["id"],
        "path:path": manifest["shards"][0]["path"],
    }


def address(path: str, ids: dict[str, str]) -> str:
    """Return an address of the table with its values."""
    for name, value in ids.items():
        path = path.replace(f"{{{name}}}", value)
    queries = {
        "/v1/memory/diff": "?workflow=checkout&since=7d&against_since=14d&against_until=7d",
        f"/v1/exports/{ids['export_id']}/diff": f"?against={ids['export_id']}",
    }
    return path + queries.get(path, "?workflow=checkout" if path.startswith("/v1/memory/") else "")


@ROWS.row("a range outside is a problem, 416 range_not_satisfiable, with Content-Range")
def check_a_range_outside_is_a_problem_416_range_not_satisfiable(caller: Caller) -> None:
    session_id = caller.make_session()
    frame_id = caller.add_frames(session_id, frame(1)).json()["data"][0]["id"]
    manifest = caller.get(f"/v1/exports/{completed_export(caller)['id']}/manifest").json()
    image = f"/v1/sessions/{session_id}/frames/{frame_id}/image"
    shard = manifest["shards"][0]
    for path, size in ((image, len(picture())), (shard["url"], shard["size_bytes"])):
        answer = caller.get(path, Range="bytes=999999999-")
        assert_complete(answer, 416, "range_not_satisfiable")
        assert answer.headers["content-range"] == f"bytes */{size}"
    for sent in ("bytes=999999999-", "bytes=a-b"):  # assets of /docs are sent whole
        asset = caller.get(ASSET, Range=sent)
        assert (asset.status_code, asset.headers["content-type"]) == (200, "image/png")


@ROWS.row("404 of unknown paths, 405, 415 and 406 carry every header")
def check_of_unknown_paths_405_415_and_406_carry_every_header(caller: Caller) -> None:
    assert_complete(caller.get("/v1/nothing"), 404, "not_found")
    assert_complete(caller.get("/nothing"), 404, "not_found")
    assert_complete(caller.request("PUT", "/v1/sessions"), 405, "method_not_allowed")
    assert_complete(
        caller.post_raw("/v1/sessions", b"{}", content_type="text/plain"), 415, "unsupported_media_type"
    )
    session_id = caller.make_session()
    wrong = caller.get(f"/v1/sessions/{session_id}/events", Accept="image/png")
    assert_complete(wrong, 406, "not_acceptable")


@ROWS.row("HEAD works wherever GET does, with the same headers and no body")
def check_head_works_wherever_get_does_with_the_same_headers_and(caller: Caller) -> None:
    sent = values(caller)
    tried = 0
    for endpoint in ENDPOINTS:
        if endpoint.method != "GET" or endpoint.path.endswith("/ws") or endpoint.is_stream:
            continue
        path = address(endpoint.path, sent)
        get, head = caller.get(path), caller.request("HEAD", path)
        assert (head.status_code, head.content) == (get.status_code, b"") and get.status_code == 200, path
        shown, expected = ({**answer.headers} for answer in (head, get))
        assert shown.keys() == expected.keys(), path
        if path != "/v1/limits" and "manifest" not in path:
            assert all(shown[name] == expected[name] for name in shown.keys() - NOW_AND_THEN), path
        tried += 1
    assert tried >= 28
    # `/metrics` is read from loopback alone.
    local = TestClient(caller.service.app, client=("127.0.0.1", 50_000))
    for path in (*PAGES, "/metrics", "/readyz"):
        get, head = local.get(path), local.head(path)
        assert (get.status_code, head.status_code, head.content) == (200, 200, b""), path
        assert get.content and head.headers.keys() == get.headers.keys(), path


@ROWS.row("HEAD of a stream shows its head and ends; of a whole-session read too")
def check_head_of_a_stream_shows_its_head_and_ends_of_a_whole(caller: Caller) -> None:
    session_id = caller.make_session()
    caller.add_events(session_id, event(1))
    stream = caller.request("HEAD", f"/v1/sessions/{session_id}/events/stream?from=start")
    assert stream.status_code == 200 and stream.headers["content-type"].startswith("text/event-stream")
    for accept in ("application/x-ndjson", "application/vnd.apache.arrow.stream"):
        whole = caller.request("HEAD", f"/v1/sessions/{session_id}/events", headers={"Accept": accept})
        assert (whole.status_code, whole.headers["content-type"], whole.content) == (200, accept, b"")
    # Neither a slot nor the read is held afterwards.
    for _ in range(60):
        assert caller.request("HEAD", f"/v1/sessions/{session_id}/events/stream").status_code == 200


@ROWS.row("HEAD of a signed address needs no key; an altered one is 403, a bad range 416")
def check_head_of_a_signed_address_needs_no_key_an_altered_one(caller: Caller) -> None:
    url = completed_export(caller)["manifest_url"]
    client = caller.service.client
    shard = client.get(url).json()["shards"][0]["url"]
    for signed in (url, shard):
        assert (client.head(signed).status_code, client.head(signed).content) == (200, b"")
        assert client.head(signed[:-1] + ("0" if signed[-1] != "0" else "1")).status_code == 403
    assert client.head(shard).headers["content-length"] == client.get(shard).headers["content-length"]
    assert client.head(shard, headers={"Range": "bytes=0-9"}).headers["content-length"] == "10"
    assert client.head(shard, headers={"Range": "bytes=999999999-"}).status_code == 416


@ROWS.row("Allow on 405 lists exactly the methods that work")
def check_allow_on_405_lists_exactly_the_methods_that_work(caller: Caller) -> None:
    sent = values(caller)
    for path in sorted({endpoint.path for endpoint in ENDPOINTS if not endpoint.path.endswith("/ws")}):
        there = {endpoint.method for endpoint in ENDPOINTS if endpoint.path == path}
        expected = sorted(there | ({"HEAD"} if "GET" in there else set()))
        for method in {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"} - set(expected):
            answer = caller.request(method, address(path, sent))
            assert (answer.status_code, answer.headers.get("allow")) == (405, ", ".join(expected)), (
                method,
                path,
            )
    for path in (*PAGES, "/metrics", "/readyz"):
        for method in ("POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"):
            answer = caller.request(method, path)
            assert_complete(answer, 405, "method_not_allowed")
            assert answer.headers["allow"] == "GET, HEAD", (method, path)


@ROWS.row("an unknown query parameter is named, with the names that are allowed")
def check_an_unknown_query_parameter_is_named_with_the_names(caller: Caller) -> None:
    answer = caller.get("/v1/sessions?limit=5&colour=red&a%2Fb=1")
    assert items(answer) == [("query", "colour", "unknown_parameter"), ("query", "a/b", "unknown_parameter")]
    message = answer.json()["errors"][0]["message"]
    assert (
        all(name in message for name in ("actor.kind", "cursor", "limit", "workflow"))
        and "red" not in answer.text
    )
    assert items(caller.get("/v1/quota?x=1")) == [("query", "x", "unknown_parameter")]
    long = caller.get(f"/v1/sessions?{'x' * 5_000}=1")
    assert items(long)[0][1] == "x" * 100 + "…"


@ROWS.row("a wrong value of a parameter that repeats is named by the parameter")
def check_a_wrong_value_of_a_parameter_that_repeats_is_named_by(caller: Caller) -> None:
    sessions = caller.get("/v1/sessions?workflow=checkout&workflow=A")
    assert items(sessions) == [("query", "workflow", "invalid_value")]
    events = caller.get(f"/v1/sessions/{caller.make_session()}/events?type=click&type=A")
    assert items(events) == [("query", "type", "invalid_value")]


@ROWS.row("a WebSocket's address without a handshake is 400 invalid_request, and says what it is")
def check_a_websocket_s_address_without_a_handshake_is_400(caller: Caller) -> None:
    path = f"/v1/sessions/{caller.make_session()}/events/ws"
    for answer in (caller.get(path), caller.post(path)):
        assert_complete(answer, 400, "invalid_request")
        assert "WebSocket" in answer.json()["detail"]


@ROWS.row("an unknown member is named by its whole path, with the names that are allowed")
def check_an_unknown_member_is_named_by_its_whole_path_with_the(caller: Caller) -> None:
    session_id = caller.make_session()
    session = caller.post(
        "/v1/sessions", {"workflow": "checkout", "actor": {"id": "a", "kind": "human", "x/y": 1}}
    )
    assert items(session) == [("body", "/actor/x~1y", "unknown_field")]
    assert session.json()["errors"][0]["message"].endswith("Allowed here: id, kind.")
    events = caller.add_events(session_id, event(1), event(2, target={"role": "a", "colour": 1}))
    assert items(events) == [("body", "/events/1/target/colour", "unknown_field")]
    assert "Allowed here: attrs, frame_path, name," in events.json()["errors"][0]["message"]
    top = caller.post(f"/v1/sessions/{session_id}/events", {"events": [event(1)], "extra": 1})
    assert items(top) == [("body", "/extra", "unknown_field")]
    frames = caller.add_frames(session_id, frame(1), frame(2, colour=1))
    assert items(frames) == [("body", "/frames/1/colour", "unknown_field")]
    assert items(caller.post(f"/v1/sessions/{session_id}/frames", {"frames": [frame(1)], "x": 1})) == [
        ("body", "/x", "unknown_field")
    ]
    export = caller.post(
        "/v1/exports", BODY | {"destination": {"kind": "signed_url", "bucket": "b"}, "filter": {"x": 1}}
    )
    assert set(items(export)) == {
        ("body", "/destination/bucket", "unknown_field"),
        ("body", "/filter/x", "unknown_field"),
    }
    errors = {error["pointer"]: error["message"] for error in export.json()["errors"]}
    assert errors["/destination/bucket"].endswith("Allowed here: expires_in, kind.")
    assert "actor.kind" in errors["/filter/x"]
    pattern = {"masking": {"patterns": [{"name": "a", "pattern": "b", "why": 1}]}}
    workflow = caller.request("PATCH", "/v1/workflows/checkout", json=pattern)
    assert items(workflow) == [("body", "/masking/patterns/0/why", "unknown_field")]


@ROWS.row("an unknown member's name that looks like an error of ours is still that name")
def check_an_unknown_member_s_name_that_looks_like_an_error_of(caller: Caller) -> None:
    session_id = caller.make_session()
    name = "a` - at `$.events[0].type`"
    answer = caller.add_events(session_id, event(1, **{name: 1}))
    assert items(answer) == [("body", f"/events/0/{name}", "unknown_field")]


@ROWS.row("a value of an object is named by its key")
def check_a_value_of_an_object_is_named_by_its_key(caller: Caller) -> None:
    session_id = caller.make_session()
    answer = caller.add_events(session_id, event(1, target={"attrs": {"good": "x", "b/d": 1}}))
    assert items(answer) == [("body", "/events/0/target/attrs/b~1d", "invalid_value")]


@ROWS.row("a bad time is invalid_time, in queries and bodies")
def check_a_bad_time_is_invalid_time_in_queries_and_bodies(caller: Caller) -> None:
    caller.make_session()
    for path in ("/v1/sessions", "/v1/audit", "/v1/memory/paths?workflow=checkout"):
        for name in ("since", "until"):
            for bad in ("yesterday", "2024-02-30T00:00:00Z", "2024-02-28", "5x", ""):
                sign = "&" if "?" in path else "?"
                problems = items(caller.get(f"{path}{sign}{name}={bad}"), "invalid_time")
                assert problems == [("query", name, "invalid_time")]
    for bad in ("yesterday", "2024-02-30T00:00:00Z", "30d", 5, True, [], {}):
        session = caller.post("/v1/sessions", {"workflow": "checkout", "start": True, "started_at": bad})
        assert items(session, "invalid_time") == [("body", "/started_at", "invalid_time")], bad
        key = caller.post("/v1/keys", {"label": "a", "scope": "read", "expires_at": bad})
        assert items(key, "invalid_time") == [("body", "/expires_at", "invalid_time")], bad
    for bad in ("yesterday", "2024-02-30T00:00:00Z", 5, True, [], {}):
        for name in ("since", "until"):
            export = caller.post("/v1/exports", BODY | {"filter": {name: bad}})
            assert items(export, "invalid_time") == [("body", f"/filter/{name}", "invalid_time")], bad


@ROWS.row("multipart parts that no frame names are refused by name")
def check_multipart_parts_that_no_frame_names_are_refused_by(caller: Caller) -> None:
    session_id = caller.make_session()
    path = f"/v1/sessions/{session_id}/frames"
    item = {"t_ms": 1, "content_type": "image/png", "part": "a"}
    extra = caller.request("POST", path, files=multipart([item], a=picture(), b=picture(1)))
    assert items(extra) == [("body", "/b", "unknown_field")]
    named = caller.request(
        "POST", path, files=[*multipart([item], a=picture()).items(), ("note", (None, b"x"))]
    )
    assert items(named) == [("body", "/note", "unknown_field")]
    assert caller.get(path).json()["data"] == []
    assert caller.request("POST", path, files=multipart([item], a=picture())).status_code == 202


@ROWS.row("a charset other than UTF-8 is 415; UTF-8 by either name is taken")
def check_a_charset_other_than_utf_8_is_415_utf_8_by_either_name(caller: Caller) -> None:
    session_id = caller.make_session()
    bodies = {
        "/v1/sessions": {"workflow": "checkout"},
        f"/v1/sessions/{session_id}/events": {"events": [event(1)]},
        f"/v1/sessions/{session_id}/frames": {"frames": [frame(1)]},
    }
    for path, body in bodies.items():
        text = json.dumps(body).encode()
        twice = ("utf-8; charset=latin-1", "utf-8; Charset=utf-8", "utf-8; charset*=utf-8''x", "x; charset*1")
        for charset in ("latin-1", "utf-16", '"ISO-8859-1"', "us-ascii", "x", *twice):
            answer = caller.post_raw(path, text, content_type=f"{JSON}; charset={charset}")
            assert_complete(answer, 415, "unsupported_media_type")
        for charset in ("utf-8", "UTF-8", '"utf8"'):
            assert caller.post_raw(path, text, content_type=f"{JSON}; charset={charset}").is_success
    files = multipart([{"t_ms": 1, "content_type": "image/png", "part": "a"}], a=picture())
    request = caller.service.client.build_request("POST", "/", files=files)
    kind = request.headers["content-type"]
    path = f"/v1/sessions/{session_id}/frames"
    assert_complete(
        caller.post_raw(path, request.read(), content_type=f"{kind}; charset=latin-1"),
        415,
        "unsupported_media_type",
    )
    assert caller.post_raw(path, request.read(), content_type=f"{kind}; charset=utf-8").status_code == 202
    for charset, status in (("latin-1", 415), ("utf-8", 202)):
        name, text, media_type = files["frames"]
        part = {**files, "frames": (name, text, f"{media_type}; charset={charset}")}
        assert caller.request("POST", path, files=part).status_code == status


@ROWS.row("a second Content-Type and a compressed transfer are 415, wherever a body is sent")
def check_a_second_content_type_and_a_compressed_transfer_are_415(caller: Caller) -> None:
    session_id = caller.make_session()
    client, key = caller.service.client, ("Authorization", f"Bearer {caller.key.key}")

    def check(path: str, body: bytes, *headers: tuple[str, str]) -> str:
        answer = client.post(path, content=body, headers=[key, *headers])
        return str(assert_complete(answer, 415, "unsupported_media_type")["detail"])

    for path, body in (
        ("/v1/sessions", b'{"workflow": "checkout"}'),
        (f"/v1/sessions/{session_id}/events", json.dumps({"events": [event(1)]}).encode()),
        (f"/v1/sessions/{session_id}/frames", json.dumps({"frames": [frame(1)]}).encode()),
        (f"/v1/sessions/{session_id}/stop", b""),
    ):
        for first, second in ((JSON, JSON), (JSON, "text/plain"), ("text/plain", JSON)):
            detail = check(path, body, ("Content-Type", first), ("Content-Type", second))
            assert detail == "Send one Content-Type header."
        typed = ("Content-Type", JSON)
        for coding in ("gzip, chunked", "identity, chunked"):
            assert "without compression" in check(path, body, typed, ("Transfer-Encoding", coding))
        codings = (("Content-Encoding", "identity"), ("Content-Encoding", "gzip"))
        assert "without compression" in check(path, body, typed, *codings)
    assert caller.get(f"/v1/sessions/{session_id}").json()["event_count"] == 0


@ROWS.row("broken percent-encoding is refused: in a query by the parameter, in a path 404")
def check_broken_percent_encoding_is_refused_in_a_query_by_the(caller: Caller) -> None:
    for query, pointer in (
        ("workflow=%zz", "workflow"),
        ("workflow=%f", "workflow"),
        ("workflow=%ff", "workflow"),
        ("tag=%c3%28", "tag"),
        ("%zz=1", ""),
        ("caf%C3%A9=%", "café"),
    ):
        answer = caller.get(f"/v1/sessions?{query}")
        assert items(answer) == [("query", pointer, "invalid_encoding")], query
    session_id = caller.make_session()
    for escape in ("%zz", "%f", "%", "%ff", "%c3%28"):
        for path in (
            f"/v1/workflows/{escape}",
            f"/v1/sessions/{session_id}{escape}",
            f"/v1/{escape}",
            f"/{escape}",
        ):
            assert_complete(caller.get(path), 404, "not_found")
        assert_complete(
            caller.post(f"/v1/sessions/{escape}/events", {"events": [event(1)]}), 404, "not_found"
        )
    assert caller.get("/v1/%73essions").status_code == 200
    hot = caller.post(f"/v1/sessions/{session_id}/events?a=%zz", {"events": [event(1)]})
    assert items(hot) == [("query", "a", "invalid_encoding")]
    assert caller.get("/v1/sessions?tag=caf%C3%A9").status_code == 200


@ROWS.row("X-RateLimit-Limit is the size of the bucket, Reset the second in which it is full again")
def check_x_ratelimit_limit_is_the_size_of_the_bucket_reset_the(caller: Caller) -> None:
    answer = caller.get("/v1/quota")
    rates = {
        (rate_limit["method"], rate_limit["path"]): rate_limit
        for rate_limit in caller.get("/v1/limits").json()["rate_limits"]
    }
    per_scope = {
        address["path"]: row
        for row in rates.values()
        for address in row.get("addresses", [{"path": row["path"]}])
    }
    bucket = per_scope["/v1/quota"][answer.headers["x-scope"]]
    assert int(answer.headers["x-ratelimit-limit"]) == bucket["burst"]
    now = clock.unix_seconds()
    assert now - 2 <= int(answer.headers["x-ratelimit-reset"]) <= now + bucket["burst"]
