"""Spec §9: the prefix, the line of versions, and what each release brought."""

import re

from recorder import __version__
from tests.support.completed_work import patch, shown_paths, shown_recording, streamed_over_http
from tests.support.factories import Caller
from tests.support.http_graph_sessions import sealed_walks
from tests.support.specification_checks import Rows

ROWS = Rows()


@ROWS.row("9 prefix")
def check_prefix(caller: Caller) -> None:
    paths = caller.service.app.openapi()["paths"]
    others = {path for path in paths if not path.startswith("/v1/")}
    assert others == {"/", "/healthz", "/readyz", "/metrics"}


@ROWS.row("9 format")
def check_format(caller: Caller) -> None:
    headers = caller.get("/v1/sessions").headers["Service-Version"]
    assert headers == __version__ and re.fullmatch(r"20\d\d\.([1-9]|1[0-2])\.\d+", headers)


@ROWS.row("9 2025.12.0")
def check_0(caller: Caller) -> None:
    caller, session_id = shown_recording(caller)
    for part, count in (("events", 3), ("frames", 1)):
        assert len(caller.get(f"/v1/sessions/{session_id}/{part}").json()["data"]) == count


@ROWS.row("9 2026.1.0: memory")
def check_memory(caller: Caller) -> None:
    assert len(shown_paths(caller)) == 2


@ROWS.row("9 2026.1.0: tags")
def check_tags(caller: Caller) -> None:
    assert patch(caller, "/v1/workflows/checkout", {"tags": ["finance"]})["tags"] == ["finance"]


@ROWS.row("9 2026.1.0: masking")
def check_masking(caller: Caller) -> None:
    patterns = [{"name": "order", "pattern": "ORD-[0-9]+", "replacement": "[order]"}]
    patch(caller, "/v1/workflows/checkout", {"masking": {"builtins": [], "patterns": patterns}})
    session_id = caller.make_session()
    caller.add_events(session_id, {"t_ms": 1, "type": "click", "title": "Pay ORD-4711 now"})
    (stored,) = caller.get(f"/v1/sessions/{session_id}/events").json()["data"]
    assert "4711" not in stored["title"] and stored["title"].startswith("Pay [order]")


@ROWS.row("9 2026.3.0: streams")
def check_streams(caller: Caller) -> None:
    assert streamed_over_http(*shown_recording(caller))[-1]["event"] == "stream.end"


@ROWS.row("9 2026.3.0: Idempotency-Key")
def check_idempotency_key(caller: Caller) -> None:
    address = f"/v1/sessions/{caller.make_session()}/tags"
    first, second = (caller.post(address, {"name": "seen"}, key="t-1") for _ in range(2))
    assert (second.content, second.headers["Idempotent-Replayed"]) == (first.content, "true")


@ROWS.row("9 2026.4.0: similarity")
def check_similarity(caller: Caller) -> None:
    first, same = sealed_walks(caller, "abc", "abc")
    items = caller.post("/v1/memory/similar", {"session_id": first}).json()["data"]
    assert [(session["id"], session["similarity"]) for session in items] == [(same, 1)]


@ROWS.row("9 2026.4.0: audit")
def check_audit(caller: Caller) -> None:
    session_id = caller.make_session()
    caller.delete(f"/v1/sessions/{session_id}")
    assert session_id in caller.get("/v1/audit").text
