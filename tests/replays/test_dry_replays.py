"""Dry replays: the recording itself, other sessions, graphs, guided ones, and unusable recordings."""

import time
from dataclasses import replace
from typing import Any

import pytest

from recorder.replays.dry_replay import MOST_STEPS, compute_replayability, replay_dry
from recorder.replays.recorded_session import RecordedSession
from recorder.replays.replay_comparisons import ComparedGraph
from recorder.replays.replay_policy import ReplayPolicy
from recorder.replays.replay_range import ReplayAnchor, find_anchor_event, find_until_event
from recorder.replays.replay_results import Decision, DryResult
from tests.support.dom_snapshots import snapshot
from tests.support.invoice_recordings import (
    approval,
    approved,
    button,
    confirmation,
    invoice,
    page,
    record,
    sign_in,
)


def replay(recording: RecordedSession, **given: Any) -> DryResult:
    defaults: dict[str, Any] = {
        "mode": "full",
        "anchor": None,
        "until": None,
        "policy": ReplayPolicy(),
        "input_names": frozenset(),
    }
    return replay_dry(recording, **{**defaults, **given})


def outcomes(result: DryResult) -> list[str]:
    return [step.outcome for step in result.steps]


def test_a_recording_matches_itself() -> None:
    result = replay(approval())
    assert (result.status, result.divergence) == ("completed", None)
    assert [step.similarity for step in result.steps] == [1.0] * 4
    assert (result.summary.matched, result.summary.evidence) == (4, "dom")
    assert result.summary.missing_inputs == ("password",)
    assert replay(approval(), input_names=frozenset(["password"])).summary.missing_inputs == ()
    assert result == replay(approval())


def test_other_numbers_on_the_pages_are_no_difference() -> None:
    result = replay(approval(), against=approval(shown=invoice(977)))
    assert (result.status, result.summary.min_similarity) == ("completed", 1.0)


def test_another_label_is_told() -> None:
    result = replay(approval(), against=approval(shown=invoice(approve="Approve invoice")))
    assert result.status == "completed"
    assert outcomes(result) == ["matched", "matched", "relabelled", "matched"]
    assert 0.45 < (result.summary.min_similarity or 0) < 1


def test_an_element_of_another_name_is_not_acted_on() -> None:
    other = approval(question=confirmation("Send to second approver"))
    result = replay(approval(), against=other)
    assert result.status == "diverged"
    assert outcomes(result) == ["matched", "matched", "matched", "diverged"]
    divergence = result.divergence
    assert divergence is not None
    assert (divergence.kind, divergence.acted, divergence.step) == ("target_changed", False, 4)
    assert (divergence.expected.name, divergence.observed.name) == ("Confirm", "Send to second approver")


def test_a_missing_element_stops_the_replay_and_look_alikes_are_suggested() -> None:
    shown = page("Invoice INV-1042", ["p", {}, "To be checked"], button("Reject"), button("Approve all now"))
    other = record(
        ("fill", "password", sign_in()),
        ("click", "sign-in", sign_in()),
        ("click", "reject", shown),
        end=approved(),
    )
    divergence = replay(approval(), against=other).divergence
    assert divergence is not None
    assert (divergence.kind, divergence.step) == ("target_missing", 3)
    assert all(candidate.score >= 0.55 for candidate in divergence.candidates)
    off = replay(approval(), against=other, policy=ReplayPolicy(heal="off")).divergence
    assert off is not None
    assert off.candidates == ()


def test_another_page_at_the_end_is_a_state_mismatch_after_acting() -> None:
    failed = page("Server error", ["p", {"role": "alert"}, "Something went wrong"])
    divergence = replay(approval(), against=approval(end=failed)).divergence
    assert divergence is not None
    assert (divergence.kind, divergence.acted, divergence.step) == ("state_mismatch", True, 4)
    assert ("heading", "approved") in divergence.missing
    assert ("heading", "server error") in divergence.unexpected


def test_sessions_part_where_the_other_does_something_else() -> None:
    other = record(
        ("fill", "password", sign_in()),
        ("click", "sign-in", sign_in()),
        ("click", "reject", invoice()),
        end=approved(),
    )
    divergence = replay(approval(), against=other).divergence
    assert divergence is not None
    assert (divergence.kind, divergence.step, divergence.observed.name) == ("edge_unseen", 3, "Reject")


