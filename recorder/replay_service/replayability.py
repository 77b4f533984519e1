"""Replayability of sealed sessions, which a drain run computes beside its replays. Spec §4.6, decision 0044.

The row is the queue: a sealed session waits until `replayability_at` is set, which also means that sessions
of earlier releases wait. Workspaces take turns by the time that they used. A turn takes the newest sessions
of one and a few of its oldest, so that neither waits for all of the others.
"""

import logging
import time
from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from polars.exceptions import PanicException
from sqlalchemy import bindparam, text, update
from sqlmodel import Session as DbSession
from sqlmodel import col, select

from recorder import clock
from recorder.errors import Unavailable
from recorder.models.session import WAITS_FOR_REPLAYABILITY, SessionRow
from recorder.replay_service.dry_process import RecordingMessage
from recorder.replay_service.recording_reads import read_recording, read_sessions_with_recordings
from recorder.replay_service.replayability_process import ReplayabilityProcess, ReplayabilityTask
from recorder.replay_service.workspace_turns import WorkspaceTurns
from recorder.replays.recordings import InvalidRecording
from recorder.runtime import Runtime
from recorder.storage.conditions import in_tenant
from recorder.storage.leases import HeldLease, is_lease_held
from recorder.tenant import Tenant

log = logging.getLogger("recorder.replays")

#: Sessions of a turn; of five, one is among the oldest.
_MOST_SESSIONS, _OLDEST_SHARE = 25, 5
#: Size at which a turn takes no more of them.
_TURN_BYTES, _TURN_FRAMES = 4 * 1024 * 1024, 5_000
#: A turn begins no further session after so long, so that replays wait no longer for its end.
_TURN_S = 0.2
#: While replays wait too, turns begin so far apart, and so many times as far apart as the last one took: a
#: recording that takes long would hold up the replays of all workspaces.
_TURN_EVERY_S, _TURN_PAUSES = 2.0, 4.0
#: After so many failures, so far apart, a session is left without a value.
_MOST_FAILURES, _FAILURE_PAUSE_S = 3, 60.0
#: Pauses after a store did not answer: of the session, and of its workspace.
_SESSION_PAUSE_S, _TENANT_PAUSE_S = 600.0, 10.0
#: Age of the oldest session for which a run is started: sessions that are sealed meanwhile share its start.
_START_AFTER = timedelta(seconds=5)

_TENANT_COLUMNS: tuple[Any, ...] = (
    *(col(SessionRow.workspace_id), col(SessionRow.mode)),
    col(SessionRow.sealed_at),
)
# One workspace and mode after another, each with its oldest session. As expressions, not as columns: SQLite
# then looks both up in the index.
_FIRST_OF_EACH_TENANT = text("""
    WITH RECURSIVE first(id) AS (
        SELECT (
            SELECT id FROM sessions WHERE sealed_at IS NOT NULL AND replayability_at IS NULL
              AND deleted_at IS NULL AND waiting_since IS NULL
            ORDER BY workspace_id, mode, sealed_at LIMIT 1
        )
        UNION ALL
        SELECT (
            SELECT id FROM sessions WHERE sealed_at IS NOT NULL AND replayability_at IS NULL
              AND deleted_at IS NULL AND waiting_since IS NULL
              AND (workspace_id, mode) > (before.workspace_id || '', before.mode || '')
            ORDER BY workspace_id, mode, sealed_at LIMIT 1
        )
        FROM first JOIN sessions AS before ON before.id = first.id
    )
    SELECT sessions.workspace_id, sessions.mode, sessions.sealed_at
    FROM first JOIN sessions ON sessions.id = first.id
    JOIN workspaces ON workspaces.id = sessions.workspace_id AND workspaces.status = 'active'
""").columns(*_TENANT_COLUMNS)


