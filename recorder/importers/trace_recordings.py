"""Recordings made from the traces of event logs: a session for each trace. Decision 0022.

- Every event has the type `activity`; the activity is its `data.name` and its `state_key`, so each activity
  is one node of the memory graph and two are never one. Its other attributes are in `data.attributes`.
- `t_ms` counts from the trace's first event, whose instant is the session's beginning, in whole milliseconds.
- The case and what is known of it are in `metadata`: `case`, `log`, `attributes`. What does not fit is left
  out and counted in `left_out`.
- The actor is the resource that did everything, if there is one, else the script that wrote the log.
"""

import re
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import IO, Any, Literal

import orjson
from rich.console import Console

from recorder import clock
from recorder.client.client import Client
from recorder.errors import ValidationFailed
from recorder.importers.import_progress import show_import_progress
from recorder.importers.upload import (
    PARALLEL,
    ImportedRecording,
    ImportReport,
    RecordingSource,
    upload_recordings,
)
from recorder.interchange.event_logs import (
    ACTIVITY_TYPE,
    Attributes,
    LogEvent,
    LogTrace,
    UnreadableLog,
    event_log_name,
)
from recorder.interchange.xes_reader import ACTIVITY, RESOURCE, SUFFIXES, read_xes_traces
from recorder.limits import ACTOR_ID_CHARACTERS, EVENT_BYTES, METADATA_BYTES, T_MS_MAX, WORKFLOW_PATTERN

#: Beginning of sessions whose trace has no instant at all.
UNDATED = datetime(1970, 1, 1, tzinfo=UTC)
SCRIPT = {"id": "event_log", "kind": "script"}
MOST_ACTIVITY_BYTES = 1024
# Room for what stands beside the attributes.
_EVENT_ROOM = EVENT_BYTES - 4 * MOST_ACTIVITY_BYTES
_METADATA_ROOM = METADATA_BYTES - 4 * MOST_ACTIVITY_BYTES


@dataclass(frozen=True, slots=True)
class TraceOutcomeRule:
    """Rule for a trace's outcome: an attribute of it, or of one of its events, has a certain value."""

    key: str
    value: str
    outcome: Literal["success", "error"]

    def matches(self, attributes: Attributes) -> bool:
        """Return whether the attribute is present and has the value."""
        value = attributes.get(self.key)
        if isinstance(value, dict):
            value = value.get("value")
        if isinstance(value, bool):
            value = str(value).lower()  # as XES writes it
        return value is not None and str(value) == self.value


def parse_outcome_rules(success: Sequence[str], error: Sequence[str]) -> list[TraceOutcomeRule]:
    """Parse rules that are written as `attribute=value`.

    Raises:
        ValueError: if one is not written so.
    """
    written = [(pair, "success") for pair in success] + [(pair, "error") for pair in error]
    rules = []
    for pair, outcome in written:
        key, separator, value = pair.partition("=")
        if not key or not separator:
            raise ValueError("takes ATTRIBUTE=VALUE, such as concept:name=approved")
        rules.append(TraceOutcomeRule(key, value, "success" if outcome == "success" else "error"))
    return rules


def recording_of_trace(
    trace: LogTrace, *, log: str, workflow: str, rules: Sequence[TraceOutcomeRule] = ()
) -> ImportedRecording:
    """Return the session that a trace becomes.

    Args:
        trace: the trace.
        log: name of the log's file.
        workflow: workflow of the session.
        rules: of all events and attributes that match one, the last decides; the trace's own are last.

    Raises:
        UnreadableLog: if a session cannot hold it.
    """
    began = next((event.time for event in trace.events if event.time is not None), None) or UNDATED
    started_at = clock.truncate_to_ms(began)
    times = [_compute_elapsed_ms(event, started_at, log) for event in trace.events]
    named = trace.name.encode()[:MOST_ACTIVITY_BYTES].decode(errors="ignore")
    return ImportedRecording(
        workflow=workflow,
        metadata={
            "case": named,
            "log": log[:255],
            **_select_fitting_attributes(trace.attributes, _METADATA_ROOM),
        },
        actor=_make_trace_actor(trace),
        started_at=started_at,
        events=[
            _convert_log_event(event, t_ms, log) for event, t_ms in zip(trace.events, times, strict=True)
        ],
        tags=_make_trace_tags(trace, times, rules),
    )


