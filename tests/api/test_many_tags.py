"""Sessions with many tags: their number has a limit, and none slows a stop or a late tag. Contract §2."""

import random
from typing import Any

import pytest

from recorder import limits
from recorder.recording.outcomes import OutcomeMark, OutcomeRules, last_outcome_mark, outcome_of_mark
from recorder.recording.streams.poll import poll_session_advances
from recorder.replay_service.recordings.recording_reads import read_sessions_with_recordings
from tests.support.completed_work import sealed_session
from tests.support.factories import Caller, assert_problem, stored_rows
from tests.support.query_plans import noted_statements, plan_of
from tests.support.recorded_sessions import execute, session_row
from tests.support.repeated_requests import assert_replayed

MARKS = ["error", "failed", "success", "done", "seen", "captcha"]


def add_tag(caller: Caller, session_id: str, name: str, **body: Any) -> Any:
    """Answer to a new tag."""
    return caller.post(f"/v1/sessions/{session_id}/tags", {"name": name, **body})


def set_tag_count(caller: Caller, session_id: str, count: int) -> None:
    """Let a session have so many tags by its counter."""
    statement = "UPDATE sessions SET tag_count = :count WHERE id = :id"
    execute(caller.service.runtime, statement, count=count, id=session_id)


def test_a_session_takes_so_many_tags_and_no_more(caller: Caller) -> None:
    session_id = caller.make_session()
    set_tag_count(caller, session_id, limits.TAGS_PER_SESSION - 1)
    address, body = f"/v1/sessions/{session_id}/tags", {"name": "seen"}
    last = caller.post(address, body, key="k")
    assert last.status_code == 201
    before = stored_rows(caller.service.runtime)
    problem = assert_problem(caller.post(address, body), 422, "limit_reached")
    assert "10000 tags" in problem["detail"]
    assert_replayed(last, caller.post(address, body, key="k"))
    assert stored_rows(caller.service.runtime) == before
    assert caller.post(f"/v1/sessions/{session_id}/stop").json()["status"] == "stopped"
    assert add_tag(caller, caller.make_session(), "seen").status_code == 201


def test_each_stored_tag_counts_and_a_refused_one_does_not(caller: Caller) -> None:
    session_id = caller.make_session()
    for name in ("seen", "done", "seen"):
        add_tag(caller, session_id, name)
    add_tag(caller, session_id, "seen", event_id="evt_unknown")
    assert session_row(caller.service.runtime, session_id).tag_count == 3


@pytest.mark.parametrize("status", ["recording", "stopped"])
def test_an_outcome_is_found_without_the_rows_of_other_tags(caller: Caller, status: str) -> None:
    session_id = caller.make_session(status=status)
    for number in range(20):
        add_tag(caller, session_id, "seen", t_ms=number, data={"text": "x" * 2_000})
    with noted_statements() as noted:
        if status == "stopped":
            add_tag(caller, session_id, "error")
        else:
            caller.post(f"/v1/sessions/{session_id}/stop")
    ((statement, parameters),) = [(text, values) for text, values in noted if "FROM tags" in text]
    assert "tags.data" not in statement and "LIMIT" in statement
    plan = plan_of(caller.service.runtime.database, statement, parameters)
    assert "ix_tags_session" in plan
    if caller.service.runtime.database.is_sqlite:
        assert "USING COVERING INDEX ix_tags_session" in plan and "B-TREE" not in plan


def test_the_last_mark_of_many_tags_decides(caller: Caller) -> None:
    rng, rules = random.Random(11), OutcomeRules()
    session_id = caller.make_session(status="stopped")
    marks: list[OutcomeMark] = []
    for _ in range(40):
        tag = add_tag(caller, session_id, rng.choice(MARKS), t_ms=rng.randrange(12)).json()
        outcome = rules.of_tag(tag["name"])
        if outcome is not None:
            marks.append(OutcomeMark(tag["t_ms"], tag["id"], outcome, "tag", tag["name"]))
        shown = caller.get(f"/v1/sessions/{session_id}").json()["outcome"]
        assert shown == outcome_of_mark(last_outcome_mark(marks))


def test_a_recording_holds_tags_without_their_data_and_many_are_read_alone(caller: Caller) -> None:
    session_id = sealed_session(caller)
    add_tag(caller, session_id, "captcha", data={"text": "x" * 2_000})
    runtime = caller.service.runtime
    with noted_statements() as noted:
        read = read_sessions_with_recordings(runtime, [session_id])
    assert [tag.name for tag in read.recordings[session_id].tags][-1] == "captcha"
    assert [text for text, _ in noted if "tags.data" in text] == []
    set_tag_count(caller, session_id, 501)
    assert read_sessions_with_recordings(runtime, [session_id]).recordings == {}


def test_a_poll_of_streams_finds_new_tags_by_their_positions(caller: Caller) -> None:
    session_id = caller.make_session(status="stopped")
    tags = [add_tag(caller, session_id, "seen").json()["id"] for _ in range(3)]
    database = caller.service.runtime.database
    position = session_row(caller.service.runtime, session_id).last_position
    with noted_statements() as noted, database.transaction(write=False) as db:
        advance = poll_session_advances(db, {session_id: position - 1})[session_id]
    (segment,) = advance.segments
    (message,) = segment.messages
    assert tags[-1].encode() in message[2]
    ((statement, parameters),) = [(text, values) for text, values in noted if "FROM tags" in text]
    assert "ix_tags_position" in plan_of(database, statement, parameters)
