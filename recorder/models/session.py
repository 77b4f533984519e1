"""Sessions and their tags: wire objects and rows. Spec §2.1, §2.2; contract §2."""

from datetime import datetime
from typing import Any, Literal

from pydantic import Field as WireField
from sqlalchemy import JSON, BigInteger, Column, Index, text
from sqlmodel import Field, SQLModel

from recorder import limits
from recorder.models.wire import ActorKind, Outcome, WireInput, WireOutput, WireTime
from recorder.tenant import Tenant


class TagCreate(WireInput):
    """Body of `POST /v1/sessions/{id}/tags`."""

    name: str = WireField(min_length=1, max_length=limits.TAG_NAME_CHARACTERS)
    data: dict[str, Any] | None = None
    t_ms: int | None = WireField(default=None, ge=0, le=limits.T_MS_MAX)
    event_id: str | None = None
    frame_id: str | None = None


class Tag(WireOutput):
    """A tag as it is read back."""

    id: str
    session_id: str
    name: str
    data: dict[str, Any] | None
    t_ms: int
    event_id: str | None
    frame_id: str | None
    created_at: WireTime


class TagRow(SQLModel, table=True):
    """A tag; it stays in SQL after sealing, since tags may come late."""

    __tablename__ = "tags"
    __table_args__ = (
        # The name is there so that the last outcome mark is found without the rows, which hold the data.
        Index("ix_tags_session", "session_id", "t_ms", "id", "name"),
        Index("ix_tags_position", "session_id", "position"),
        # A list filtered by tag starts here and walks down the session ids.
        Index("ix_tags_name", "workspace_id", "mode", "name", "session_id"),
    )

    id: str = Field(primary_key=True)
    session_id: str
    workspace_id: str
    mode: str
    name: str
    data: dict[str, Any] | None = Field(default=None, sa_type=JSON)
    t_ms: int = Field(sa_type=BigInteger)
    event_id: str | None = None
    frame_id: str | None = None
    position: int = Field(sa_type=BigInteger)
    created_at: datetime


SessionStatus = Literal["created", "recording", "stopped", "sealed"]

#: Condition of the sealed sessions whose replayability is not computed yet, as their index has it.
WAITS_FOR_REPLAYABILITY = text(
    "sealed_at IS NOT NULL AND replayability_at IS NULL AND deleted_at IS NULL AND waiting_since IS NULL"
)
#: Condition of the sealed sessions whose hot rows are not swept yet, as their index has it.
WAITS_FOR_SWEEP = text("is_hot AND status = 'sealed' AND waiting_since IS NULL AND seal_error_code IS NULL")
#: `charged_from_ms` of sessions that cost nothing: so far ahead that no time has passed since.
NEVER_CHARGED = 2**53


class Actor(WireInput):
    """Actor: the person, model or script that did the work."""

    id: str = WireField(min_length=1, max_length=limits.ACTOR_ID_CHARACTERS)
    kind: ActorKind


class SessionCreate(WireInput):
    """Body of `POST /v1/sessions`."""

    workflow: str = WireField(pattern=limits.WORKFLOW_PATTERN)
    metadata: dict[str, Any] = WireField(default_factory=dict)
    actor: Actor | None = None
    start: bool = False
    started_at: WireTime | None = None
    idempotency_key: str | None = WireField(
        default=None, json_schema_extra={"pattern": limits.IDEMPOTENCY_KEY_PATTERN}
    )


class SealError(WireOutput):
    """Why a stopped session was set aside instead of sealed."""

    code: str
    message: str
    at: WireTime


class Session(WireOutput):
    """One recorded run of a workflow."""

    id: str
    workflow: str
    status: SessionStatus
    metadata: dict[str, Any]
    actor: Actor | None
    started_at: WireTime | None
    stopped_at: WireTime | None
    duration_ms: int
    frame_count: int
    event_count: int
    outcome: Outcome | None
    #: Path of the memory graph it is counted on; null before sealing, in a pause, and without steps.
    path_id: str | None
    seal_error: SealError | None
    #: Share of its steps whose target one element alone matches; null until computed, and without snapshots.
    replayability: float | None
    created_at: WireTime
    #: Of the recording of a live replay; other sessions have no such member.
    origin: Literal["replay"] | None = WireField(default=None, exclude_if=lambda value: value is None)


