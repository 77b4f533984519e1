"""Reads of dry replays: a damaged file of one recording does not multiply the reads of the others."""

from collections.abc import Sequence
from typing import Any, cast

import pytest

from recorder.errors import NotFound, Unavailable
from recorder.replay_service.dry import dry_tasks
from recorder.replay_service.dry.dry_tasks import read_dry_tasks
from recorder.replay_service.recordings.recording_reads import SessionsWithRecordings
from recorder.runtime import Runtime
from tests.replay_service.test_dry_turns import make_row


def test_after_a_failed_joint_read_each_recording_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [make_row("a", number) for number in range(20)]
    damaged, reads = rows[-1].session_id, []

    def read(runtime: Any, session_ids: Sequence[str], *, first_only: bool) -> SessionsWithRecordings:
        reads.append(len(session_ids))
        if damaged in session_ids:
            raise Unavailable("The lake")
        return SessionsWithRecordings()

    monkeypatch.setattr(dry_tasks, "read_sessions_with_recordings", read)
    tasks = read_dry_tasks(cast(Runtime, None), rows, leaves_huge=True)
    assert reads == [20, *[1] * 20]
    # The other sessions were deleted.
    assert [type(task) for task in tasks] == [NotFound] * 19 + [Unavailable]
