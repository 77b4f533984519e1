"""Upload of recordings made elsewhere: the form that importers give them, parallel uploads. Contract §2."""

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ALL_COMPLETED, FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from recorder.client.client import Client
from recorder.client.errors import ApiError, ClientError
from recorder.client.upload_batches import CapturedFrame
from recorder.errors import Invalid
from recorder.number_formats import format_count

#: Two keep both sides of a small machine busy; more wait for the service's rate limit together.
PARALLEL = 4


class UnreadableRecording(Invalid):
    """A file that is not a recording of its format."""


class NothingToImport(Invalid):
    """A path under which there is no recording."""

    def __init__(self, wanted: str) -> None:
        super().__init__(
            f"There are no {wanted} at this path; give a file, a folder, or a folder of folders."
        )


@dataclass(frozen=True, kw_only=True)
class ImportedRecording:
    """One run of a workflow, ready to be uploaded as one session."""

    #: Slug of the workflow.
    workflow: str
    metadata: dict[str, Any]
    #: `{id, kind}`; kind is human, model or script.
    actor: dict[str, str]
    started_at: datetime
    #: Event items as the interface takes them.
    events: list[dict[str, Any]] = field(default_factory=list)
    frames: list[CapturedFrame] = field(default_factory=list)
    #: `{name, data?, t_ms}` each, in order.
    tags: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class RecordingSource:
    """Source of a recording, which is read when it is uploaded, not before."""

    #: Name in reports, such as that of a file.
    name: str
    #: Reads it; raises `UnreadableRecording`.
    read: Callable[[], ImportedRecording]


#: Refusals that every further recording would meet too.
_HOPELESS_STATUS = (401, 403)
_HOPELESS_CODE = ("quota_exceeded",)


@dataclass(frozen=True)
class ImportReport:
    """Counts and failures of an import."""

    sessions: int = 0
    events: int = 0
    frames: int = 0
    #: Name and reason of each recording that was skipped.
    failed: list[tuple[str, str]] = field(default_factory=list)
    seconds: float = 0.0
    #: Ids of the sessions, in no particular order.
    session_ids: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Upload:
    """Result of the upload of one recording: its session, or the reason why there is none."""

    name: str
    session_id: str | None = None
    events: int = 0
    frames: int = 0
    reason: str = ""


def upload_recordings(
    client: Client,
    sources: Iterable[RecordingSource],
    *,
    parallel: int,
    on_done: Callable[[Upload], None],
    in_order: bool = False,
) -> ImportReport:
    """Bring every recording in as one stopped session; those that cannot be read or are refused are skipped.

    At most `2 * parallel` sources are taken ahead and at most `parallel` recordings are in memory, so the
    number of sources does not matter.

    Args:
        client: connection to the service.
        sources: the recordings to upload.
        parallel: how many sessions are uploaded at a time.
        on_done: called in this thread after each recording.
        in_order: stop the sessions, and so seal them, in the order of their sources.

    Raises:
        ApiError, Unreachable: if no further recording could succeed either; the sessions before stay. Notes
            of the error, as of any other, count these sessions, and name those that are not finished.
    """
    uploads, turns = _Uploads(client, on_done), _UploadOrder() if in_order else None
    with ThreadPoolExecutor(parallel, thread_name_prefix="upload") as pool:
        try:
            for number, source in enumerate(sources):
                turn = _UploadTurn(turns, number)
                uploads.pending.add(pool.submit(uploads.upload, source, turn))
                if len(uploads.pending) >= 2 * parallel:
                    uploads.collect(FIRST_COMPLETED)
            uploads.collect(ALL_COMPLETED)
        except BaseException as error:
            pool.shutdown(cancel_futures=True)
            uploads.add_notes(error)
            raise
    return uploads.report