def test_a_disabled_control_and_an_absent_option_fail_the_action() -> None:
    disabled = replay(approval(), against=approval(shown=invoice(disabled="")))
    assert disabled.divergence is not None
    assert disabled.divergence.kind == "action_failed"
    form = page(
        "Form", ["select", {"id": "country", "name": "country"}, ["option", {"value": "ch"}, "Switzerland"]]
    )
    session = record(("select", "country", form), end=approved())
    session.events[0]["target"]["role"] = "combobox"
    session.events[0]["target"]["selectors"] = ["#country", '[name="country"]', "xpath//html/body/select"]
    for value, status in (("ch", "completed"), (["Switzerland"], "completed"), ("fr", "diverged")):
        session.events[0]["input"] = {"value": value}  # type: ignore[index]
        assert replay(session).status == status


def test_partial_replays_keep_to_their_range() -> None:
    session = approval()
    anchor = find_anchor_event(session, ReplayAnchor("tag", "ready_to_approve"))
    result = replay(session, mode="partial", anchor=anchor)
    assert [step.step for step in result.steps] == [3, 4]
    until = find_until_event(session, ReplayAnchor("event", "evt_3"))
    assert [step.event_id for step in replay(session, mode="partial", anchor=anchor, until=until).steps] == [
        "evt_3"
    ]
    assert replay(session, mode="partial", anchor=anchor, against=approval()).status == "completed"
    lost = replay(session, mode="partial", anchor=anchor, against=record(("click", "cancel", confirmation())))
    assert lost.divergence is not None
    assert lost.divergence.kind == "anchor_unreachable"


def test_guided_replays_wait_before_consequential_steps_and_at_divergences() -> None:
    session = approval()
    waiting = replay(session, mode="guided")
    assert (waiting.status, waiting.awaiting_step, outcomes(waiting)) == (
        "awaiting",
        3,
        ["matched", "matched"],
    )
    decisions = {3: Decision("act")}
    assert replay(session, mode="guided", decisions=decisions).awaiting_step == 4
    assert replay(session, mode="guided", decisions={**decisions, 4: Decision("act")}).status == "completed"
    skipped = replay(session, mode="guided", decisions={3: Decision("skip"), 4: Decision("act")})
    assert outcomes(skipped) == ["matched", "matched", "skipped", "matched"]
    aborted = replay(session, mode="guided", decisions={3: Decision("abort")})
    assert (aborted.status, aborted.error and aborted.error.type) == ("failed", "cancelled")


def test_a_selector_of_a_decision_must_match_alone() -> None:
    other = approval(question=confirmation("Send to second approver"))
    given: dict[str, Any] = {"mode": "guided", "against": other}
    waiting = replay(approval(), decisions={3: Decision("act")}, **given)
    assert waiting.divergence is not None
    assert (waiting.awaiting_step, waiting.divergence.kind) == (4, "target_changed")
    for selector in ("button", "#absent", "[", None):
        again = replay(approval(), decisions={3: Decision("act"), 4: Decision("retarget", selector)}, **given)
        assert (again.status, again.awaiting_step) == ("awaiting", 4)
    healed = replay(approval(), decisions={3: Decision("act"), 4: Decision("retarget", "#confirm")}, **given)
    assert (healed.status, healed.summary.healed) == ("completed", 1)


def test_policies_skip_or_ask_at_divergences() -> None:
    other = approval(question=confirmation("Send to second approver"))
    skipped = replay(approval(), against=other, policy=ReplayPolicy(on_divergence="skip"))
    assert (skipped.status, skipped.summary.skipped) == ("completed", 1)
    assert skipped.divergence is not None
    waiting = replay(approval(), against=other, policy=ReplayPolicy(on_divergence="ask"))
    assert (waiting.status, waiting.awaiting_step) == ("awaiting", 4)


