"""Sessions recorded over HTTP that go from screen to screen, one letter for each, for the memory graph."""

from typing import Any

from tests.support.completed_work import LONG_AGO, once
from tests.support.factories import Caller, event, frame
from tests.support.sealing import seal_all

#: Time from one step to the next, and from the start to the first one.
STEP_MS = 1_000
#: The members of a session where it is one of several.
SESSION_MEMBERS = {
    "id",
    "workflow",
    "status",
    "metadata",
    "actor",
    "started_at",
    "stopped_at",
    "duration_ms",
    "frame_count",
    "event_count",
    "outcome",
    "seal_error",
    "replayability",
    "created_at",
}


def stopped_walk(
    caller: Caller, states: str, *, failed_at: int | None = None, has_frame: bool = True, **body: Any
) -> str:
    """Record and stop a session that clicks once on each of these screens, a second apart; return its id.

    Args:
        failed_at: ms at which it gets the tag `error`; it then ends with the tag `success`.
        has_frame: whether a frame shows the screens.
        body: members of the session; `tag` is one of its end.
    """
    tag = body.pop("tag", None)
    session_id = caller.make_session(**{"started_at": LONG_AGO, **body})
    steps = [
        event(
            STEP_MS * (item + 1),
            state_key=state,
            url=f"https://shop.example/{state}",
            target={"name": state},
        )
        for item, state in enumerate(states)
    ]
    if steps:
        assert caller.add_events(session_id, *steps).status_code == 202
    if has_frame:
        assert caller.add_frames(session_id, frame(500)).status_code == 202
    if failed_at is not None:
        add_tag(caller, session_id, "error", t_ms=failed_at)
        tag = tag or "success"
    assert caller.post(f"/v1/sessions/{session_id}/stop").status_code == 200
    if tag is not None:
        add_tag(caller, session_id, tag)
    return session_id


def add_tag(caller: Caller, session_id: str, name: str, **members: Any) -> None:
    """Tag a session."""
    answer = caller.post(f"/v1/sessions/{session_id}/tags", {"name": name, **members})
    assert answer.status_code == 201, answer.text


def sealed_walks(caller: Caller, *ways: str, **body: Any) -> list[str]:
    """Record and seal such sessions; return their ids."""
    ids = [stopped_walk(caller, states, **body) for states in ways]
    seal_all(caller.service.runtime)
    return ids


def ask(caller: Caller, what: str, query: str = "", *, workflow: str = "checkout") -> Any:
    """Return the answer of `GET /v1/memory/…` about a workflow."""
    answer = caller.get(f"/v1/memory/{what}?workflow={workflow}{query}")
    assert answer.status_code == 200, answer.text
    return answer.json()


@once
def shown_walks(caller: Caller) -> Caller:
    """Return the owner of a workflow: five succeed, three of four that fail recover, one is an outlier."""
    for _ in range(5):
        stopped_walk(caller, "abcd", tag="success")
    for states, times in (("abxcd", 2), ("abxbcd", 1)):
        for _ in range(times):
            stopped_walk(caller, states, failed_at=3_000)
    stopped_walk(caller, "abx", tag="error")
    stopped_walk(caller, "qrs")
    seal_all(caller.service.runtime)
    return caller


def shown_points(caller: Caller, query: str = "") -> list[dict[str, Any]]:
    """Return the recovery points of that workflow."""
    points: list[dict[str, Any]] = ask(shown_walks(caller), "recovery_points", query)["data"]
    return points