class FramesSummary(WireOutput):
    """Summary of a session's frames, as `include=frames_summary` embeds it."""

    count: int
    keyframes: int | None
    bytes: int
    first_t_ms: int | None
    last_t_ms: int | None
    width: int | None
    height: int | None
    content_types: list[str]
    storage: dict[str, int]


class SessionDetail(Session):
    """A session with the related data that `include=` asked for; members not asked for are absent."""

    events: list[dict[str, Any]] | None = None
    events_truncated: bool | None = None
    events_url: str | None = None
    tags: list[Tag] | None = None
    frames_summary: FramesSummary | None = None


class BatchStop(WireInput):
    """Body of `POST /v1/sessions:batch_stop`."""

    ids: list[str]


class BatchStopItem(WireOutput):
    """Result for one session of a batch stop; `error` only where `result` is `error`."""

    id: str
    result: Literal["stopped", "unchanged", "error"]
    status: SessionStatus | None
    error: dict[str, str] | None = None


class BatchStopResult(WireOutput):
    """Answer of `POST /v1/sessions:batch_stop`."""

    data: list[BatchStopItem]
    stopped: int
    unchanged: int
    failed: int


class SessionRow(SQLModel, table=True):
    """A session without its metadata: narrow, since every batch of events rewrites it."""

    __tablename__ = "sessions"
    # Index set B of the list measurements: one per filter that a list starts from.
    __table_args__ = (
        Index("ix_sessions_list", "workspace_id", "mode", "id"),
        Index("ix_sessions_workflow", "workspace_id", "mode", "workflow", "id"),
        Index("ix_sessions_status", "workspace_id", "mode", "status", "id"),
        Index("ix_sessions_outcome", "workspace_id", "mode", "outcome", "id"),
        Index("ix_sessions_actor_kind", "workspace_id", "mode", "actor_kind", "id"),
        Index("ix_sessions_workflow_outcome", "workspace_id", "mode", "workflow", "outcome", "id"),
        Index("ix_sessions_workflow_status", "workspace_id", "mode", "workflow", "status", "id"),
        Index(
            "ix_sessions_to_seal",
            "workspace_id",
            "mode",
            "seal_slot",
            "waiting_since",
            "id",
            sqlite_where=text("waiting_since IS NOT NULL"),
            postgresql_where=text("waiting_since IS NOT NULL"),
        ),
        Index(
            "ix_sessions_set_aside",
            "workspace_id",
            "id",
            sqlite_where=text("seal_error_code IS NOT NULL"),
            postgresql_where=text("seal_error_code IS NOT NULL"),
        ),
        Index(
            "ix_sessions_to_sweep",
            "workspace_id",
            "mode",
            "sealed_at",
            "id",
            sqlite_where=WAITS_FOR_SWEEP,
            postgresql_where=WAITS_FOR_SWEEP,
        ),
        Index(
            "ix_sessions_to_replay",
            "workspace_id",
            "mode",
            "sealed_at",
            "id",
            sqlite_where=WAITS_FOR_REPLAYABILITY,
            postgresql_where=WAITS_FOR_REPLAYABILITY,
        ),
        Index(
            "ix_sessions_deleted",
            "workspace_id",
            "mode",
            "deleted_at",
            "id",
            sqlite_where=text("deleted_at IS NOT NULL"),
            postgresql_where=text("deleted_at IS NOT NULL"),
        ),
        Index(
            "ix_sessions_to_purge",
            "purge_after",
            sqlite_where=text("purge_after IS NOT NULL"),
            postgresql_where=text("purge_after IS NOT NULL"),
        ),
        {"sqlite_with_rowid": False, "postgresql_with": {"fillfactor": "50"}},
    )

    id: str = Field(primary_key=True)
    workspace_id: str
    mode: str
    workflow: str
    status: str
    actor_id: str | None = None
    actor_kind: str | None = None
    created_at: datetime
    started_at: datetime | None = None
    stopped_at: datetime | None = None
    sealed_at: datetime | None = None
    #: When the objects of its frames were moved to the store of archived frames.
    frames_archived_at: datetime | None = None
    deleted_at: datetime | None = None
    #: When its data go for good: 7 days after creation in test mode, 30 days after a delete. Null: not yet.
    purge_after: datetime | None = None
    #: Whether `started_at` came from the client: a recording made elsewhere, brought in later.
    is_import: bool = False
    origin: str | None = None
    duration_ms: int = Field(default=0, sa_type=BigInteger)
    frame_count: int = 0
    event_count: int = 0
    tag_count: int = Field(default=0, sa_column_kwargs={"server_default": "0"})
    #: Bytes that are stored: event items as JSON, and the objects with pictures and snapshots.
    event_bytes: int = Field(default=0, sa_type=BigInteger, sa_column_kwargs={"server_default": "0"})
    frame_bytes: int = Field(default=0, sa_type=BigInteger, sa_column_kwargs={"server_default": "0"})
    #: Largest `t_ms` of any event or frame; the end of an imported session.
    max_t_ms: int = Field(default=0, sa_type=BigInteger)
    #: Instant (ms since 1970) from which wall time is charged; an import is charged whatever its clock says.
    charged_from_ms: int = Field(
        default=NEVER_CHARGED, sa_type=BigInteger, sa_column_kwargs={"server_default": str(NEVER_CHARGED)}
    )
    #: How much of the session the quota was charged with, by now and before the last batch.
    charged_ms: int = Field(default=0, sa_type=BigInteger, sa_column_kwargs={"server_default": "0"})
    charged_before_ms: int = Field(default=0, sa_type=BigInteger, sa_column_kwargs={"server_default": "0"})
    #: The one counter that events, frames, tags and status changes draw their positions from.
    last_position: int = Field(default=0, sa_type=BigInteger)
    outcome: str | None = None
    #: The last event that marks an outcome, found at stop: `{outcome, t_ms, id, name}`; tags may overrule it.
    event_mark: dict[str, Any] | None = Field(default=None, sa_type=JSON)
    #: Whether `session.error` was emitted; it fires at most once.
    has_error_event: bool = False
    #: Rising number within the sealing lane, so within the workflow; given by the transaction that seals.
    seal_seq: int | None = Field(default=None, sa_type=BigInteger)
    #: Since when (by our clock) it waits to be sealed; null while it need not be: before its stop, once
    #: sealed, deleted or set aside.
    waiting_since: datetime | None = None
    #: Number of its sealing lane within the workspace and mode; set at the stop.
    seal_slot: int | None = None
    #: How often sealing failed because of what it holds; from the first time on it is sealed in a batch of
    #: its own.
    seal_failures: int = 0
    #: How often it was sealed again because the lake did not hold its rows.
    seal_repairs: int = 0
    #: Why it was set aside instead of sealed; null where it was not.
    seal_error_code: str | None = None
    seal_error_message: str | None = None
    seal_error_at: datetime | None = None
    #: Whether `session.error` was emitted because it was set aside; that fires at most once.
    has_seal_error_event: bool = False
    #: Share of its steps whose target one element alone matches on its snapshot, 0 to 1.
    replayability: float | None = None
    #: When that was computed, with or without a value; null while it waits for it, and before it is sealed.
    replayability_at: datetime | None = None
    #: Lake partition (`YYYY-MM-DD`) that holds the sealed rows.
    lake_date: str | None = None
    #: Whether the batches still lie in SQL beside the lake; false once the sweep dropped them.
    is_hot: bool = True

    @property
    def tenant(self) -> Tenant:
        """Workspace and mode of the session."""
        return Tenant(self.workspace_id, self.mode)


class SessionMetadataRow(SQLModel, table=True):
    """The metadata of a session, apart from the row that every batch rewrites."""

    __tablename__ = "session_metadata"

    session_id: str = Field(primary_key=True)
    metadata_: dict[str, Any] = Field(sa_column=Column("metadata", JSON, nullable=False))
    #: Of a held session that a live replay recorded: keyed hashes of the texts by which an erasure found the
    #: purged sessions that were replayed.
    source_hashes: list[str] | None = Field(
        default=None, sa_column=Column(JSON(none_as_null=True), nullable=True)
    )


class SessionStatusRow(SQLModel, table=True):
    """A status change at its position in the session's stream."""

    __tablename__ = "session_statuses"
    __table_args__ = {"sqlite_with_rowid": False}

    session_id: str = Field(primary_key=True)
    position: int = Field(primary_key=True, sa_type=BigInteger)
    status: str
    at: datetime
