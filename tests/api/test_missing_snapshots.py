"""Dry replays of sessions whose stored snapshots are missing or damaged: they wait and fail. Contract §8."""

from collections.abc import Callable
from pathlib import Path

import pytest

from recorder.replay_service.replay_drain_run import ReplayDrainRun
from recorder.replay_service.scheduling.store_pauses import StorePauses
from tests.support.factories import Caller
from tests.support.replay_requests import get_replay, post_replay
from tests.support.two_click_sessions import OTHER, replay_all, sealed_run


def find_object(caller: Caller, session_id: str) -> Path:
    """Return the stored object with the pictures and snapshots of a session."""
    folder = Path(caller.service.runtime.settings.blob_url)
    (stored,) = folder.glob(f"frames/{caller.key.workspace_id}/{session_id}/*.pack")
    return stored


@pytest.mark.parametrize(
    "damage",
    [
        Path.unlink,
        lambda file: file.write_bytes(b"\0" * file.stat().st_size),
        lambda file: file.write_bytes(file.read_bytes()[:40]),
        lambda file: file.write_bytes(file.read_bytes().replace(b"\x28\xb5\x2f\xfd", b"\x28\xb5\x2f\xfe")),
    ],
    ids=["missing", "zeros", "cut", "no-zstandard"],
)
def test_a_replay_without_its_snapshots_waits_for_them(
    caller: Caller, damage: Callable[[Path], object]
) -> None:
    session_id = sealed_run(caller, first=OTHER)
    made = post_replay(caller, session_id)
    stored = find_object(caller, session_id)
    content = stored.read_bytes()
    damage(stored)
    run = ReplayDrainRun(caller.service.runtime, "tests")
    assert run.take() and run.work_on_due_replays()
    run.release()
    assert get_replay(caller, made["id"])["status"] == "running"
    stored.write_bytes(content)
    replay_all(caller)
    shown = get_replay(caller, made["id"])
    assert (shown["status"], shown["divergence"]["kind"]) == ("diverged", "target_missing")


def test_a_replay_whose_snapshots_stay_missing_fails(caller: Caller) -> None:
    session_id = sealed_run(caller)
    made, again = post_replay(caller, session_id), post_replay(caller, session_id)
    find_object(caller, session_id).unlink()
    now_s = 0.0
    run = ReplayDrainRun(caller.service.runtime, "tests", pauses=StorePauses(read_clock=lambda: now_s))
    assert run.take() and run.work_on_due_replays()
    now_s = 660.0
    assert run.work_on_due_replays()
    run.release()
    for replay_id in (made["id"], again["id"]):
        shown = get_replay(caller, replay_id)
        assert (shown["status"], shown["error"]["type"], shown["summary"]) == ("failed", "internal", None)
        assert "a stored file was missing or damaged" in shown["error"]["message"]