class ReplayabilityWork:
    """Work of one drain run, turn after turn."""

    def __init__(
        self,
        runtime: Runtime,
        process: ReplayabilityProcess | None = None,
        *,
        turn_s: float = _TURN_S,
        turn_pauses: float = _TURN_PAUSES,
        failure_pause_s: float = _FAILURE_PAUSE_S,
    ) -> None:
        """Prepare a run.

        Args:
            runtime: the deployment.
            process: computes the values; by default one of its own.
            turn_s: seconds of a turn; a session that is under way then is computed to its end.
            turn_pauses: while replays wait, a turn is followed by a pause of this many times its duration.
            failure_pause_s: pause of a session after a failure.
        """
        self._runtime = runtime
        self._turn_s = turn_s
        self._turn_pauses = turn_pauses
        self._failure_pause_s = failure_pause_s
        self._process = process or ReplayabilityProcess()
        self._turns = WorkspaceTurns()
        #: Times of this process's monotonic clock until which sessions and workspaces wait for a store.
        self._paused: dict[str, float] = {}
        self._paused_tenants: dict[Tenant, float] = {}
        self._failures: Counter[str] = Counter()
        #: Time of this process's monotonic clock before which no turn begins while replays wait.
        self._next_s = 0.0
        #: Seconds that a session took lately; what a turn reads and does not compute is read again.
        self._session_s = turn_s / _MOST_SESSIONS
        #: Computed sessions, failed attempts, and sessions left without a value after the last of them.
        self.counts: Counter[str] = Counter()

    def end(self) -> None:
        """End the process."""
        self._process.end()

    def take_turn(self, held: HeldLease, *, is_busy: bool = False) -> bool:
        """Compute the values of some sessions of one workspace; return False if none can be computed now.

        Args:
            held: the lease of the run.
            is_busy: whether replays wait too.

        Raises:
            LeaseLost: if another run took over; the values of the turn are computed again.
        """
        began, failures = time.monotonic(), self.counts["failures"]
        if is_busy and began < self._next_s:
            return False
        self._paused = {key: until for key, until in self._paused.items() if until > began}
        with self._runtime.database.transaction(write=False) as db:
            tenant = self._choose_tenant(db, began)
            rows = [] if tenant is None else self._list_waiting(db, tenant)
        if tenant is None or not rows:
            return False
        values = self._compute(rows, began + self._turn_s)
        if values:
            with held.transaction(self._runtime.database) as db:
                _store_replayability(db, values)
        ended = time.monotonic()
        self._next_s = ended + max(_TURN_EVERY_S, self._turn_pauses * (ended - began))
        self._turns.add_time(tenant, ended - began)
        self._session_s = (self._session_s + (ended - began) / max(1, len(values))) / 2
        return bool(values) or self.counts["failures"] > failures

    def _choose_tenant(self, db: DbSession, now_s: float) -> Tenant | None:
        """Return the workspace and mode that used the least time, of those that wait."""
        waiting = [tenant for tenant, _ in _list_waiting_tenants(db)]
        self._turns.set_waiting(waiting)
        ready = [tenant for tenant in waiting if self._paused_tenants.get(tenant, 0.0) <= now_s]
        return self._turns.find_next(ready)

    def _list_waiting(self, db: DbSession, tenant: Tenant) -> list[SessionRow]:
        """Return sessions for one turn: the newest, then some of the oldest, none of those in a pause."""
        most = max(_OLDEST_SHARE, min(_MOST_SESSIONS, int(self._turn_s / self._session_s)))
        oldest_count = most // _OLDEST_SHARE
        waiting = select(SessionRow).where(*in_tenant(SessionRow, tenant), WAITS_FOR_REPLAYABILITY)
        if self._paused:
            waiting = waiting.where(col(SessionRow.id).not_in(self._paused))
        sealed_at, session_id = col(SessionRow.sealed_at), col(SessionRow.id)
        newest = db.exec(waiting.order_by(sealed_at.desc(), session_id.desc()).limit(most)).all()
        oldest = db.exec(waiting.order_by(sealed_at, session_id).limit(oldest_count)).all()
        # The oldest are not last: a turn may end before it comes to all.
        rows = {row.id: row for row in (*newest[:1], *oldest, *newest)}
        chosen: list[SessionRow] = []
        size = frames = 0
        for row in list(rows.values())[:most]:
            size, frames = size + row.event_bytes, frames + row.frame_count
            if chosen and (size > _TURN_BYTES or frames > _TURN_FRAMES):
                break
            chosen.append(row)
        return chosen

    def _compute(self, rows: Sequence[SessionRow], until_s: float) -> dict[str, float | None]:
        """Return the values of the sessions for which the turn had time; a failed one has none yet."""
        values: dict[str, float | None] = {}
        recordings = self._read(rows, values)
        for row in rows:
            if row.id not in recordings:
                continue
            recording = recordings[row.id]
            try:
                values[row.id] = None if recording is None else self._request(recording)
                self.counts["computed"] += 1
            except Unavailable:
                self._pause(row)
            except Exception as error:  # the recording, or a defect of ours: the others go on
                self._count_failure(row, error, values)
            if time.monotonic() > until_s:
                break
        for session_id in values:
            del self._failures[session_id]
        return values

    def _read(
        self, rows: Sequence[SessionRow], values: dict[str, float | None]
    ) -> dict[str, RecordingMessage | None]:
        """Return the recordings that can be read; the rows of one session alone may be damaged."""
        try:
            return _read_recordings(self._runtime, rows)
        except (Unavailable, OSError):
            self._pause(rows[0])
            return {}
        except (Exception, PanicException) as error:
            if len(rows) == 1:
                self._count_failure(rows[0], error, values)
                return {}
        recordings: dict[str, RecordingMessage | None] = {}
        for row in rows:
            recordings |= self._read([row], values)
        return recordings

    def _request(self, recording: RecordingMessage) -> float | None:
        settings = self._runtime.settings
        task = ReplayabilityTask(
            blob_url=settings.blob_url, archive_url=settings.cold_url, recording=recording
        )
        return self._process.compute(task)

    def _pause(self, row: SessionRow) -> None:
        """Let a session and its workspace wait, because a store did not answer."""
        now_s = time.monotonic()
        self._paused[row.id] = now_s + _SESSION_PAUSE_S
        self._paused_tenants[row.tenant] = now_s + _TENANT_PAUSE_S
        log.warning("the replayability of session %s waits: a store does not answer", row.id)

    def _count_failure(self, row: SessionRow, error: BaseException, values: dict[str, float | None]) -> None:
        """Count a failure of a session, which waits then; after the last one it has no value for good."""
        self._failures[row.id] += 1
        self.counts["failures"] += 1
        self._paused[row.id] = time.monotonic() + self._failure_pause_s
        log.warning("the replayability of session %s cannot be computed: %r", row.id, error)
        if self._failures[row.id] >= _MOST_FAILURES:
            log.error("session %s is left without replayability", row.id)
            self.counts["left_out"] += 1
            values[row.id] = None


