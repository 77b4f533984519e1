"""Exports as they are shown, and how two of them differ. Spec §2.5, §4.3; contract §5."""

from typing import Any, Literal

from recorder.models.export_request import ExportFormat, FrameSampling, SplitRule
from recorder.models.wire import WireOutput, WireTime

ExportStatus = Literal["queued", "running", "completed", "failed"]


class ExportCreated(WireOutput):
    """Answer of `POST /v1/exports`."""

    id: str
    status: ExportStatus
    manifest_url: str | None
    created_at: WireTime


class ExportProgress(WireOutput):
    """How far a running export is; the total is null before the plan."""

    shards_done: int
    shards_total: int | None


class ExportError(WireOutput):
    """Why an export failed."""

    code: str
    message: str


class Export(WireOutput):
    """A dataset that was asked for; the figures are null until it is completed."""

    id: str
    status: ExportStatus
    workflow: list[str]
    format: ExportFormat
    filter: dict[str, Any]
    frame_sampling: FrameSampling
    #: Null where the release that made the dataset knew no parts.
    split: SplitRule | None
    destination: dict[str, Any]
    tag: str | None
    rows: int | None
    shards: int | None
    shard_size_bytes: int | None
    frames: int | None
    actions: int | None
    manifest_url: str | None
    progress: ExportProgress
    error: ExportError | None
    created_at: WireTime
    completed_at: WireTime | None


SessionChange = Literal["added", "removed", "changed"]
ChangeCause = Literal["deletion", "request", "graph", "import", "tag", "lake"]


class SessionDifference(WireOutput):
    """A session that one of two exports has, or has otherwise."""

    session_id: str
    change: SessionChange
    cause: ChangeCause


class DifferenceCounts(WireOutput):
    """How many are the same, only in the newer one, only in the other, and in both but not the same."""

    same: int
    added: int
    removed: int
    changed: int


class ExportDifference(WireOutput):
    """What an export has, compared with another: in sums, and session by session where they are there."""

    export_id: str
    against: str
    #: Whether both hold the same rows: equal `row_set_sha256`.
    same_rows: bool
    same_request: bool
    sessions: DifferenceCounts
    shards: DifferenceCounts
    #: Sessions that differ, by what explains it; deleted ones are in no list.
    causes: dict[ChangeCause, int]
    data: list[SessionDifference]
    next_cursor: str | None
    has_more: bool
