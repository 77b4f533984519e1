"""Dry replays of sessions without snapshots against each other: what their events hold is compared."""

from typing import Any

import pytest

from recorder.replays.dry_replay import replay_dry
from recorder.replays.recorded_session import RecordedSession
from recorder.replays.replay_comparisons import ComparedGraph
from recorder.replays.replay_policy import ReplayPolicy
from recorder.replays.replay_results import DryResult


def button(name: str, **members: Any) -> dict[str, Any]:
    return {"type": "click", "target": {"role": "button", "name": name}, **members}


def record(*events: dict[str, Any]) -> RecordedSession:
    numbered = [{"id": f"evt_{n}", "t_ms": 100 * n, **event} for n, event in enumerate(events, start=1)]
    return RecordedSession("ses_1", numbered, [], [])


def replay(recording: RecordedSession, against: RecordedSession | ComparedGraph | None = None) -> DryResult:
    return replay_dry(
        recording,
        mode="full",
        anchor=None,
        until=None,
        policy=ReplayPolicy(),
        input_names=frozenset(),
        against=against,
    )


@pytest.mark.parametrize(
    "other",
    [
        button("Delete everything", url="https://a.example/invoices/7"),
        {
            "type": "click",
            "target": {"role": "link", "name": "Approve"},
            "url": "https://a.example/invoices/7",
        },
        button("Approve", url="https://z.example/invoices/7"),
        button("Approve", url="https://a.example/payments"),
        {"type": "click", "url": "https://a.example/invoices/7"},
        {"type": "fill", "target": {"role": "button", "name": "Approve"}},
    ],
)
def test_another_action_is_unseen(other: dict[str, Any]) -> None:
    result = replay(record(button("Approve", url="https://a.example/invoices/7")), record(other))
    assert result.divergence is not None
    assert (result.status, result.divergence.kind, result.divergence.step) == ("diverged", "edge_unseen", 1)
    assert result.divergence.observed.name == (other.get("target") or {}).get("name")


@pytest.mark.parametrize(
    ("event", "other"),
    [
        (button("Approve", url="https://a.example/invoices/7"), button("Approve")),
        (
            button("Approve", url="https://a.example/invoices/7"),
            button("Approve invoice", url="https://a.example/invoices/8"),
        ),
        (
            {"type": "fill", "target": {"tag": "input", "attrs": {"id": "amount"}}},
            {"type": "fill", "target": {"tag": "input", "attrs": {"id": "amount"}}},
        ),
        (
            {"type": "navigate", "url": "https://a.example/7"},
            {"type": "navigate", "url": "https://a.example/8"},
        ),
    ],
)
def test_the_same_action_matches(event: dict[str, Any], other: dict[str, Any]) -> None:
    result = replay(record(event), record(other))
    assert (result.status, result.summary.matched, result.summary.evidence) == ("completed", 1, "events")


def test_navigations_elsewhere_are_unseen() -> None:
    session, other = ({"type": "navigate", "url": f"https://a.example/{path}"} for path in ("open", "close"))
    assert replay(record(session), record(other)).status == "diverged"


def test_a_replay_that_compares_nothing_claims_no_evidence() -> None:
    session = record(button("Open"), button("Approve"))
    result = replay(session)
    assert (result.status, result.summary.matched, result.summary.evidence) == ("completed", 2, None)
    unknown = ComparedGraph({}, {}, {})
    assert replay(session, unknown).summary.evidence is None
    known = ComparedGraph({"evt_1": "nde_1", "evt_2": "nde_2"}, {("nde_1", "nde_2"): 1.0}, {})
    assert replay(session, known).summary.evidence == "graph"