def test_rare_edges_of_the_graph_diverge() -> None:
    nodes = {f"evt_{n}": f"nod_{n}" for n in range(1, 5)}
    shares = {
        ("nod_1", "nod_2"): 1.0,
        ("nod_2", "nod_3"): 0.5,
        ("nod_3", "nod_4"): 0.005,
        ("nod_3", "nod_9"): 0.9,
    }
    evidence = ComparedGraph(nodes, shares, {"nod_4": "Confirm", "nod_9": "Send to second approver"})
    session = approval(dom=False)
    result = replay(session, against=evidence)
    assert result.divergence is not None
    assert (result.divergence.kind, result.divergence.step) == ("edge_unseen", 4)
    assert (result.divergence.expected.name, result.divergence.observed.name) == (
        "Send to second approver",
        "Confirm",
    )
    assert result.summary.evidence == "graph"
    assert replay(session, against=evidence, policy=ReplayPolicy(min_support=0.001)).status == "completed"


def test_replayability_is_the_share_of_steps_that_resolve() -> None:
    assert compute_replayability(approval()) == 1.0
    assert compute_replayability(approval(dom=False)) is None
    assert compute_replayability(RecordedSession("ses_1", [], [], [])) is None
    twins = page(
        "Invoice", ["ul", {}, ["li", {}, ["button", {}, "Open"]], ["li", {}, ["button", {}, "Open"]]]
    )
    session = approval()
    step = {"id": "evt_9", "t_ms": 9_000, "type": "click", "target": {"role": "button", "name": "Open"}}
    frame = replace(session.frames[0], frame_id="frm_9", t_ms=8_999, read_dom=lambda: snapshot(twins))
    more = replace(session, events=[*session.events, step], frames=[*session.frames, frame])
    assert compute_replayability(more) == 0.8
    untargeted = {"id": "evt_0", "t_ms": 0, "type": "navigate", "url": "https://erp.example/"}
    assert compute_replayability(replace(session, events=[untargeted, *session.events])) == 1.0


@pytest.mark.parametrize(
    "session",
    [
        RecordedSession("ses_1", [], [], []),
        RecordedSession("ses_1", [{"id": "evt_1", "t_ms": 0, "type": "log"}], [], []),
        replace(approval(), frames=[replace(approval().frames[0], read_dom=lambda: snapshot(["a", {}, 5]))]),
    ],
)
def test_unusable_recordings_fail(session: RecordedSession) -> None:
    result = replay(session)
    assert result.status == "failed"
    assert result.error is not None
    assert result.error.type == "invalid_recording"


def test_a_recording_with_too_many_steps_is_replayed_in_parts() -> None:
    clicks = [{"id": f"evt_{t_ms:05}", "t_ms": t_ms, "type": "scroll"} for t_ms in range(MOST_STEPS + 1)]
    session = replace(approval(), events=clicks)
    whole = replay(session)
    assert (whole.status, whole.steps) == ("failed", ())
    assert whole.error is not None and "choose fewer with anchor and until" in whole.error.message
    part = replay(session, until=find_until_event(session, ReplayAnchor("event", "evt_00009")))
    assert (part.status, len(part.steps)) == ("completed", 10)


def test_a_click_without_a_target_diverges() -> None:
    result = replay(record(("click", None, invoice())))
    assert result.divergence is not None
    assert result.divergence.kind == "target_missing"


def test_hostile_selectors_end_with_the_budget() -> None:
    nodes = page("Big", *[["p", {}, ["a", {"id": f"a{n}"}, "x"]] for n in range(20_000)])
    session = record(("click", "a7", nodes), end=approved())
    bombs = [
        "p ~ p ~ p ~ p ~ a",
        "xpath/" + "//p" * 20 + "/following-sibling::p",
        "xpath///*[contains(., 'y')]",
    ] * 5
    event = {**session.events[0], "target": {"role": "link", "name": "x", "selectors": bombs}}
    many = replace(
        session,
        events=[{**event, "id": f"evt_{n}", "t_ms": 1_000 + n} for n in range(300)],
        frames=session.frames[:1],
    )
    began = time.process_time()
    result = replay(many, policy=ReplayPolicy(on_divergence="skip"))
    assert result.status == "failed"
    assert compute_replayability(many) == 0.0
    assert time.process_time() - began < 20
