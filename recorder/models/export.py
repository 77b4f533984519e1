"""Exports as they are shown, and how two of them differ. Spec §2.5, §4.3; contract §5."""

from datetime import datetime
from typing import Any, Final, Literal

from sqlalchemy import JSON, BigInteger, Index, false, text
from sqlmodel import Field, SQLModel

from recorder.models.export_request import ExportFormat, FrameSampling, SplitRule
from recorder.models.wire import WireOutput, WireTime
from recorder.tenant import Tenant

ExportStatus = Literal["queued", "running", "completed", "failed"]
#: States of exports that have not ended.
OPEN_STATUSES: Final[tuple[ExportStatus, ...]] = ("queued", "running")
#: Kinds of destinations in a location of the client; finished shards there are charged.
CLIENT_DESTINATIONS = frozenset({"s3", "gcs", "azure_blob"})


class ExportCreated(WireOutput):
    """Answer of `POST /v1/exports`."""

    id: str
    status: ExportStatus
    manifest_url: str | None
    created_at: WireTime


class ExportProgress(WireOutput):
    """Progress of an export; the total is null before the plan, the message unless it waits for something."""

    shards_done: int
    shards_total: int | None
    message: str | None


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
    """Counts of a comparison: equal, only in the newer export, only in the other, and different in both."""

    same: int
    added: int
    removed: int
    changed: int


class ExportDifference(WireOutput):
    """Differences between two exports: totals, and one entry per session where sessions are listed."""

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


class ExportRow(SQLModel, table=True):
    """An export: the row is the queue that the dataset runs work on."""

    __tablename__ = "exports"
    __table_args__ = (
        Index("ix_exports_list", "workspace_id", "mode", "id"),
        Index("ix_exports_status", "status", "id"),
        Index("ix_exports_series", "workspace_id", "mode", "series_sha256", "id"),
        # Those that are queued or running.
        Index(
            "ix_exports_open",
            "workspace_id",
            sqlite_where=text("completed_at IS NULL"),
            postgresql_where=text("completed_at IS NULL"),
        ),
        # Those whose files are not expired, by dataset.
        Index(
            "ix_exports_dataset",
            "dataset",
            "workspace_id",
            "mode",
            "status",
            "id",
            sqlite_where=text("expired_at IS NULL"),
            postgresql_where=text("expired_at IS NULL"),
        ),
        Index(
            "ix_exports_files_left",
            "id",
            sqlite_where=text("files_left"),
            postgresql_where=text("files_left"),
        ),
        Index(
            "ix_exports_not_indexed",
            "id",
            sqlite_where=text("NOT is_indexed"),
            postgresql_where=text("NOT is_indexed"),
        ),
    )

    id: str = Field(primary_key=True)
    workspace_id: str
    mode: str
    status: str
    format: str
    #: Resolved request: workflow, filter, frame_sampling, split. Times are absolute.
    spec: dict[str, Any] = Field(sa_type=JSON)
    destination: dict[str, Any] = Field(sa_type=JSON)
    tag: str | None = None
    #: Dataset name = dynamic partition of the `datasets` asset.
    dataset: str
    #: How many runs took it up; a killed run leaves the export to the next one.
    attempt: int = 0
    #: Whether a run of its own writes it, also the first time: it is large, or no process wrote small ones.
    has_own_run: bool = False
    #: Sessions of its selection whose replayability it waits for, as counted last; null unless it waits.
    awaited_sessions: int | None = None
    #: When they were counted again; null where that is still to come.
    awaited_counted_at: datetime | None = None
    #: Number of the last attempt that made progress.
    progressed_attempt: int | None = None
    #: Why the last run that was cut short could not go on.
    last_error: str | None = None
    #: Whether files of an export that failed may still lie at the destination.
    files_left: bool | None = None
    shards_total: int | None = None
    shards_done: int = 0
    rows: int | None = Field(default=None, sa_type=BigInteger)
    shards: int | None = None
    shard_size_bytes: int | None = Field(default=None, sa_type=BigInteger)
    frames: int | None = Field(default=None, sa_type=BigInteger)
    actions: int | None = Field(default=None, sa_type=BigInteger)
    #: Rows that the plan holds in the quota of this period (`YYYY-MM`); null where nothing is held.
    reserved_rows: int | None = Field(default=None, sa_type=BigInteger)
    reserved_period: str | None = None
    #: Blob that holds the plan; a second attempt works on the same one.
    plan_key: str | None = None
    plan_sha256: str | None = None
    #: Digest of what an export has in common with the one whose shards it may take over.
    series_sha256: str | None = None
    #: `parent` and `tombstones` of the manifest, as of the plan.
    lineage: dict[str, Any] | None = Field(default=None, sa_type=JSON)
    row_set_sha256: str | None = None
    manifest_sha256: str | None = None
    error: dict[str, Any] | None = Field(default=None, sa_type=JSON)
    #: The POST that asked for it; None for one that was made in Dagster.
    request_id: str | None = None
    created_at: datetime
    started_at: datetime | None = None
    completed_at: datetime | None = None
    #: When the files of a completed hosted export were deleted after their 30 days.
    expired_at: datetime | None = None
    #: Of the manifest; each rewriting without purged sessions adds one.
    revision: int = Field(default=1, sa_column_kwargs={"server_default": "1"})
    #: Digest of the manifest that a rewriting is about to put in the place of the present one.
    next_manifest_sha256: str | None = None
    #: Whether the sessions of its plan are in `export_sessions`; false for plans of an earlier release.
    is_indexed: bool = Field(default=False, sa_column_kwargs={"server_default": false()})

    @property
    def tenant(self) -> Tenant:
        """Workspace and mode of the export."""
        return Tenant(self.workspace_id, self.mode)