def _compute_elapsed_ms(event: LogEvent, started_at: datetime, log: str) -> int:
    if event.time is None:
        return 0
    elapsed = clock.to_ms(event.time) - clock.to_ms(started_at)
    if elapsed > T_MS_MAX:
        raise UnreadableLog(log, event.line, f"is more than {T_MS_MAX:,} ms after its trace's first event")
    return elapsed


def _convert_log_event(event: LogEvent, t_ms: int, log: str) -> dict[str, Any]:
    if len(event.activity.encode()) > MOST_ACTIVITY_BYTES:
        what = f"an activity's name of more than {MOST_ACTIVITY_BYTES:,} bytes"
        raise UnreadableLog(log, event.line, what)
    return {
        "t_ms": t_ms,
        "type": ACTIVITY_TYPE,
        "state_key": event.activity,
        "data": {"name": event.activity, **_select_fitting_attributes(event.attributes, _EVENT_ROOM)},
    }


def _select_fitting_attributes(attributes: Attributes, room: int) -> dict[str, Any]:
    """Return as many attributes as fit into `room` bytes of JSON; `left_out` counts the others."""
    fitting: Attributes = {}
    for key, value in attributes.items():
        plain = _convert_trace_value(value)
        size = len(orjson.dumps({key: plain}))
        if size <= room:
            fitting[key] = plain
            room -= size
    left_out = len(attributes) - len(fitting)
    return {"attributes": fitting, **({"left_out": left_out} if left_out else {})}


def _convert_trace_value(value: Any) -> Any:
    if isinstance(value, datetime):
        return clock.to_iso(value)
    if isinstance(value, dict):
        return {key: _convert_trace_value(inner) for key, inner in value.items()}
    return [_convert_trace_value(inner) for inner in value] if isinstance(value, list) else value


def _make_trace_actor(trace: LogTrace) -> dict[str, str]:
    resources = {str(event.attributes.get(RESOURCE) or "") for event in trace.events}
    if len(resources) != 1:
        return SCRIPT
    (only,) = resources
    return {"id": only, "kind": "human"} if 1 <= len(only) <= ACTOR_ID_CHARACTERS else SCRIPT


def _make_trace_tags(
    trace: LogTrace, times: list[int], rules: Sequence[TraceOutcomeRule]
) -> list[dict[str, Any]]:
    """Return the tag of the outcome, at the moment that decides it."""
    decided: list[dict[str, Any]] = []
    for event, t_ms in zip(trace.events, times, strict=True):
        values = {ACTIVITY: event.activity, **event.attributes}
        decided += [{"name": rule.outcome, "t_ms": t_ms} for rule in rules if rule.matches(values)]
    end = times[-1] if times else 0
    decided += [{"name": rule.outcome, "t_ms": end} for rule in rules if rule.matches(trace.attributes)]
    return decided[-1:]


@dataclass(frozen=True, kw_only=True)
class LogImport:
    """Options for reading a log."""

    path: Path
    workflow: str
    #: Keys of the attributes that name an activity.
    activity: Sequence[str] = (ACTIVITY,)
    rules: Sequence[TraceOutcomeRule] = ()

    def recordings(self) -> Iterator[ImportedRecording]:
        """Yield the session of each trace, in the file's order.

        Raises:
            UnreadableLog: if the file is no log, or holds what no session can.
        """
        for trace in read_xes_traces(self.path, activity=self.activity):
            yield recording_of_trace(trace, log=self.path.name, workflow=self.workflow, rules=self.rules)

    @contextmanager
    def spooled(self) -> Iterator["RecordingSpool"]:
        """Read the whole log into a temporary file, from which its sessions are read in another order.

        Raises:
            UnreadableLog: if the file is no log, or holds what no session can.
        """
        with tempfile.TemporaryFile() as file:
            spool = RecordingSpool(file)
            for recording in self.recordings():
                spool.add(recording)
            yield spool


