"""Holds, purges, erasures and pruned audit entries: rows and wire objects. Contract §2, §7."""

from datetime import datetime
from typing import Any, Literal

from pydantic import Field as WireField
from sqlalchemy import JSON, BigInteger, ColumnClause, ColumnElement, Index, LargeBinary, literal_column, text
from sqlmodel import Field, SQLModel, col

from recorder import limits
from recorder.models.wire import WireInput, WireOutput, WireTime
from recorder.tenant import Tenant

HoldKind = Literal["session", "tag"]

#: Why a session is purged: an administrator's hard delete, a soft delete after its days, the end of a test
#: session, the end of the retention of events, or the erasure of a person's data.
PurgeCause = Literal["hard_delete", "deletion", "test_expiry", "retention", "erasure"]

#: Steps of a purge, in this order: rows and objects, rows of the lake, old files of the lake, files of
#: exports, a second pass for what requests under way stored, and the end.
PurgeStep = Literal["content", "lake", "files", "exports", "final_pass", "done"]

#: Condition of purges that have not ended, and of the hard deletes among them, as their indexes have them.
OPEN_PURGE = "step <> 'done'"
OPEN_HARD_DELETE = "step <> 'done' AND cause = 'hard_delete'"
_IS_OPEN = text(OPEN_PURGE)
_IS_OPEN_HARD_DELETE = text(OPEN_HARD_DELETE)

ErasureStatus = Literal["queued", "running", "completed", "failed"]


class ErasureCreate(WireInput):
    """Body of `POST /v1/privacy/erasure`."""

    subject: str = WireField(min_length=1, max_length=limits.ACTOR_ID_CHARACTERS)
    scope: Literal["all"]


class ErasureError(WireOutput):
    """Why an erasure failed."""

    code: str
    message: str


class Erasure(WireOutput):
    """An erasure of a person's data."""

    id: str
    status: ErasureStatus
    scope: Literal["all"]
    subject_hash: str
    created_at: WireTime
    due_by: WireTime
    completed_at: WireTime | None
    #: Numbers of what was removed. `shards` were written again, `nodes` stay without the sessions;
    #: `deliveries` and `exports` are out of reach.
    counts: dict[str, int]
    error: ErasureError | None


class HoldRow(SQLModel, table=True):
    """Legal hold of one session, or of all sessions of a workspace with a tag: they are not purged."""

    __tablename__ = "holds"
    __table_args__ = {"sqlite_with_rowid": False}

    workspace_id: str = Field(primary_key=True)
    kind: str = Field(primary_key=True)
    #: Id of the session, or name of the tag.
    value: str = Field(primary_key=True)
    created_at: datetime


class PurgeRow(SQLModel, table=True):
    """Purge of one session: the intent, written when the session is hidden, and later its tombstone.

    The row of an erased session is deleted at the end of its purge.
    """

    __tablename__ = "purges"
    __table_args__ = (
        Index("ix_purges_open", "due_at", sqlite_where=_IS_OPEN, postgresql_where=_IS_OPEN),
        # Of each workspace and mode, those that are due first.
        Index(
            "ix_purges_of_workspace",
            "workspace_id",
            "mode",
            "due_at",
            sqlite_where=_IS_OPEN,
            postgresql_where=_IS_OPEN,
        ),
        Index(
            "ix_purges_hard_deletes",
            "workspace_id",
            "mode",
            "due_at",
            sqlite_where=_IS_OPEN_HARD_DELETE,
            postgresql_where=_IS_OPEN_HARD_DELETE,
        ),
        # An erasure waits for the purges of its workspace that were requested before it.
        Index(
            "ix_purges_requested",
            "workspace_id",
            "requested_at",
            sqlite_where=_IS_OPEN,
            postgresql_where=_IS_OPEN,
        ),
        Index("ix_purges_workflow", "workspace_id", "mode", "workflow"),
        {"sqlite_with_rowid": False},
    )

    session_id: str = Field(primary_key=True)
    workspace_id: str
    mode: str
    workflow: str
    cause: str
    step: str = "content"
    #: No run works on its next step before this time.
    due_at: datetime
    requested_at: datetime
    done_at: datetime | None = None
    #: Lake partitions (`YYYY-MM-DD`) that may hold its rows.
    dates: list[str] = Field(sa_type=JSON)
    #: What the session had: event items as JSON, and objects.
    event_bytes: int = Field(default=0, sa_type=BigInteger)
    frame_bytes: int = Field(default=0, sa_type=BigInteger)
    events: int = 0
    frames: int = 0
    #: The erasure that asked for it; null for every other cause.
    erasure_id: str | None = Field(default=None, index=True)

    @property
    def tenant(self) -> Tenant:
        """Workspace and mode of the session."""
        return Tenant(self.workspace_id, self.mode)


def is_purge_open() -> ColumnElement[bool]:
    """Return the condition that a purge has not ended, `OPEN_PURGE`.

    The step is text of the statement: a partial index is not found by a bound value.
    """
    done: ColumnClause[str] = literal_column("'done'")
    return col(PurgeRow.step) != done


class AuditHashRow(SQLModel, table=True):
    """Number and hashes of an audit entry that was pruned: the chain and old heads still verify."""

    __tablename__ = "audit_hashes"
    __table_args__ = {"sqlite_with_rowid": False}

    workspace_id: str = Field(primary_key=True)
    number: int = Field(primary_key=True, sa_type=BigInteger)
    prev_hash: str
    hash: str = Field(index=True)


class ErasureRow(SQLModel, table=True):
    """Open request to erase a person's data; deleted at its end, when the audit log alone keeps it."""

    __tablename__ = "erasures"

    id: str = Field(primary_key=True)
    workspace_id: str = Field(index=True)
    #: `live` covers both modes, `test` test data alone.
    mode: str
    status: str = "queued"
    #: Keyed digest of the subject.
    subject_hash: str
    #: Mode and digest, which only one open request has; null for one that a restored copy repeats.
    open_key: str | None = Field(default=None, unique=True)
    #: The subject, encrypted under a key of the deployment.
    subject: bytes = Field(sa_type=LargeBinary)
    created_at: datetime
    due_by: datetime
    #: Highest id of the instant at which the newest session of the workspace was made, as of the request. It
    #: may be of a later time, since clocks differ. Null after the searches.
    newest_id: str | None = None
    #: Time of the second search, of the ids of the last minutes before the request; null in the first search,
    #: and the time of their end after both.
    second_search_at: datetime | None = None
    #: The search goes on after this session, in this mode; both null before it began. The session is null
    #: after the searches.
    searched_mode: str | None = None
    searched_id: str | None = None
    #: Whether all sessions were searched, those of the last minutes twice.
    is_searched: bool = False
    counts: dict[str, Any] = Field(sa_type=JSON)
    #: Number of held sessions that a search found, and left alone.
    held: int = 0
    #: Ids of exports with sessions of the person whose files the service cannot rewrite.
    exports: list[str] = Field(default_factory=list, sa_type=JSON)
    #: Names of PostgreSQL's tables that are to be rewritten before it ends; null until its purges have ended.
    stale_tables: str | None = None


class ErasureNodeRow(SQLModel, table=True):
    """One node of a memory graph that sessions of an erasure visited, so that it is counted once.

    Rows are deleted when the purges of the erasure have ended.
    """

    __tablename__ = "erasure_nodes"
    __table_args__ = {"sqlite_with_rowid": False}

    erasure_id: str = Field(primary_key=True)
    #: Mode, workflow and number.
    node_id: str = Field(primary_key=True)