class ExportSessionRow(SQLModel, table=True):
    """One session of an export's plan, so that its purge finds the files to rewrite.

    Rows are written before the plan is stored, and deleted with the session or the files: an export never has
    a session without a row.
    """

    __tablename__ = "export_sessions"
    __table_args__ = {"sqlite_with_rowid": False}

    session_id: str = Field(primary_key=True)
    export_id: str = Field(primary_key=True, index=True)


class ExportWorkflowRow(SQLModel, table=True):
    """One workflow of an export; the list filter starts from it."""

    __tablename__ = "export_workflows"
    __table_args__ = (Index("ix_export_workflows", "workspace_id", "mode", "workflow", "export_id"),)

    export_id: str = Field(primary_key=True)
    workflow: str = Field(primary_key=True)
    workspace_id: str
    mode: str


class ExportShardRow(SQLModel, table=True):
    """One planned shard and what became of it; done shards are never written again."""

    __tablename__ = "export_shards"

    export_id: str = Field(primary_key=True)
    #: Path relative to the manifest; unique, since it names kind, workflow and bucket.
    path: str = Field(primary_key=True)
    kind: str
    workflow: str
    bucket: int
    content_key: str
    #: As planned; a file with another number of rows is refused.
    rows: int = Field(sa_type=BigInteger)
    sessions: int
    is_done: bool = False
    #: The export of which the file was copied.
    reused_from: str | None = None
    size_bytes: int | None = Field(default=None, sa_type=BigInteger)
    sha256: str | None = None


class RecipeRow(SQLModel, table=True):
    """A saved request with its times; the exports it made are rows of their own."""

    __tablename__ = "export_recipes"
    __table_args__ = (Index("ix_export_recipes_due", "next_at"),)

    workspace_id: str = Field(primary_key=True)
    mode: str = Field(primary_key=True)
    #: Tag, and so dataset and partition, of each export that it makes.
    name: str = Field(primary_key=True)
    #: Body of `POST /v1/exports` without tag; relative times stay relative.
    body: dict[str, Any] = Field(sa_type=JSON)
    cron: str
    timezone: str
    #: The tick that comes next. Moving it on is what claims a tick.
    next_at: datetime
    #: The last tick that was claimed.
    last_at: datetime | None = None
    #: The last export that was made, at a tick or at once.
    last_export_id: str | None = None
    #: Why the last tick made no export: `{code, message}`.
    last_error: dict[str, Any] | None = Field(default=None, sa_type=JSON)
    #: When the service last tried a tick whose store did not answer; null where the tick was not tried.
    tried_at: datetime | None = None
    created_at: datetime

    @property
    def tenant(self) -> Tenant:
        """Workspace and mode of the recipe."""
        return Tenant(self.workspace_id, self.mode)
