"""Results of dry replays that are asked for again. Spec §4.6."""

from collections.abc import Sequence
from typing import Any

import pytest
from sqlmodel import Session as DbSession
from sqlmodel import select

from recorder.models.operations import OutboxRow
from recorder.models.replay import ReplayRow, ReplayStepRow
from recorder.replay_service.dry.result_cache import CopiedResults, copy_cached_results
from tests.support.factories import Caller
from tests.support.replay_requests import post_replay
from tests.support.sealing import seal_all
from tests.support.two_click_sessions import OTHER, click, replay_all, sealed_run


def read_keys(caller: Caller, *replay_ids: str) -> list[bool]:
    """Return for each replay whether it keeps a result."""
    with caller.service.runtime.database.transaction(write=False) as db:
        return [db.get_one(ReplayRow, replay_id).result_key is not None for replay_id in replay_ids]


def read_result(caller: Caller, replay_id: str) -> dict[str, Any]:
    """Return the result of a replay, with its steps."""
    shown = caller.get(f"/v1/replays/{replay_id}").json()
    names = ("status", "summary", "divergence", "progress", "anchor_event", "error")
    steps = caller.get(f"/v1/replays/{replay_id}/steps").json()["data"]
    return {name: shown[name] for name in names} | {"steps": steps}


def replayed(caller: Caller, session_id: str, **members: Any) -> str:
    """Return the id of a replay that ended."""
    replay_id = str(post_replay(caller, session_id, **members)["id"])
    replay_all(caller)
    return replay_id


def test_a_replay_that_is_asked_for_again_copies_the_result(caller: Caller) -> None:
    session_id, other = sealed_run(caller), sealed_run(caller, first=OTHER)
    for members in (
        {"mode": "partial", "anchor": {"tag": "ready"}, "inputs": {"pin": "hush"}},
        {"against": {"session_id": other}},
    ):
        first, again = replayed(caller, session_id, **members), replayed(caller, session_id, **members)
        assert read_keys(caller, first, again) == [True, False]
        assert read_result(caller, again) == read_result(caller, first)
        with caller.service.runtime.database.transaction(write=False) as db:
            sent = db.exec(select(OutboxRow.type).where(OutboxRow.subject_id == again)).all()
            assert db.get_one(ReplayRow, again).input_values is None
        assert sorted(sent)[1:] == ["replay.queued", "replay.running"] and len(sent) == 3
    # The result goes with either session.
    assert read_result(caller, again)["status"] == "diverged"
    admin = caller.service.make_caller(workspace_id=caller.key.workspace_id, scope="admin")
    assert admin.delete(f"/v1/sessions/{other}?hard=true").status_code == 204
    with caller.service.runtime.database.transaction(write=False) as db:
        for replay_id in (first, again):
            assert db.get(ReplayRow, replay_id) is None
            assert not db.exec(select(ReplayStepRow).where(ReplayStepRow.replay_id == replay_id)).all()


def test_one_transaction_copies_a_bounded_number_of_steps(
    caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    session_id = sealed_run(caller)
    first = replayed(caller, session_id)
    copied: list[int] = []

    def copy(db: DbSession, rows: Sequence[ReplayRow]) -> CopiedResults:
        # Each result has two steps: with a limit of five, two results fit.
        results = copy_cached_results(db, rows, most_steps=5)
        copied.append(len(results.ended))
        return results

    monkeypatch.setattr("recorder.replay_service.replay_drain_run.copy_cached_results", copy)
    again = [str(post_replay(caller, session_id)["id"]) for _ in range(5)]
    replay_all(caller)
    assert [count for count in copied if count] == [2, 2, 1]
    assert read_keys(caller, *again) == [False] * 5
    assert all(read_result(caller, each) == read_result(caller, first) for each in again)


def test_another_request_or_session_is_computed(caller: Caller) -> None:
    session_id = sealed_run(caller)
    requests: list[dict[str, Any]] = [
        {},
        {"policy": {"thresholds": {"ok": 0.8}}},
        {"inputs": {"pin": "hush"}},
        {"until": {"tag": "ready"}},
    ]
    made = [replayed(caller, session_id, **members) for members in requests]
    assert caller.post(f"/v1/sessions/{session_id}/tags", {"name": "ready", "t_ms": 350}).status_code == 201
    made.append(replayed(caller, session_id, until={"tag": "ready"}))
    assert read_keys(caller, *made) == [True] * 5
    assert [len(read_result(caller, replay_id)["steps"]) for replay_id in made] == [2, 2, 2, 1, 2]
    made = [
        replayed(caller, session_id, against={"graph": True}),
        str(post_replay(caller, session_id, mode="guided")["id"]),
    ]
    replay_all(caller)
    assert read_keys(caller, *made) == [False, False]


def test_a_later_tag_moves_no_anchor_that_was_answered(caller: Caller) -> None:
    session_id = caller.make_session(workflow="approve")
    clicks = [click(t_ms, "Open") for t_ms in (100, 200, 300)]
    assert caller.add_events(session_id, *clicks).status_code == 202
    assert caller.post(f"/v1/sessions/{session_id}/tags", {"name": "ready", "t_ms": 150}).status_code == 201
    assert caller.post(f"/v1/sessions/{session_id}/stop").status_code == 200
    seal_all(caller.service.runtime)
    partial: dict[str, Any] = {"mode": "partial", "anchor": {"tag": "ready"}}
    early = post_replay(caller, session_id, **partial)
    assert caller.post(f"/v1/sessions/{session_id}/tags", {"name": "ready", "t_ms": 250}).status_code == 201
    late = post_replay(caller, session_id, **partial)
    replay_all(caller)
    for made, count in ((early, 2), (late, 1)):
        result = read_result(caller, made["id"])
        assert result["anchor_event"] == made["anchor_event"]
        assert len(result["steps"]) == count
        assert result["steps"][0]["event_id"] == made["anchor_event"]["event_id"]