class RecordingSpool:
    """Recordings in a file, by the instants at which they began."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._lock = file, threading.Lock()
        #: Start, name, offset and size of each.
        self._entries: list[tuple[datetime, str, int, int]] = []

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, recording: ImportedRecording) -> None:
        """Append a recording that has neither frames nor bytes."""
        packed = orjson.dumps(asdict(recording))
        name = f"{recording.metadata['log']}: {recording.metadata['case']}"
        self._entries.append((recording.started_at, name, self._file.tell(), len(packed)))
        self._file.write(packed)

    def sources(self) -> Iterator[RecordingSource]:
        """Yield the recordings as sources of an upload, the earliest first; equal ones in the log's order."""
        for _, name, offset, size in sorted(self._entries, key=itemgetter(0)):
            yield RecordingSource(name, partial(self._read_recording, offset, size))

    def _read_recording(self, offset: int, size: int) -> ImportedRecording:
        with self._lock:
            self._file.seek(offset)
            members = orjson.loads(self._file.read(size))
        return ImportedRecording(**{**members, "started_at": datetime.fromisoformat(members["started_at"])})


def is_log(path: Path) -> bool:
    """Return whether a path is a log's, by its name."""
    return path.is_file() and path.name.lower().endswith(SUFFIXES)


def import_xes_log(
    path: Path,
    *,
    url: str,
    key: str,
    workflow: str | None = None,
    workflow_prefix: str = "",
    activity: Sequence[str] = (ACTIVITY,),
    rules: Sequence[TraceOutcomeRule] = (),
    parallel: int = PARALLEL,
    progress: bool = True,
) -> ImportReport:
    """Upload every trace of a log, each as one session, all of one workflow.

    The whole file is read before the first session is made: what is broken anywhere brings nothing in. The
    sessions are stopped, and so sealed, in the order in which their traces began. A
    trace that the service refuses is named on stderr and skipped. Importing twice brings every trace in
    twice.

    Args:
        path: the file.
        url: address of the service.
        key: an API key.
        workflow: the workflow; without one, the log's name is made one.
        workflow_prefix: put before the log's name.
        activity: keys of the attributes that name an event's activity.
        rules: which traces ended well, and which did not.
        parallel: number of uploads at the same time.
        progress: whether to show a progress bar on stderr.

    Raises:
        UnreadableLog: if the file is no log, or holds what no session can.
        ValidationFailed: if the workflow is no slug.
        ApiError, Unreachable: if the service cannot be worked with at all.
    """
    slug = workflow or re.sub(r"[^a-z0-9_]", "_", f"{workflow_prefix}{event_log_name(path)}".lower())
    if not re.fullmatch(WORKFLOW_PATTERN.strip("^$"), slug):
        text = (
            "Takes 2 to 64 characters: lower-case letters, digits and underscores, as in approve_invoice; "
            "name one with --workflow."
        )
        raise ValidationFailed.of("workflow", "invalid_value", message=text, where="query")
    wanted = LogImport(path=path, workflow=slug, activity=tuple(activity), rules=tuple(rules))
    began = time.monotonic()
    with ExitStack() as stack:
        with Console(stderr=True, quiet=not progress).status(f"Reading {path.name} …"):
            spool = stack.enter_context(wanted.spooled())
        client = stack.enter_context(Client(url, key))
        on_done = stack.enter_context(show_import_progress(len(spool), progress))
        sources = spool.sources()
        report = upload_recordings(client, sources, parallel=parallel, on_done=on_done, in_order=True)
    return replace(report, seconds=round(time.monotonic() - began, 3))
