"""Importing an event log: read once to see that it is whole, then sent trace by trace. Contract §9."""

import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from rich.console import Console

from recorder.client.client import Client
from recorder.errors import ValidationFailed
from recorder.importers.folder import PARALLEL, shown_progress
from recorder.importers.recording import Recording, Source
from recorder.importers.upload import ImportReport, upload_recordings
from recorder.importers.xes.recording import OutcomeRule, trace_recording
from recorder.interchange.logs import log_name
from recorder.interchange.xes.reading import ACTIVITY, SUFFIXES, read_traces
from recorder.limits import WORKFLOW_PATTERN


@dataclass(frozen=True, kw_only=True)
class LogImport:
    """How a log is understood."""

    path: Path
    workflow: str
    #: Keys of the attributes that name an activity.
    activity: Sequence[str] = (ACTIVITY,)
    rules: Sequence[OutcomeRule] = ()

    def recordings(self) -> Iterator[Recording]:
        """The session of each trace, in the file's order.

        Raises:
            UnreadableLog: if the file is no log, or holds what no session can.
        """
        for trace in read_traces(self.path, activity=self.activity):
            yield trace_recording(trace, log=self.path.name, workflow=self.workflow, rules=self.rules)

    def sources(self) -> Iterator[Source]:
        """The same, as an upload takes them."""
        for recording in self.recordings():
            yield Source(f"{self.path.name}: {recording.metadata['case']}", partial(_given, recording))


def _given(recording: Recording) -> Recording:
    return recording


def is_log(path: Path) -> bool:
    """Whether a path is a log's, by its name."""
    return path.is_file() and path.name.lower().endswith(SUFFIXES)


def import_log(
    path: Path,
    *,
    url: str,
    key: str,
    workflow: str | None = None,
    workflow_prefix: str = "",
    activity: Sequence[str] = (ACTIVITY,),
    rules: Sequence[OutcomeRule] = (),
    parallel: int = PARALLEL,
    progress: bool = True,
) -> ImportReport:
    """Upload every trace of a log, each as one session, all of one workflow.

    The whole file is read before the first session is made: what is broken anywhere brings nothing in. A
    trace that the service refuses is named on stderr and skipped. Importing twice brings every trace in
    twice.

    Args:
        workflow: the workflow; without one, the log's name is made one.
        workflow_prefix: put before the log's name.
        activity: keys of the attributes that name an event's activity.
        rules: which traces ended well, and which did not.
        progress: whether to show a progress bar on stderr.

    Raises:
        UnreadableLog: if the file is no log, or holds what no session can.
        ValidationFailed: if the workflow is no slug.
        ApiError, Unreachable: if the service cannot be worked with at all.
    """
    slug = workflow or re.sub(r"[^a-z0-9_]", "_", f"{workflow_prefix}{log_name(path)}".lower())
    if not re.fullmatch(WORKFLOW_PATTERN.strip("^$"), slug):
        text = "A workflow is 2 to 64 of a–z, 0–9 and _."
        raise ValidationFailed.of("workflow", "invalid_value", message=text, where="query")
    wanted = LogImport(path=path, workflow=slug, activity=tuple(activity), rules=tuple(rules))
    began = time.monotonic()
    with Console(stderr=True, quiet=not progress).status(f"Reading {path.name} …"):
        total = sum(1 for _ in wanted.recordings())
    with Client(url, key) as client, shown_progress(total, progress) as on_done:
        report = upload_recordings(client, wanted.sources(), parallel=parallel, on_done=on_done)
    return replace(report, seconds=round(time.monotonic() - began, 3))