class _Uploads:
    """Uploads under way, and the counts of those that ended."""

    def __init__(self, client: Client, on_done: Callable[[Upload], None]) -> None:
        self._client = client
        self._on_done = on_done
        #: Sessions that were created, but are neither stopped nor deleted.
        self._unfinished: set[str] = set()
        self.pending: set[Future[Upload]] = set()
        self.report = ImportReport()

    def upload(self, source: RecordingSource, turn: "_UploadTurn") -> Upload:
        """Upload a recording; runs in a thread of the pool."""
        try:
            return _upload_recording(self._client, source, turn, self._unfinished)
        finally:
            turn.finish()

    def collect(self, return_when: str) -> None:
        """Wait for uploads, and count those that ended; raise the error of one that failed."""
        for future in wait(self.pending, return_when=return_when).done:
            self.pending.remove(future)
            self._count_upload(future.result())

    def add_notes(self, error: BaseException) -> None:
        """Count the other uploads, which have ended, and note on an error what stays of the import."""
        for future in self.pending:
            if not future.cancelled() and future.exception() is None:
                self._count_upload(future.result())
        report = self.report
        if report.sessions:
            records = f"{format_count(report.events, 'event')}, {format_count(report.frames, 'frame')}"
            sessions = format_count(report.sessions, "session")
            error.add_note(f"Imported before: {sessions}, {records}. The same import would repeat them.")
        if self._unfinished:
            ids = ", ".join(sorted(self._unfinished))
            error.add_note(f"Not finished, to be deleted by DELETE /v1/sessions/ID: {ids}.")

    def _count_upload(self, upload: Upload) -> None:
        self._on_done(upload)
        if upload.session_id is None:
            self.report.failed.append((upload.name, upload.reason))
            return
        self.report.session_ids.append(upload.session_id)
        self.report = replace(
            self.report,
            sessions=self.report.sessions + 1,
            events=self.report.events + upload.events,
            frames=self.report.frames + upload.frames,
        )


class _UploadOrder:
    """Order in which uploads are finished: each waits until all before it are."""

    def __init__(self) -> None:
        self._next = 0
        self._finished: set[int] = set()
        self._changed = threading.Condition()

    def wait_for(self, number: int) -> None:
        """Wait until all uploads before this one are finished."""
        with self._changed:
            self._changed.wait_for(lambda: self._next >= number)

    def finish(self, number: int) -> None:
        """Mark an upload as finished, and wake the uploads that wait for it."""
        with self._changed:
            self._finished.add(number)
            while self._next in self._finished:
                self._finished.remove(self._next)
                self._next += 1
            self._changed.notify_all()


@dataclass(frozen=True)
class _UploadTurn:
    """Turn of one upload; without an order it comes at once."""

    turns: _UploadOrder | None
    number: int

    def wait(self) -> None:
        """Wait until the sessions before it were stopped."""
        if self.turns is not None:
            self.turns.wait_for(self.number)

    def finish(self) -> None:
        """End the turn, however the upload ended."""
        if self.turns is not None:
            self.turns.finish(self.number)


def _upload_recording(
    client: Client, source: RecordingSource, turn: _UploadTurn, unfinished: set[str]
) -> Upload:
    """Upload a recording; its session is in `unfinished` until it is stopped or deleted."""
    try:
        recording = source.read()
    except UnreadableRecording as error:
        return Upload(source.name, reason=str(error))
    session_id = None
    try:
        session = client.create_session(
            recording.workflow,
            metadata=recording.metadata,
            actor=recording.actor,
            start=True,
            started_at=recording.started_at,
        )
        session_id = session["id"]
        unfinished.add(session_id)
        client.add_frames(session_id, recording.frames)
        client.add_events(session_id, recording.events)
        for tag in recording.tags:
            client.tag(session_id, tag["name"], data=tag.get("data"), t_ms=tag.get("t_ms"))
        turn.wait()
        client.stop(session_id)
    except ApiError as error:
        reason = str(error)
        if session_id is not None and not _delete_partial_session(client, session_id):
            reason += f" {session_id} is incomplete; delete it."
        elif session_id is not None:
            unfinished.discard(session_id)
        if _is_permanent_upload_error(error):
            raise
        return Upload(source.name, reason=reason)
    unfinished.discard(session_id)
    return Upload(source.name, session_id, len(recording.events), len(recording.frames))


def _delete_partial_session(client: Client, session_id: str) -> bool:
    """Delete what was begun, since half a session would count as an abandoned run; return whether it is."""
    try:
        client.delete_session(session_id)
    except ClientError:
        return False
    return True


def _is_permanent_upload_error(error: ApiError) -> bool:
    """Return whether an upload would fail again with the same error, for example for a missing scope."""
    return error.status in _HOPELESS_STATUS or error.code in _HOPELESS_CODE
