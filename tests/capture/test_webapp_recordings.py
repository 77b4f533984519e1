"""Recordings of the example web application: events, targets, frames, and dry replays of its variants."""

from collections.abc import Callable
from typing import Any

import pytest

from examples.webapp.approval import WORKFLOW, approve_invoice
from examples.webapp.pages import Variant
from examples.webapp.server import PASSWORD, run_webapp
from recorder import Client
from recorder.capture import record
from recorder.replays.budget import Budget
from recorder.replays.dry_replay import compute_replayability, replay_dry
from recorder.replays.recorded_pages import RecordedPages
from recorder.replays.recorded_session import RecordedSession, list_recorded_steps
from recorder.replays.replay_policy import ReplayPolicy
from recorder.replays.replay_range import ReplayAnchor, find_anchor_event
from recorder.replays.replay_results import Decision, DryResult
from recorder.replays.selectors import find_single_element_by_selector, kind_of_selector
from recorder.replays.target_resolution import RESOLVE_VISITS, resolve_target
from tests.support.captured_pages import read_dom, read_recorded

STEPS = [
    ("navigate", None),
    ("fill", "E-mail"),
    ("fill", "Password"),
    ("click", "Sign in"),
    ("click", "Open next invoice"),
    ("select", "Cost centre"),
    ("fill", "Note"),
    ("check", "Three-way match done"),
    ("click", "Approve"),
    ("click", "Confirm"),
]
Record = Callable[[Variant], RecordedSession]


@pytest.fixture(scope="module")
def recorded(browser: Any, client: Client) -> Record:
    """Return recordings by variant, each made once."""
    made: dict[str, RecordedSession] = {}

    def record_variant(variant: Variant) -> RecordedSession:
        if variant not in made:
            page = browser.new_page(viewport={"width": 1280, "height": 800})
            with run_webapp(variant, delay_s=0.3) as app:
                with record(page, workflow=WORKFLOW, client=client) as recording:
                    approve_invoice(page, app.url, recording)
                calls = [call["path"] for call in app.calls]
            page.close()
            assert recording.stats.errors == recording.stats.dropped_events == 0
            assert len(calls) == (1 if variant == "missing" else 2)
            made[variant] = read_recorded(client, recording.id)
        return made[variant]

    return record_variant


def test_each_action_is_an_event_with_its_target(recorded: Record) -> None:
    steps = [step.event for step in list_recorded_steps(recorded("base"))]
    assert [(event["type"], event.get("target", {}).get("name")) for event in steps] == STEPS
    assert [event["input"].get("value") for event in steps if event["type"] in ("fill", "select")] == [
        "ada@ledgerly.example",
        None,
        "Operations",
        "PO matched",
    ]
    assert steps[2]["input"] == {"value": None, "masked": True, "secret_ref": "password"}
    times = [event["t_ms"] for event in recorded("base").events]
    assert times == sorted(times)


def test_navigations_are_signals_of_the_click_that_caused_them(recorded: Record) -> None:
    events = recorded("base").events
    assert [event["type"] for event in events].count("navigate") == 4
    caused = {
        event["target"]["name"]: event["signals"]
        for event in events
        if event["type"] == "click" and "signals" in event
    }
    assert list(caused) == ["Sign in", "Open next invoice", "Confirm"]
    # Signing in is repeatable; what a form changes is not.
    assert "method" not in caused["Sign in"][0]
    assert caused["Confirm"][0]["method"] == "POST"
    assert all(event.get("title") for event in events if event["type"] == "navigate")


def test_every_selector_matches_its_target_alone_in_the_order_of_cost(recorded: Record) -> None:
    session = recorded("base")
    pages = RecordedPages(session, Budget(10**7))
    order = ["test_id", "aria", "attribute", "text", "path", "xpath"]
    for step in list_recorded_steps(session)[1:]:
        document = pages.read_page(step.before)
        assert document is not None
        target = step.event["target"]
        resolution = resolve_target(document, target)
        assert resolution.finding == "matched"
        for selector in target["selectors"]:
            assert (
                find_single_element_by_selector(document, selector, Budget(RESOLVE_VISITS))
                is resolution.element
            )
        kinds = [order.index(kind_of_selector(selector)) for selector in target["selectors"]]
        assert kinds == sorted(kinds)
        assert {"aria", "path", "xpath"} <= {kind_of_selector(selector) for selector in target["selectors"]}


