"""Outcomes: the last mark decides. Contract §2 (outcome)."""

import itertools

import pytest

from recorder.recording.outcomes import OutcomeMark, OutcomeRules, last_outcome_mark, outcome_of_mark

RULES = OutcomeRules()
ERROR = OutcomeMark(5, "tag_b", "error", "tag", "failed")


@pytest.mark.parametrize(
    ("name", "outcome"),
    [
        ("error", "error"),
        ("failed", "error"),
        ("failure", "error"),
        ("success", "success"),
        ("completed", "success"),
        ("done", "success"),
        ("Error", None),
        ("seen", None),
        ("abandoned", None),
    ],
)
def test_which_tags_mark_an_outcome(name: str, outcome: str | None) -> None:
    assert RULES.of_tag(name) == outcome


@pytest.mark.parametrize(("type", "outcome"), [("error", "error"), ("success", "success"), ("failed", None)])
def test_which_events_mark_an_outcome(type: str, outcome: str | None) -> None:
    assert RULES.of_event(type) == outcome


def test_a_workflow_overrules_single_names() -> None:
    rules = OutcomeRules.of({"error_tags": ["broken"], "success_events": []})
    assert (rules.of_tag("broken"), rules.of_tag("failed"), rules.of_tag("done")) == (
        "error",
        None,
        "success",
    )
    assert rules.event_types == {"error"}


def test_without_a_mark_a_session_was_abandoned() -> None:
    assert (last_outcome_mark([]), outcome_of_mark(None)) == (None, "abandoned")


@pytest.mark.parametrize(
    ("other", "outcome"),
    [
        pytest.param(OutcomeMark(6, "tag_a", "success", "tag", "done"), "success", id="later"),
        pytest.param(OutcomeMark(4, "tag_z", "success", "tag", "done"), "error", id="earlier"),
        pytest.param(OutcomeMark(5, "tag_c", "success", "tag", "done"), "success", id="same time, higher id"),
        pytest.param(
            OutcomeMark(5, "evt_z", "success", "event", "success"), "error", id="same time, lower id"
        ),
    ],
)
def test_the_last_mark_in_order_decides(other: OutcomeMark, outcome: str) -> None:
    for marks in itertools.permutations([ERROR, other]):
        assert outcome_of_mark(last_outcome_mark(marks)) == outcome


def test_a_mark_tells_where_it_came_from() -> None:
    assert ERROR.as_json() == {"source": "tag", "name": "failed", "id": "tag_b", "t_ms": 5}
