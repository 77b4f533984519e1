"""Runs of a workflow with snapshots, some of which fail, for tests of recoveries."""

from collections.abc import Sequence
from typing import Any

from tests.support.completed_work import LONG_AGO
from tests.support.dom_snapshots import snapshot
from tests.support.factories import Caller, event, frame
from tests.support.sealing import seal_all

#: Time from one click to the next, and from the start to the first one.
STEP_MS = 1_000


def page(name: str, *buttons: str) -> Any:
    """Return a page with a heading and buttons."""
    nodes = [["button", {"id": label.lower()}, label] for label in buttons]
    return ["html", {}, ["body", {}, ["h1", {}, name], *nodes]]


#: Page before each click, by the name of the button.
PAGES = {
    "Open": page("Invoices", "Open", "Sort"),
    "Review": page("Invoice", "Review", "Back"),
    "Check": page("Details", "Check", "Back"),
    "Approve": page("Approval", "Approve", "Reject"),
    "Retry": page("Server error", "Retry"),
}


def make_run(
    caller: Caller,
    *names: str,
    error_at: int | None = None,
    error_event: bool = False,
    tags: Sequence[tuple[str, int]] = (),
    pages: dict[str, Any] | None = None,
    has_dom: bool = True,
    workflow: str = "approve",
    seal: bool = False,
) -> str:
    """Record and stop a session that clicks buttons, a second apart; return its id.

    Args:
        error_at: time of a tag `error`; without one the session ends with the tag `success`.
        error_event: whether it ends with an error event, and no tag, instead.
        tags: names and times of further tags.
        pages: pages that are other than usual, by the name of the button.
        has_dom: whether its frames have snapshots.
        seal: whether it is sealed.
    """
    session_id = caller.make_session(workflow=workflow, started_at=LONG_AGO)
    shown = PAGES | (pages or {})
    clicks = [
        event(
            STEP_MS * number,
            "click",
            state_key=name,
            target={"role": "button", "name": name, "selectors": [[f"#{name.lower()}"], [f"aria/{name}"]]},
        )
        for number, name in enumerate(names, 1)
    ]
    if error_event:
        clicks.append(event(STEP_MS * len(names) + 1, "error"))
    assert caller.add_events(session_id, *clicks).status_code == 202
    frames = [
        frame(STEP_MS * number - 500, number, **({"dom": snapshot(shown[name])} if has_dom else {}))
        for number, name in enumerate(names, 1)
    ]
    assert caller.add_frames(session_id, *frames).status_code == 202
    marks = [*tags, ("success", STEP_MS * len(names) + 1) if error_at is None else ("error", error_at)]
    for name, t_ms in tags if error_event else marks:
        tag = {"name": name, "t_ms": t_ms}
        assert caller.post(f"/v1/sessions/{session_id}/tags", tag).status_code == 201
    assert caller.post(f"/v1/sessions/{session_id}/stop").status_code == 200
    if seal:
        seal_all(caller.service.runtime)
    return session_id