def has_waiting_sessions(db: DbSession, lease: str) -> bool:
    """Return whether sessions of active workspaces have waited long enough, and no run holds this lease."""
    if is_lease_held(db, lease, now_ms=clock.now_ms()):
        return False
    before = clock.now() - _START_AFTER
    return any(sealed_at <= before for _, sealed_at in _list_waiting_tenants(db))


def _list_waiting_tenants(db: DbSession) -> list[tuple[Tenant, datetime]]:
    """Return each active workspace and mode with waiting sessions, and when its oldest was sealed.

    It costs an index look-up for each, however many sessions wait.
    """
    rows = db.connection().execute(_FIRST_OF_EACH_TENANT)
    return [(Tenant(workspace_id, mode), sealed_at) for workspace_id, mode, sealed_at in rows]


def _store_replayability(db: DbSession, values: dict[str, float | None]) -> None:
    """Store values of sessions that still wait for one."""
    waits = (col(SessionRow.id) == bindparam("session_id"), WAITS_FOR_REPLAYABILITY)
    changed = {"replayability": bindparam("value"), "replayability_at": clock.now()}
    rows = [{"session_id": session_id, "value": value} for session_id, value in values.items()]
    db.connection().execute(update(SessionRow).where(*waits).values(**changed), rows)


class _FramesMissing(Exception):
    """The lake lacks frames of a sealed session."""


def _read_recordings(runtime: Runtime, rows: Sequence[SessionRow]) -> dict[str, RecordingMessage | None]:
    """Return recordings by session; None without snapshots, and for one that is too large to be replayed.

    Raises:
        _FramesMissing: if the lake lacks frames of a session.
        Unavailable: if a store does not answer.
    """
    small = read_sessions_with_recordings(runtime, [row.id for row in rows]).recordings
    recordings: dict[str, RecordingMessage | None] = {}
    for row in rows:
        try:
            recording = small.get(row.id) or read_recording(runtime, row)
        except InvalidRecording:
            recordings[row.id] = None
            continue
        if len(recording.frames) != row.frame_count:
            raise _FramesMissing
        has_snapshots = any(frame.dom_object for frame in recording.frames)
        recordings[row.id] = recording if has_snapshots else None
    return recordings
