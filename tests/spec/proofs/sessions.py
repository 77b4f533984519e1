"""Spec §4.1 and §4.2: sessions, their streams, and the paths of the memory graph."""

from recorder import limits
from tests.support.completed_work import (
    LONG_AGO,
    patch,
    paths_of,
    sealed_session,
    shown_graph,
    shown_paths,
    shown_recording,
    stopped_session,
    streamed_over_http,
    streamed_over_socket,
)
from tests.support.factories import Caller, assert_problem, event
from tests.support.http_graph_sessions import ask, shown_points, shown_walks
from tests.support.sealing import seal_all
from tests.support.specification_checks import Rows

ROWS = Rows()


@ROWS.row("4.1 create: Idempotency-Key")
def check_create_idempotency_key(caller: Caller) -> None:
    first, second = (caller.post("/v1/sessions", {"workflow": "checkout"}, key="k-1") for _ in range(2))
    assert (first.status_code, second.status_code, second.content) == (201, 201, first.content)
    assert len(caller.get("/v1/sessions").json()["data"]) == 1


@ROWS.row("4.1 create: idempotency_key")
def check_create_idempotency_key_2(caller: Caller) -> None:
    body = {"workflow": "checkout", "idempotency_key": "k-1"}
    assert caller.post("/v1/sessions", body).content == caller.post("/v1/sessions", body).content
    assert len(caller.get("/v1/sessions").json()["data"]) == 1


@ROWS.row("4.1 create: other body")
def check_create_other_body(caller: Caller) -> None:
    caller.post("/v1/sessions", {"workflow": "checkout"}, key="k-1")
    answer = caller.post("/v1/sessions", {"workflow": "payment"}, key="k-1")
    assert_problem(answer, 422, "idempotency_key_reused")


@ROWS.row("4.1 create: workflow")
def check_create_workflow(caller: Caller) -> None:
    assert_problem(caller.post("/v1/sessions", {}), 422, "validation_failed")
    for slug in ("a", "a" * 65, "Pay", "pay-2", "pay 2", "é2"):
        assert_problem(caller.post("/v1/sessions", {"workflow": slug}), 422, "validation_failed")


@ROWS.row("4.1 create: metadata")
def check_create_metadata(caller: Caller) -> None:
    room = limits.METADATA_BYTES - len('{"a":""}')
    for size, status in ((room, 201), (room + 1, 422)):
        body = {"workflow": "checkout", "metadata": {"a": "x" * size}}
        assert caller.post("/v1/sessions", body).status_code == status


@ROWS.row("4.1 delete: audit")
def check_delete_audit(caller: Caller) -> None:
    session_id = caller.make_session()
    caller.delete(f"/v1/sessions/{session_id}")
    entries = caller.get(f"/v1/audit?resource={session_id}").json()["data"]
    assert [(entry["action"], entry["resource"]["id"]) for entry in entries] == [
        ("session.delete", session_id)
    ]


@ROWS.row("4.1 delete: hard needs admin")
def check_delete_hard_needs_admin(caller: Caller) -> None:
    session_id = caller.make_session()
    for scope in ("read", "write"):
        weak = caller.service.make_caller(scope=scope, workspace_id=caller.key.workspace_id)
        answer = weak.request("DELETE", f"/v1/sessions/{session_id}?hard=true")
        assert_problem(answer, 403, "insufficient_scope")
    assert caller.get(f"/v1/sessions/{session_id}").status_code == 200


@ROWS.row("4.1 stream")
def check_stream(caller: Caller) -> None:
    messages = streamed_over_http(*shown_recording(caller))
    assert [message["event"] for message in messages].count("session.event") == 3
    assert messages[-1]["event"] == "stream.end"


@ROWS.row("4.1 ws")
def check_ws(caller: Caller) -> None:
    messages = streamed_over_socket(*shown_recording(caller))
    assert [message["event"] for message in messages].count("session.event") == 3
    assert messages[-1]["event"] == "stream.end"


