"""Tasks of dry replays: what the process that computes them needs, read for several replays together."""

import logging
import time
from collections.abc import Sequence
from typing import Any

from recorder.errors import NotFound, Unavailable
from recorder.models.replay import ReplayRow
from recorder.models.session import SessionRow
from recorder.replay_service.dry.dry_process import (
    DryTask,
    GraphMessage,
    StartMessage,
)
from recorder.replay_service.dry.graph_evidence import read_graph_evidence
from recorder.replay_service.dry.process_replies import ReplayNotComputed
from recorder.replay_service.recordings.recording_messages import RecordingMessage
from recorder.replay_service.recordings.recording_reads import (
    SessionsWithRecordings,
    is_huge_recording,
    is_small_session,
    read_recording,
    read_sessions_with_recordings,
)
from recorder.replays.recorded_session import InvalidRecording
from recorder.replays.replay_policy import ReplayPolicy
from recorder.replays.replay_range import ReplayAnchor
from recorder.replays.replay_results import Decision
from recorder.runtime import Runtime
from recorder.tenant import Tenant

log = logging.getLogger("recorder.replays")

#: Replays that are read one by one after a failed joint read: no further one after so many seconds, or after
#: so many events and frames.
_ALONE_S, _ALONE_SIZE = 1.0, 2_000
#: Why a replay has no task: a session is too large or not in the graph, deleted, or in a store that does not
#: answer; else a defect of the service.
Refusal = InvalidRecording | NotFound | Unavailable | ReplayNotComputed


class HugeTask:
    """A task that was not read, because others would wait for it."""


def read_dry_tasks(
    runtime: Runtime, rows: Sequence[ReplayRow], *, leaves_huge: bool
) -> list[DryTask | Refusal | HugeTask]:
    """Return the tasks of the first replays, at least of one, or the reasons why they have none.

    Small recordings are read together, as many as memory holds well. A large one, or a graph, comes alone.

    Args:
        runtime: the deployment.
        rows: the replays.
        leaves_huge: return `HugeTask` for tasks that take seconds to read.
    """
    named = [id for row in rows for id in (row.session_id, row.against_session_id) if id is not None]
    try:
        sessions = read_sessions_with_recordings(runtime, list(dict.fromkeys(named)), first_only=True)
    except Exception as error:
        if len(rows) == 1:
            return [_make_dry_task_refusal(rows[0], error)]
        # A store, or a damaged file of one of them.
        return _read_dry_tasks_alone(runtime, rows, leaves_huge=leaves_huge)
    tasks: list[DryTask | Refusal | HugeTask] = []
    for row in rows:
        of_task = [
            sessions.rows[id] for id in (row.session_id, row.against_session_id) if id in sessions.rows
        ]
        if leaves_huge and any(map(is_huge_recording, of_task)):
            tasks.append(HugeTask())
            continue
        against = row.spec["against"] or {}
        is_large = not all(map(is_small_session, of_task)) or bool({"graph", "path_id"} & against.keys())
        is_read = all(session.id in sessions.recordings for session in of_task)
        if tasks and (is_large or not is_read):
            break
        try:
            tasks.append(_make_dry_task(runtime, sessions, row))
        except Exception as error:
            tasks.append(_make_dry_task_refusal(row, error))
        if is_large:
            break
    return tasks


def _read_dry_tasks_alone(
    runtime: Runtime, rows: Sequence[ReplayRow], *, leaves_huge: bool
) -> list[DryTask | Refusal | HugeTask]:
    """Return the tasks of the first replays, each read alone, until memory or a time is used up."""
    tasks: list[DryTask | Refusal | HugeTask] = []
    until_s, size = time.monotonic() + _ALONE_S, 0
    for row in rows:
        (task,) = read_dry_tasks(runtime, [row], leaves_huge=leaves_huge)
        tasks.append(task)
        if isinstance(task, DryTask):
            size += len(task.recording.events) + len(task.recording.frames)
        if size > _ALONE_SIZE or time.monotonic() > until_s:
            break
    return tasks