def test_frames_show_the_state_before_and_after_each_action(recorded: Record) -> None:
    session = recorded("base")
    steps = list_recorded_steps(session)
    assert all(step.before is not None and step.event.get("frame_id") for step in steps[1:])
    assert all(step.after is not None and step.after > (step.before or -1) for step in steps)
    confirm = steps[-1]
    assert confirm.before is not None
    assert "heading confirm approval" in session.frames[confirm.before].state_tokens
    assert confirm.after is not None
    assert "heading approved" in session.frames[confirm.after].state_tokens


def test_pictures_are_webp_with_the_password_painted_over(recorded: Record, client: Client) -> None:
    session_id = recorded("base").session_id
    frames = list(client.list_frames(session_id))
    assert {frame["content_type"] for frame in frames} == {"image/webp"}
    assert {(frame["width"], frame["height"]) for frame in frames} == {(1280, 800)}
    assert any(frame["masked_rects"] for frame in frames)


def test_the_password_is_in_nothing_that_was_stored(
    recorded: Record, client: Client, tmp_path_factory: pytest.TempPathFactory
) -> None:
    session = recorded("base")
    texts = [str(list(client.list_events(session.session_id)))]
    texts += [str(read_dom(client, session.session_id, frame.frame_id)) for frame in session.frames]
    assert all(PASSWORD not in text for text in texts)
    files = [path for path in tmp_path_factory.getbasetemp().rglob("*") if path.is_file()]
    assert files
    assert all(PASSWORD.encode() not in path.read_bytes() for path in files)


def test_snapshots_hold_no_scripts_and_no_handlers(recorded: Record, client: Client) -> None:
    session = recorded("base")
    for frame in session.frames:
        text = str(read_dom(client, session.session_id, frame.frame_id))
        assert "script" not in text
        assert "addEventListener" not in text
        assert "'on" not in text


def test_every_step_of_a_recording_can_be_resolved(recorded: Record) -> None:
    assert compute_replayability(recorded("base")) == 1


def replay(
    recorded: Record,
    variant: Variant | None = None,
    *,
    anchor: str | None = None,
    decisions: dict[int, Decision] | None = None,
    mode: Any = "full",
) -> DryResult:
    """Replay the base recording on its own snapshots, or on those of a variant."""
    session = recorded("base")
    start = None if anchor is None else find_anchor_event(session, ReplayAnchor("tag", anchor))
    return replay_dry(
        session,
        mode=mode,
        anchor=start,
        until=None,
        policy=ReplayPolicy(),
        input_names=frozenset({"password"}),
        against=None if variant is None else recorded(variant),
        decisions=decisions,
    )


@pytest.mark.parametrize("variant", [None, "base", "data", "cosmetic", "slow"])
def test_variants_that_only_look_different_complete(recorded: Record, variant: Variant | None) -> None:
    result = replay(recorded, variant)
    assert result.status == "completed", result.divergence
    assert (result.summary.matched, result.summary.relabelled) == (10, 0)
    assert result.summary.missing_inputs == ()
    assert (result.summary.min_similarity or 0) >= 0.89


def test_variants_with_another_label_complete_with_a_warning(recorded: Record) -> None:
    result = replay(recorded, "label")
    assert result.status == "completed", result.divergence
    assert [step.step for step in result.steps if step.outcome == "relabelled"] == [9]


@pytest.mark.parametrize(
    ("variant", "step", "kind", "acted"),
    [
        ("extra", 10, "target_changed", False),
        ("missing", 9, "target_missing", False),
        ("error", 10, "state_mismatch", True),
    ],
)
def test_variants_that_changed_diverge(
    recorded: Record, variant: Variant, step: int, kind: str, acted: bool
) -> None:
    result = replay(recorded, variant)
    assert result.status == "diverged"
    divergence = result.divergence
    assert divergence is not None
    assert (divergence.step, divergence.kind, divergence.acted) == (step, kind, acted)
    if variant == "extra":
        assert divergence.observed.name == "Send to second approver"
    if variant == "missing":
        # No element resembles the button enough to be suggested.
        assert all(candidate.score < 0.75 for candidate in divergence.candidates)
    if variant == "error":
        assert ("heading", "something went wrong") in divergence.unexpected


def test_variants_are_replayed_in_part(recorded: Record) -> None:
    result = replay(recorded, "data", anchor="invoice_opened", mode="partial")
    assert result.status == "completed", result.divergence
    assert [step.step for step in result.steps] == [6, 7, 8, 9, 10]


def test_variants_are_replayed_with_decisions(recorded: Record) -> None:
    assert replay(recorded, "label", mode="guided").awaiting_step == 9
    once = replay(recorded, "label", mode="guided", decisions={9: Decision("act")})
    assert once.awaiting_step == 10
    both = {9: Decision("act"), 10: Decision("act")}
    assert replay(recorded, "label", mode="guided", decisions=both).status == "completed"
