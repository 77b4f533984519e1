"""Anchors: where a replay begins and ends, by `(t_ms, id)`."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recorder.replays.recorded_session import RecordedFrame, RecordedSession, RecordedTag, list_recorded_steps
from recorder.replays.replay_range import (
    AnchorUnknown,
    EventPosition,
    ReplayAnchor,
    find_anchor_event,
    find_until_event,
)


def make_session(
    events: list[tuple[int, str]],
    *,
    tags: list[tuple[str, int]] | None = None,
    frames: list[tuple[int, str]] | None = None,
) -> RecordedSession:
    return RecordedSession(
        "ses_1",
        [{"id": event_id, "t_ms": t_ms, "type": "click"} for t_ms, event_id in sorted(events)],
        [RecordedFrame(frame_id, t_ms, (), lambda: None) for t_ms, frame_id in sorted(frames or [])],
        [RecordedTag(f"tag_{n}", name, t_ms) for n, (name, t_ms) in enumerate(tags or [])],
    )


APPROVAL = make_session(
    [(100, "evt_b"), (200, "evt_c"), (200, "evt_a"), (300, "evt_d")],
    tags=[("ready", 100), ("ready", 200), ("late", 301), ("early", 99)],
    frames=[(150, "frm_1"), (300, "frm_2")],
)


@pytest.mark.parametrize(
    ("anchor", "event_id"),
    [
        (ReplayAnchor("tag", "ready"), "evt_a"),  # of two tags the last; of two events the smaller id
        (ReplayAnchor("tag", "early"), "evt_b"),
        (ReplayAnchor("frame", "frm_1"), "evt_a"),
        (ReplayAnchor("frame", "frm_2"), "evt_d"),
        (ReplayAnchor("event", "evt_c"), "evt_c"),  # the event itself, not another one of its millisecond
    ],
)
def test_a_replay_begins_with_the_first_event_at_or_after_its_anchor(
    anchor: ReplayAnchor, event_id: str
) -> None:
    assert find_anchor_event(APPROVAL, anchor).event_id == event_id


@pytest.mark.parametrize(
    ("until", "event_id"),
    [
        (ReplayAnchor("tag", "ready"), "evt_c"),
        (ReplayAnchor("tag", "late"), "evt_d"),
        (ReplayAnchor("frame", "frm_1"), "evt_b"),
        (ReplayAnchor("frame", "frm_2"), "evt_d"),
        (ReplayAnchor("event", "evt_a"), "evt_a"),
    ],
)
def test_a_replay_ends_with_the_last_event_at_or_before(until: ReplayAnchor, event_id: str) -> None:
    assert find_until_event(APPROVAL, until).event_id == event_id


@pytest.mark.parametrize("kind", ["tag", "frame", "event"])
def test_an_unknown_anchor_names_its_resource(kind: str) -> None:
    for find in (find_anchor_event, find_until_event):
        with pytest.raises(AnchorUnknown) as caught:
            find(APPROVAL, ReplayAnchor(kind, "absent"))  # type: ignore[arg-type]
        assert caught.value.resource == kind


def test_an_anchor_after_the_last_event_is_unknown() -> None:
    with pytest.raises(AnchorUnknown) as caught:
        find_anchor_event(APPROVAL, ReplayAnchor("tag", "late"))
    assert caught.value.resource == "event"
    with pytest.raises(AnchorUnknown):
        find_until_event(APPROVAL, ReplayAnchor("tag", "early"))


_IDS = st.text("aZ0_é😀", min_size=1, max_size=3)


@given(
    st.lists(st.tuples(st.integers(0, 5), _IDS), min_size=1, unique_by=lambda item: item[1]),
    st.integers(0, 6),
)
def test_anchors_follow_the_order_of_bytes(events: list[tuple[int, str]], t_ms: int) -> None:
    session = make_session(events, tags=[("here", t_ms)])
    places = sorted(events, key=lambda item: (item[0], item[1].encode()))
    later = [position for position in places if position >= (t_ms, "")]
    earlier = [position for position in places if position[0] <= t_ms]
    anchor = ReplayAnchor("tag", "here")
    if later:
        assert find_anchor_event(session, anchor) == EventPosition(*later[0])
    else:
        with pytest.raises(AnchorUnknown):
            find_anchor_event(session, anchor)
    if earlier:
        assert find_until_event(session, anchor) == EventPosition(*earlier[-1])
    else:
        with pytest.raises(AnchorUnknown):
            find_until_event(session, anchor)


def test_frames_before_and_after_a_step_are_never_those_of_its_neighbours() -> None:
    session = make_session(
        [(100, "evt_1"), (200, "evt_2"), (300, "evt_3")],
        frames=[(90, "frm_a"), (100, "frm_b"), (200, "frm_c")],
    )
    bounds = [(step.before, step.after) for step in list_recorded_steps(session)]
    # The frame of 200 ms shows what the first event led to and what the second acted on.
    assert bounds == [(1, 2), (2, None), (2, None)]


def test_announced_effects_are_no_steps() -> None:
    events = [
        {"id": "evt_1", "t_ms": 0, "type": "navigate"},
        {"id": "evt_2", "t_ms": 1, "type": "click", "signals": [{"type": "navigation", "url": "/a"}]},
        {"id": "evt_3", "t_ms": 2, "type": "navigate"},
        {"id": "evt_4", "t_ms": 3, "type": "navigate"},
        {"id": "evt_5", "t_ms": 4, "type": "log"},
    ]
    steps = list_recorded_steps(RecordedSession("ses_1", events, [], []))
    assert [(step.step, step.event["id"]) for step in steps] == [(1, "evt_1"), (2, "evt_2"), (3, "evt_4")]