def _make_dry_task_refusal(row: ReplayRow, error: Exception) -> Refusal:
    if isinstance(error, Refusal):
        return error
    log.error("replay %s", row.id, exc_info=error)  # a defect of the service, or damaged files
    return ReplayNotComputed(type(error).__name__)


def _make_dry_task(runtime: Runtime, sessions: SessionsWithRecordings, row: ReplayRow) -> DryTask:
    """Return the task of a dry replay.

    Raises:
        InvalidRecording: if a session is too large to be replayed, or not in the graph that it is compared
            with.
        NotFound: if a session was deleted.
        Unavailable: if a store does not answer.
    """
    against, start = row.spec["against"] or {}, row.spec.get("start")
    compared: RecordingMessage | GraphMessage | None = None
    session = _find_task_session(sessions, row.tenant, row.session_id)
    other = None
    if row.against_session_id is not None:
        other = _read_task_recording(
            runtime, sessions, _find_task_session(sessions, row.tenant, row.against_session_id)
        )
    if "path_id" in against or "graph" in against:
        with runtime.database.transaction(write=False) as db:
            compared = read_graph_evidence(db, runtime, session, against.get("path_id"))
    return DryTask(
        blob_url=runtime.settings.blob_url,
        archive_url=runtime.settings.cold_url,
        recording=_read_task_recording(runtime, sessions, session),
        against=other if start is None and other is not None else compared,
        start=None if start is None or other is None else StartMessage(other, start["event_id"]),
        mode=row.kind,  # type: ignore[arg-type]
        anchor=find_replay_anchor(row),
        until=make_anchor(row.spec["until"]),
        policy=make_task_policy(row),
        input_names=row.input_names,
        decisions={int(step): Decision(**decision) for step, decision in row.decisions.items()},
    )


def _find_task_session(sessions: SessionsWithRecordings, tenant: Tenant, session_id: str) -> SessionRow:
    session = sessions.rows.get(session_id)
    if session is None or session.tenant != tenant:
        raise NotFound("session")
    return session


def _read_task_recording(
    runtime: Runtime, sessions: SessionsWithRecordings, session: SessionRow
) -> RecordingMessage:
    return sessions.recordings.get(session.id) or read_recording(runtime, session)


def needs_anchor_search(row: ReplayRow) -> bool:
    """Return whether a replay begins at the best candidate of its session, and that is not known yet."""
    return "auto" in (row.spec["anchor"] or {}) and row.anchor_event is None


def find_replay_anchor(row: ReplayRow) -> ReplayAnchor | None:
    """Return the event that the request was answered with: a later tag of the same name moves no anchor."""
    if row.anchor_event is None:
        return make_anchor(row.spec["anchor"])
    return ReplayAnchor("event", row.anchor_event["event_id"])


def find_task_anchor_event(task: DryTask) -> dict[str, Any] | None:
    """Return the event of an anchor that names one; None without such an anchor or event."""
    if task.anchor is None or task.anchor.kind != "event":
        return None
    name = task.anchor.name
    times = (event.t_ms for event in task.recording.events if event.id == name)
    return next(({"event_id": name, "t_ms": t_ms} for t_ms in times), None)


def make_anchor(position: dict[str, str] | None) -> ReplayAnchor | None:
    """Return a position as a replay's request has it, as an anchor."""
    if position is None:
        return None
    ((member, name),) = position.items()
    return ReplayAnchor(member.removesuffix("_id"), name)  # type: ignore[arg-type]


def make_task_policy(row: ReplayRow) -> ReplayPolicy:
    """Return the policy of a replay."""
    sent = dict(row.spec["policy"])
    thresholds, viewport = sent.pop("thresholds"), sent.pop("viewport")
    return ReplayPolicy(
        **sent
        | {"allow_hosts": tuple(sent["allow_hosts"] or ()), "viewport": (viewport["w"], viewport["h"])},
        **thresholds,
    )
