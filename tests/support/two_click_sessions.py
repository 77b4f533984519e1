"""Sessions to replay: two clicks on pages with snapshots, and the work of a drain run."""

from functools import cache
from typing import Any

from recorder.replay_service.dry.dry_computation import DryComputation
from recorder.replay_service.dry.dry_process import DryProcess
from recorder.replay_service.recovery_search.candidate_search_process import SearchProcess
from recorder.replay_service.replay_drain_run import ReplayDrainRun
from recorder.replay_service.scheduling.replay_drain_counts import ReplayDrainCounts
from recorder.runtime import Runtime
from tests.support.dom_snapshots import snapshot
from tests.support.factories import Caller, event, frame
from tests.support.sealing import seal_all

PAGE = ["html", {}, ["body", {}, ["h1", {}, "Invoice"], ["button", {"id": "open"}, "Open"],
        ["button", {"id": "approve"}, "Approve"]]]  # fmt: skip
DONE = ["html", {}, ["body", {}, ["h1", {}, "Approved"], ["button", {"id": "approve"}, "Close"]]]
OTHER = ["html", {}, ["body", {}, ["h1", {}, "Invoice"], ["p", {}, "Nothing to do here"]]]


def click(t_ms: int, name: str, **members: Any) -> dict[str, Any]:
    """Return a click on a button with a CSS selector and an accessible name."""
    target = {"role": "button", "name": name, "selectors": [[f"#{name.lower()}"], [f"aria/{name}"]]}
    return event(t_ms, "click", target=target, **members)


def sealed_run(caller: Caller, *, first: Any = PAGE, workflow: str = "approve", **members: Any) -> str:
    """Return a sealed session of two clicks on pages with snapshots, and a tag between them."""
    session_id = stopped_run(caller, first=first, workflow=workflow, **members)
    seal_all(caller.service.runtime)
    return session_id


def long_run(caller: Caller) -> str:
    """Return a sealed session whose replay takes seconds: its clicks are on large pages in turn."""
    session_id = caller.make_session(workflow="approve")
    pages = [
        ["html", {}, ["body", {"id": f"page{number}"}, ["button", {"id": "open"}, "Open"], *[["p"]] * 20_000]]
        for number in range(3)
    ]
    frames = [
        frame(number, number, id=f"frm_{number}", dom=snapshot(page)) for number, page in enumerate(pages)
    ]
    assert caller.add_frames(session_id, *frames).status_code == 202
    clicks = [click(10 + number, "Open", frame_id=f"frm_{number % 3}") for number in range(40)]
    assert caller.add_events(session_id, *clicks).status_code == 202
    assert caller.post(f"/v1/sessions/{session_id}/stop").status_code == 200
    seal_all(caller.service.runtime)
    return session_id


def stopped_run(caller: Caller, *, first: Any = PAGE, workflow: str = "approve", **members: Any) -> str:
    """Return the same before it is sealed; both clicks have the members."""
    session_id = caller.make_session(workflow=workflow)
    clicks = (click(t_ms, name, **members) for t_ms, name in ((100, "Open"), (300, "Approve")))
    assert caller.add_events(session_id, *clicks).status_code == 202
    frames = (
        frame(50, dom=snapshot(first)),
        frame(200, 1, dom=snapshot(first)),
        frame(400, 2, dom=snapshot(DONE)),
    )
    assert caller.add_frames(session_id, *frames).status_code == 202
    tag = {"name": "ready", "t_ms": 250}
    assert caller.post(f"/v1/sessions/{session_id}/tags", tag).status_code == 201
    assert caller.post(f"/v1/sessions/{session_id}/stop").status_code == 200
    return session_id


class KeptDryProcess(DryProcess):
    """Process that the next drain run goes on with: it takes as long to start as a test to run."""

    def end(self) -> None:
        """Leave the process; it ends with the tests."""


class KeptSearchProcess(SearchProcess):
    """Process that the next drain run goes on with."""

    def end(self) -> None:
        """Leave the process; it ends with the tests."""


@cache
def keep_processes() -> tuple[KeptDryProcess, KeptDryProcess, KeptSearchProcess]:
    """Return the processes that all drain runs of these tests share."""
    return KeptDryProcess(), KeptDryProcess(), KeptSearchProcess()


def make_drain_run(runtime: Runtime, owner: str = "tests") -> ReplayDrainRun:
    """Return a drain run with the processes that are kept: one run at a time."""
    *dry, search = keep_processes()
    processes = iter(dry)
    computation = DryComputation(runtime, make_process=lambda: next(processes))
    return ReplayDrainRun(runtime, owner, computation=computation, search_process=search)


def replay_all(caller: Caller) -> ReplayDrainCounts:
    """Replay what waits, as the drain run does."""
    run = make_drain_run(caller.service.runtime)
    assert run.take()
    try:
        while run.work_on_due_replays():
            pass
    finally:
        run.release()
    return run.report
