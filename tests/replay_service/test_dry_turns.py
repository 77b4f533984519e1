"""Turns of workspaces between dry replays: refused ones, and the time of storing, count too."""

from collections import Counter
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from recorder import clock
from recorder.models.replay import ReplayRow
from recorder.replay_service.dry import dry_computation
from recorder.replay_service.dry.dry_computation import DryComputation
from recorder.replay_service.dry.dry_process import DryProcess, DryTask
from recorder.replay_service.recordings.recording_messages import RecordingMessage
from recorder.replays.recorded_session import InvalidRecording
from recorder.replays.replay_policy import ReplayPolicy
from recorder.runtime import Runtime

#: Seconds of a read, of a computation, and of a turn.
READ_S, COMPUTE_S, TURN_S = 0.02, 0.005, 0.5
REFUSED, COMPUTED = "a", "b"


def make_row(workspace_id: str, number: int) -> ReplayRow:
    """Return a dry replay of a session of its own."""
    return ReplayRow(
        id=f"{workspace_id}{number:06}",
        workspace_id=workspace_id,
        mode="live",
        workflow="approve",
        session_id=f"ses_{workspace_id}{number}",
        sandbox="dry",
        kind="full",
        status="queued",
        spec={"against": None},
        input_names=[],
        decisions={},
        created_at=clock.now(),
    )


def make_task(row: ReplayRow) -> DryTask:
    """Return the task of a dry replay."""
    return DryTask(
        blob_url="",
        archive_url=None,
        recording=RecordingMessage(row.session_id, [], [], []),
        against=None,
        mode="full",
        anchor=None,
        until=None,
        policy=ReplayPolicy(),
        input_names=[],
        decisions={},
    )


class Turns:
    """Turns of a drain run with a clock of their own; replays of the first workspace are refused."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 0.0
        #: Outcomes by workspace.
        self.done: Counter[str] = Counter()
        self._numbers = iter(range(1_000_000))
        monkeypatch.setattr(dry_computation, "time", SimpleNamespace(monotonic=lambda: self.now_s))
        monkeypatch.setattr(dry_computation, "read_dry_tasks", self._read)
        process = SimpleNamespace(is_ready=True, start=lambda: None, reply_each=self._reply_each)
        self.computation = DryComputation(cast(Runtime, None), make_process=lambda: cast(DryProcess, process))

    def take(self, count: int, *, store_s: dict[str, float] | None = None) -> None:
        """Take turns; each begins with fifty replays of each workspace."""
        for _ in range(count):
            rows = [make_row(name, next(self._numbers)) for _ in range(50) for name in (REFUSED, COMPUTED)]
            for group in self.computation.replay_each(rows, self.now_s + TURN_S):
                self.done.update(computed.row.workspace_id for computed in group)
                self.now_s += sum((store_s or {}).get(computed.row.workspace_id, 0.0) for computed in group)

    def _read(self, runtime: Any, rows: Sequence[ReplayRow], *, leaves_huge: bool) -> list[Any]:
        """Read as `read_dry_tasks`: a task against a graph comes alone."""
        self.now_s += READ_S
        if rows[0].workspace_id == REFUSED:
            return [InvalidRecording("The session is not in the graph.")]
        together = next((n for n, row in enumerate(rows) if row.workspace_id == REFUSED), len(rows))
        return [make_task(row) for row in rows[:together]]

    def _reply_each(self, tasks: Sequence[DryTask], *, patience_s: float) -> Iterator[InvalidRecording]:
        for _ in tasks:
            self.now_s += COMPUTE_S
            yield InvalidRecording("No event.")


def test_refused_replays_take_turns_by_the_time_for_which_they_were_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    turns = Turns(monkeypatch)
    turns.take(10)
    assert turns.done[COMPUTED] > turns.done[REFUSED] / 2 > 0


def test_the_time_of_storing_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = Turns(monkeypatch)
    turns.take(10, store_s={REFUSED: 0.2})
    assert turns.done[COMPUTED] > 10 * turns.done[REFUSED] > 0
