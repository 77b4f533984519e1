"""Live replays of one recording on eight variants of the application it was made of. Spec §4.6.

`RECORDER_FAULT_VARIANTS` is how often each is replayed.
"""

import os
from typing import Any

import pytest

from examples.webapp.pages import VARIANTS, Variant
from examples.webapp.server import WebApp, run_webapp
from tests.live.conftest import Recorded
from tests.support.live_replays import ask_live, decide, show, step_of, work_in_thread, work_live

ROUNDS = int(os.environ.get("RECORDER_FAULT_VARIANTS", "1"))  # noqa: TID251
SIGN_IN = "/login"
APPROVE = "/invoices/1042/approve"
#: Variant → status, kind of the divergence, element at which it is, and what the application was asked to do.
ENDS: dict[Variant, tuple[str, str | None, str | None, list[str]]] = {
    "base": ("completed", None, None, [SIGN_IN, APPROVE]),
    "data": ("completed", None, None, [SIGN_IN, "/invoices/2207/approve"]),
    "cosmetic": ("completed", None, None, [SIGN_IN, APPROVE]),
    "label": ("completed", None, None, [SIGN_IN, APPROVE]),
    "slow": ("completed", None, None, [SIGN_IN, APPROVE]),
    "extra": ("diverged", "target_changed", "Confirm", [SIGN_IN]),
    "missing": ("diverged", "target_missing", "Approve", [SIGN_IN]),
    "error": ("diverged", "http_error", "Confirm", [SIGN_IN, APPROVE]),
}


def calls_of(app: WebApp) -> list[str]:
    """Return the paths of the requests that the application got."""
    return [call["path"] for call in app.calls]


def find_event(recorded: Recorded, name: str) -> str:
    """Return the id of the event on an element of this name."""
    events = recorded.caller.get(f"/v1/sessions/{recorded.session_id}/events").json()["data"]
    (event_id,) = [event["id"] for event in events if (event.get("target") or {}).get("name") == name]
    return str(event_id)


@pytest.mark.parametrize("variant", VARIANTS * ROUNDS)
def test_a_live_replay_acts_where_the_page_is_the_recorded_one_and_stops_elsewhere(
    recorded: Recorded, variant: Variant
) -> None:
    status, kind, name, calls = ENDS[variant]
    with run_webapp(variant) as app:
        replay_id = ask_live(recorded.caller, recorded.session_id, app)
        work_live(recorded.caller)
        shown = show(recorded.caller, replay_id)
        assert calls_of(app) == calls, shown
    assert (shown["status"], shown["error"]) == (status, None), shown
    divergence = shown["divergence"]
    assert (divergence and divergence["kind"], divergence and divergence["expected"]["name"]) == (kind, name)
    assert {row["delivery"] for row in shown["rows"]} == {"confirmed"}
    outcomes = [row["outcome"] for row in shown["rows"]]
    assert outcomes.count("relabelled") == (variant == "label")
    if variant in ("extra", "missing"):
        assert divergence["acted"] is False and outcomes[-1] == "diverged"
    if variant == "error":
        assert divergence["acted"] and ["heading", "approved"] in divergence["missing"]
    if status == "completed":
        assert shown["summary"]["min_similarity"] == (
            pytest.approx(0.92, abs=0.02) if variant == "label" else 1
        )
        assert shown["progress"] == {"step": len(outcomes), "steps": len(outcomes)}


@pytest.mark.parametrize("_", range(ROUNDS))
def test_variants_partial_replay_begins_at_its_anchor(recorded: Recorded, _: int) -> None:
    with run_webapp("base") as app:
        members = {"mode": "partial", "anchor": {"tag": "ready_to_approve"}}
        replay_id = ask_live(recorded.caller, recorded.session_id, app, **members)
        work_live(recorded.caller)
        shown = show(recorded.caller, replay_id)
        assert calls_of(app) == [SIGN_IN, APPROVE], shown
    assert shown["status"] == "completed", shown
    assert shown["anchor_event"]["event_id"] in [row["event_id"] for row in shown["rows"]]


def test_variants_partial_replay_repeats_no_consequential_step_to_reach_its_anchor(
    recorded: Recorded,
) -> None:
    with run_webapp("base") as app:
        members = {"mode": "partial", "anchor": {"event_id": find_event(recorded, "Confirm")}}
        policy = {"repeat_consequential": False, "step_timeout_ms": 500}
        replay_id = ask_live(recorded.caller, recorded.session_id, app, policy=policy, **members)
        work_live(recorded.caller)
        shown = show(recorded.caller, replay_id)
        assert calls_of(app) == []
    assert (shown["status"], shown["divergence"]["kind"]) == ("diverged", "anchor_unreachable")


def test_consequential_steps_are_left_out_without_an_order_to_repeat_them(recorded: Recorded) -> None:
    with run_webapp("base") as app:
        policy = {"repeat_consequential": False}
        replay_id = ask_live(recorded.caller, recorded.session_id, app, policy=policy)
        work_live(recorded.caller)
        shown = show(recorded.caller, replay_id)
        assert calls_of(app) == [SIGN_IN]
    assert (shown["status"], shown["summary"]["skipped"]) == ("completed", 2), shown
    assert [row["outcome"] for row in shown["rows"]][-2:] == ["skipped", "skipped"]


@pytest.mark.parametrize("_", range(ROUNDS))
def test_variants_guided_replay_acts_as_a_person_decides(recorded: Recorded, _: int) -> None:
    caller = recorded.caller
    with run_webapp("extra") as app:
        replay_id = ask_live(caller, recorded.session_id, app, mode="guided")
        with work_in_thread(caller):
            assert step_of(caller, replay_id)["event_name"] == "Approve"
            decide(caller, replay_id, "act")
            assert step_of(caller, replay_id)["event_name"] == "Confirm"
            seen = show(caller, replay_id)["divergence"]
            assert (seen["kind"], seen["observed"]["name"]) == ("target_changed", "Send to second approver")
            # This selector matches two elements.
            decide(caller, replay_id, "retarget", selector="dialog button")
            assert step_of(caller, replay_id)["event_name"] == "Confirm"
            decide(caller, replay_id, "retarget", selector="#cancel")
            # What was sent is not what was recorded; it is not sent again.
            assert step_of(caller, replay_id)["event_name"] == "Confirm"
            assert show(caller, replay_id)["divergence"]["acted"] is True
            decide(caller, replay_id, "skip")
        shown: dict[str, Any] = show(caller, replay_id)
        assert calls_of(app) == [SIGN_IN]
    assert shown["rows"][-1]["outcome"] == "healed", shown