@ROWS.row("4.1 resume")
def check_resume(caller: Caller) -> None:
    caller, session_id = shown_recording(caller)
    whole = streamed_over_http(caller, session_id)
    for cut in (0, len(whole) // 2):
        position = str(whole[cut]["id"])
        rest = streamed_over_http(caller, session_id, **{"Last-Event-ID": position})
        assert [item["id"] for item in rest] == [item["id"] for item in whole[cut + 1 :]]
        assert streamed_over_socket(caller, session_id, f"last_event_id={position}") == rest
    address, end = f"/v1/sessions/{session_id}/events/stream", str(whole[-1]["id"])
    assert caller.get(address, **{"Last-Event-ID": end}).status_code == 204


@ROWS.row("4.2 paths: workflow")
def check_paths_workflow(caller: Caller) -> None:
    assert len(shown_paths(caller)) == 2
    assert_problem(caller.get("/v1/memory/paths"), 422, "validation_failed")


@ROWS.row("4.2 paths: since")
def check_paths_since(caller: Caller) -> None:
    assert len(shown_paths(caller, f"&since={LONG_AGO}")) == 2
    assert shown_paths(caller, "&since=30d") == []


@ROWS.row("4.2 paths: until")
def check_paths_until(caller: Caller) -> None:
    assert shown_paths(caller, f"&until={LONG_AGO}") == []
    assert len(shown_paths(caller, "&until=30d")) == 2


@ROWS.row("4.2 paths: outcome")
def check_paths_outcome(caller: Caller) -> None:
    for outcome, count in (("error", 1), ("abandoned", 3)):
        assert [path["session_count"] for path in shown_paths(caller, f"&outcome={outcome}")] == [count]


@ROWS.row("4.2 paths: min_frequency")
def check_paths_min_frequency(caller: Caller) -> None:
    assert [path["frequency"] for path in shown_paths(caller, "&min_frequency=0.5")] == [0.75]


@ROWS.row("4.2 paths: limit")
def check_paths_limit(caller: Caller) -> None:
    assert len(shown_paths(caller, "&limit=1")) == 1
    for limit in (0, 501):
        answer = caller.get(f"/v1/memory/paths?workflow=checkout&limit={limit}")
        assert_problem(answer, 422, "validation_failed")


@ROWS.row("4.2 paths: answer")
def check_paths_answer(caller: Caller) -> None:
    assert set(shown_graph(caller).get("/v1/memory/paths?workflow=checkout").json()) == {"data"}


@ROWS.row("4.2 outliers")
def check_outliers(caller: Caller) -> None:
    owner = shown_walks(caller)
    assert ask(owner, "outliers") == {"data": [], "next_cursor": None, "has_more": False}
    items = ask(owner, "outliers", "&threshold=0.2")["data"]
    assert [item["path_frequency"] < 0.2 for item in items] == [True] * len(items)
    session = owner.get(f"/v1/sessions/{items[0]['id']}").json()
    assert items[0].items() >= session.items()
    answer = owner.get("/v1/memory/outliers?workflow=checkout&threshold=1.5")
    assert_problem(answer, 422, "validation_failed")


@ROWS.row("4.2 similar")
def check_similar(caller: Caller) -> None:
    owner = shown_walks(caller)
    session_id = owner.get("/v1/sessions?limit=500").json()["data"][-1]["id"]
    answer = owner.post("/v1/memory/similar", {"session_id": session_id, "limit": 6}).json()
    similarities = [item["similarity"] for item in answer["data"]]
    assert set(answer) == {"data", "next_cursor", "has_more"} and len(similarities) == 6
    assert similarities[:4] == [1, 1, 1, 1] and similarities == sorted(similarities, reverse=True)
    assert session_id not in {item["id"] for item in answer["data"]}


@ROWS.row("4.2 recovery_points")
def check_recovery_points(caller: Caller) -> None:
    assert len(shown_points(caller)) == 2
    assert shown_points(caller, "&failure_tag=error") == shown_points(caller)
    assert shown_points(caller, "&failure_tag=never_set") == []
    assert set(ask(shown_walks(caller), "recovery_points")) == {"data"}


@ROWS.row("4.2 PATCH workflow")
def check_patch_workflow(caller: Caller) -> None:
    for value in (False, True):
        assert patch(caller, "/v1/workflows/checkout", {"memory_graph": value})["memory_graph"] is value
    answer = caller.request("PATCH", "/v1/workflows/checkout", json={"memory_graph": "no"})
    assert_problem(answer, 422, "validation_failed")


def counted(caller: Caller) -> int:
    """Return the number of sessions in the graph of a workflow."""
    return sum(path["session_count"] for path in paths_of(caller))


@ROWS.row("4.2 memory_graph false")
def check_memory_graph_false(caller: Caller) -> None:
    sealed_session(caller)
    before = counted(caller)
    patch(caller, "/v1/workflows/checkout", {"memory_graph": False})
    session_id = stopped_session(caller, event(1, url="https://shop.example/never-seen"))
    seal_all(caller.service.runtime)
    assert counted(caller) == before
    assert caller.get(f"/v1/sessions/{session_id}").json()["status"] == "sealed"
    assert len(caller.get(f"/v1/sessions/{session_id}/events").json()["data"]) == 1


@ROWS.row("4.2 memory_graph true again")
def check_memory_graph_true_again(caller: Caller) -> None:
    for value in (False, True):
        patch(caller, "/v1/workflows/checkout", {"memory_graph": value})
        stopped_session(caller)
        seal_all(caller.service.runtime)
    assert counted(caller) == 1
