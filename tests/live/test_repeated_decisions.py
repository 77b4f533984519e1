"""Decisions of a person on one step: they are limited, as is the time of a replay. Contract §8."""

import time

from recorder.live.step_loop import MOST_DECISIONS
from tests.live.conftest import Recorded
from tests.support.factories import event
from tests.support.live_replays import decide, show, step_of, work_in_thread
from tests.support.replay_requests import get_replay
from tests.support.small_sites import ask_on_ports, make_button, serving_pages, store_events
from tests.support.waiting import wait_for

RECORDED = "http://shop.example"


def test_a_step_that_cannot_be_done_ends_the_replay_after_many_decisions(recorded: Recorded) -> None:
    caller = recorded.caller
    session_id = store_events(
        caller,
        event(0, "navigate", url=f"{RECORDED}/"),
        event(100, "click", target=make_button("Gone"), url=f"{RECORDED}/"),
    )
    with serving_pages({"/": "<!doctype html><title>Shop</title><h1>Shop</h1>"}) as (port, _):
        replay_id = ask_on_ports(
            caller, session_id, RECORDED, port, mode="guided", policy={"step_timeout_ms": 100}
        )
        decided: set[tuple[int, str]] = set()
        until = time.monotonic() + 120
        with work_in_thread(caller):
            while (shown := get_replay(caller, replay_id))["finished_at"] is None:
                assert time.monotonic() < until and len(decided) <= 2 * MOST_DECISIONS, shown
                awaiting = shown["awaiting"]
                if (
                    awaiting is not None
                    and (wait := (awaiting["step"], awaiting["expires_at"])) not in decided
                ):
                    body = {"step": awaiting["step"], "action": "act"}
                    assert caller.post(f"/v1/replays/{replay_id}/decision", body).status_code == 200
                    decided.add(wait)
                time.sleep(0.1)
    shown = show(caller, replay_id)
    assert (shown["status"], shown["error"]["type"]) == ("failed", "timeout"), shown
    assert str(MOST_DECISIONS) in shown["error"]["message"]
    assert len([step for step, _ in decided if step == 2]) == MOST_DECISIONS


def test_an_act_is_done_on_the_very_element_that_was_shown(recorded: Recorded) -> None:
    caller = recorded.caller
    # With a text at /more, the page gets another row before the others.
    row = "<li><button onclick=\"fetch('/deleted-{name}')\">Delete</button> {name}"
    page = f"""<!doctype html><title>Shop</title><h1>Shop</h1>
<ul id=rows>{row.format(name="Apples")}{row.format(name="Pears")}</ul>
<script>const asking = setInterval(async () => {{
  if ((await fetch("/more")).status !== 200) return;
  clearInterval(asking);
  rows.insertAdjacentHTML("afterbegin", `{row.format(name="Plums")}`);
  fetch("/added");
}}, 200)</script>"""
    second = {"role": "button", "name": "Delete", "selectors": ["xpath//html/body/ul/li[2]/button"]}
    session_id = store_events(
        caller,
        event(0, "navigate", url=f"{RECORDED}/"),
        event(100, "click", target=second, url=f"{RECORDED}/"),
    )
    pages = {"/": page}
    with serving_pages(pages) as (port, paths):
        replay_id = ask_on_ports(
            caller, session_id, RECORDED, port, mode="guided", policy={"step_timeout_ms": 500}
        )
        with work_in_thread(caller):
            first = step_of(caller, replay_id)
            assert get_replay(caller, replay_id)["divergence"]["kind"] == "target_missing"
            pages["/more"] = "yes"
            wait_for(lambda: "/added" in paths)
            # The second row is another one now, with an element of the same role and name.
            decide(caller, replay_id, "act")
            wait_for(lambda: step_of(caller, replay_id)["expires_at"] != first["expires_at"])
            assert not any("deleted" in path for path in paths)
            decide(caller, replay_id, "act")
        shown = show(caller, replay_id)
    assert shown["status"] == "completed", shown
    assert [path for path in paths if "deleted" in path] == ["/deleted-Apples"]
