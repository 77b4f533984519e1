"""Spec §2.1 and §2.2, row by row: the fields of a session and of a tag."""

import re
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.factories import Caller, event, frame

ISO = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")
ACTOR = {"id": "ada", "kind": "human"}

#: §2.1: what a field is on creation, and after a run with two events, a frame and a stop.
FIELDS: dict[str, tuple[Callable[[Any], bool], Callable[[Any], bool]]] = {
    "id": (
        lambda value: re.fullmatch("ses_[0-9a-z]{26}", value) is not None,
        lambda value: re.fullmatch("ses_[0-9a-z]{26}", value) is not None,
    ),
    "workflow": (lambda value: value == "pay_2", lambda value: value == "pay_2"),
    "status": (lambda value: value == "created", lambda value: value == "stopped"),
    "metadata": (lambda value: value == {"n": [1, "é"]}, lambda value: value == {"n": [1, "é"]}),
    "actor": (lambda value: value == ACTOR, lambda value: value == ACTOR),
    "started_at": (lambda value: value is None, lambda value: ISO.fullmatch(value) is not None),
    "stopped_at": (lambda value: value is None, lambda value: ISO.fullmatch(value) is not None),
    "duration_ms": (lambda value: value == 0, lambda value: isinstance(value, int) and value >= 0),
    "frame_count": (lambda value: value == 0, lambda value: value == 1),
    "event_count": (lambda value: value == 0, lambda value: value == 2),
    "created_at": (
        lambda value: ISO.fullmatch(value) is not None,
        lambda value: ISO.fullmatch(value) is not None,
    ),
    "outcome (derived)": (lambda value: value is None, lambda value: value == "success"),
    "path_id (added)": (lambda value: value is None, lambda value: value is None),
    "seal_error (added)": (lambda value: value is None, lambda value: value is None),
    "replayability (added)": (lambda value: value is None, lambda value: value is None),
}


@pytest.fixture(scope="module")
def seen(service: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the session object on creation and after the run."""
    caller: Caller = service.make_caller()
    body = {"workflow": "pay_2", "metadata": {"n": [1, "é"]}, "actor": ACTOR}
    created = caller.post("/v1/sessions", body).json()
    address = f"/v1/sessions/{created['id']}"
    caller.post(f"{address}/start")
    caller.add_events(created["id"], event(1), event(2, "success"))
    caller.add_frames(created["id"], frame(1))
    caller.post(f"{address}/stop")
    return created, caller.get(address).json()


@pytest.mark.parametrize("field", FIELDS)
def test_spec_2_1_field(seen: tuple[dict[str, Any], dict[str, Any]], field: str) -> None:
    created, stopped = seen
    on_creation, after_the_run = FIELDS[field]
    name = field.partition(" ")[0]
    assert on_creation(created[name]) and after_the_run(stopped[name])


def test_spec_2_1_holds_these_fields_and_no_others(seen: tuple[dict[str, Any], dict[str, Any]]) -> None:
    assert set(seen[0]) == set(seen[1]) == {field.partition(" ")[0] for field in FIELDS}


@pytest.mark.parametrize("kind", ["human", "model", "script"])
def test_spec_2_1_actor_kind(caller: Caller, kind: str) -> None:
    session_id = caller.make_session(actor={"id": "x", "kind": kind})
    assert caller.get(f"/v1/sessions/{session_id}").json()["actor"] == {"id": "x", "kind": kind}


@pytest.mark.parametrize("slug", ["ab", "a" * 64, "0_9", "__"])
def test_spec_2_1_workflow_slug(caller: Caller, slug: str) -> None:
    assert caller.get(f"/v1/sessions/{caller.make_session(workflow=slug)}").json()["workflow"] == slug


@pytest.mark.parametrize(
    ("tag", "event_type", "outcome"),
    [
        pytest.param("success", "click", "success", id="success by tag"),
        pytest.param("error", "click", "error", id="error by tag"),
        pytest.param("seen", "click", "abandoned", id="abandoned"),
        pytest.param("seen", "success", "success", id="success by detected event"),
        pytest.param("seen", "error", "error", id="error by detected event"),
    ],
)
def test_spec_2_1_outcome(caller: Caller, tag: str, event_type: str, outcome: str) -> None:
    session_id = caller.make_session()
    caller.add_events(session_id, event(1, event_type))
    caller.post(f"/v1/sessions/{session_id}/tags", {"name": tag})
    assert caller.post(f"/v1/sessions/{session_id}/stop").json()["outcome"] == outcome
    assert len(caller.get(f"/v1/sessions?outcome={outcome}").json()["data"]) == 1


@pytest.mark.parametrize("part", ["events", "tags", "frames_summary"])
def test_spec_2_1_include(caller: Caller, part: str) -> None:
    address = f"/v1/sessions/{caller.make_session()}"
    assert part not in caller.get(address).json()
    embedded = caller.get(f"{address}?include={part}").json()
    assert part in embedded and not {"events", "tags", "frames_summary"} - {part} & set(embedded)


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        pytest.param({"name": "ready"}, None, id="name"),
        pytest.param({"name": "ready", "data": {"n": [1]}}, {"n": [1]}, id="data"),
    ],
)
def test_spec_2_2_field(caller: Caller, sent: dict[str, Any], kept: Any) -> None:
    address = f"/v1/sessions/{caller.make_session()}"
    tag = caller.post(f"{address}/tags", sent).json()
    assert (tag["name"], tag["data"]) == ("ready", kept)
    assert caller.get(f"{address}?include=tags").json()["tags"] == [tag]
