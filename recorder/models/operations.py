"""Records of operations: outbox, leases, idempotency answers, audit log. Spec §6; contract §1, §7."""

from datetime import datetime
from typing import Any, Literal

from sqlalchemy import JSON, BigInteger, Index, LargeBinary, text
from sqlmodel import Field, SQLModel

from recorder.models.wire import WireOutput, WireTime


class OutboxRow(SQLModel, table=True):
    """An event of spec §6.1, written in the transaction of the change that it reports."""

    __tablename__ = "outbox"
    __table_args__ = (
        Index(
            "ix_outbox_pending",
            "workspace_id",
            "id",
            # Null in every row of the index; with it SQLite counts them by the index alone.
            "dispatched_at",
            sqlite_where=text("dispatched_at IS NULL"),
            postgresql_where=text("dispatched_at IS NULL"),
        ),
        Index("ix_outbox_subject", "subject_id"),
    )

    id: str = Field(primary_key=True)
    workspace_id: str
    mode: str
    type: str
    #: The session, export, … the event is about: erasure finds it by this.
    subject_id: str
    data: dict[str, Any] = Field(sa_type=JSON)
    created_at: datetime
    dispatched_at: datetime | None = None
    #: The request that brought the event about, where one did.
    request_id: str | None = None
    #: What receivers are sent, byte for byte the same each time; set once a webhook takes the event.
    body: bytes | None = Field(default=None, sa_type=LargeBinary)


class LeaseRow(SQLModel, table=True):
    """The right to do one kind of work, until it runs out; `fence` rises with every new holder."""

    __tablename__ = "leases"

    name: str = Field(primary_key=True)
    owner: str
    fence: int = Field(sa_type=BigInteger)
    expires_ms: int = Field(sa_type=BigInteger)


#: Condition of batches that are not done yet, as their index has it.
OPEN_BATCH = text("state <> 'done'")


class SealBatchRow(SQLModel, table=True):
    """A numbered batch of one sealing lane: the lake takes each number once, in order."""

    __tablename__ = "seal_batches"
    __table_args__ = (
        Index(
            "ix_seal_batches_open",
            "workspace_id",
            "mode",
            "slot",
            "number",
            sqlite_where=OPEN_BATCH,
            postgresql_where=OPEN_BATCH,
        ),
        # A purge reads those of the last days.
        Index("ix_seal_batches_created", "workspace_id", "mode", "created_at"),
    )

    workspace_id: str = Field(primary_key=True)
    mode: str = Field(primary_key=True)
    slot: int = Field(primary_key=True)
    number: int = Field(primary_key=True, sa_type=BigInteger)
    session_ids: list[str] = Field(sa_type=JSON)
    #: `seal_seq` of the first session; the others follow in order.
    first_seal_seq: int = Field(sa_type=BigInteger)
    #: `open` until its rows are written, `writing` from the first commit to the lake on, `undoing` while its
    #: rows are deleted from the lake, `done` at the end.
    state: str = "open"
    #: How often a run began to work on it, and how often a run stopped that work in order. The difference is
    #: the number of runs that were killed during it (and the run that works on it now).
    begun: int = 0
    ended: int = 0
    #: How often the work failed for a reason that is not a store's or the database's.
    failures: int = 0
    last_error: str | None = None
    #: No run takes it up before this time.
    not_before: datetime | None = None
    created_at: datetime


class SealCounterRow(SQLModel, table=True):
    """Last numbers given in one sealing lane: batches, and sessions in the order they were sealed."""

    __tablename__ = "seal_counters"

    workspace_id: str = Field(primary_key=True)
    mode: str = Field(primary_key=True)
    slot: int = Field(primary_key=True)
    batch_number: int = Field(default=0, sa_type=BigInteger)
    seal_seq: int = Field(default=0, sa_type=BigInteger)
    #: When a run last gave the lane back: lanes are served by how long they have waited since.
    served_at: datetime | None = None


class IdempotencyRow(SQLModel, table=True):
    """A key of a POST and the answer that it was given, kept 24 hours.

    Key and body are kept as keyed digests: people type names and addresses into both.
    """

    __tablename__ = "idempotency_keys"

    workspace_id: str = Field(primary_key=True)
    mode: str = Field(primary_key=True)
    method: str = Field(primary_key=True)
    #: The address as the documentation writes it, with `{session_id}`.
    path: str = Field(primary_key=True)
    #: Digest of the concrete path and the key: the same key at another address is another one.
    key: str = Field(primary_key=True)
    body_digest: bytes = Field(sa_type=LargeBinary)
    status: int | None = None
    #: The body, with null in the place of secrets.
    answer: bytes | None = Field(default=None, sa_type=LargeBinary)
    #: The session, replay, recovery or event that the answer shows: its purge finds the answer by this.
    resource_id: str | None = Field(default=None, index=True)
    created_at: datetime = Field(index=True)


OrchestrationKind = Literal["sensor", "schedule", "daemon"]


class OrchestrationStatusRow(SQLModel, table=True):
    """One sensor, schedule or daemon of this deployment."""

    __tablename__ = "orchestration_status"
    __table_args__ = {"sqlite_with_rowid": False}

    kind: str = Field(primary_key=True)
    name: str = Field(primary_key=True)
    #: `on` or `off`; a daemon is always `on`.
    state: str
    #: When a sensor or schedule was looked at, and when a daemon sent its last heartbeat.
    seen_at: datetime


class SealPortionRow(SQLModel, table=True):
    """A finished portion of one session: the run after a killed one continues after the last portion."""

    __tablename__ = "seal_portions"
    __table_args__ = {"sqlite_with_rowid": False}

    session_id: str = Field(primary_key=True)
    #: 0, 1, 2 … in the order in which they were finished.
    n: int = Field(primary_key=True)
    #: Partition of the lake that the portion's files lie in.
    date: str
    #: zstd of a JSON object: the files, and what cannot be computed again cheaply.
    state: bytes = Field(sa_type=LargeBinary)


class SweepRow(SQLModel, table=True):
    """A session whose hot rows are being deleted: the lake alone serves it. A killed run leaves some rows."""

    __tablename__ = "sweeps"
    __table_args__ = {"sqlite_with_rowid": False}

    session_id: str = Field(primary_key=True)


ActorType = Literal["key", "operator", "system"]
AuditOutcome = Literal["success", "refused"]


class AuditRow(SQLModel, table=True):
    """One entry of a workspace's chain."""

    __tablename__ = "audit_entries"
    __table_args__ = (
        Index("ix_audit_entries_at", "workspace_id", "at"),
        # A look-up by id or action walks its index in the order of the chain.
        Index("ix_audit_entries_action", "workspace_id", "action", "number"),
        Index("ix_audit_entries_actor", "workspace_id", "actor_id", "number"),
        Index("ix_audit_entries_resource", "workspace_id", "resource_id", "number"),
    )

    workspace_id: str = Field(primary_key=True)
    #: Its number in the workspace's chain, from 1.
    number: int = Field(primary_key=True, sa_type=BigInteger)
    id: str = Field(unique=True)
    #: `test` where a test key acted, `live` where another key did; None for operator and service.
    mode: str | None = None
    at: datetime
    actor_type: str
    actor_id: str
    action: str
    resource_type: str
    resource_id: str
    outcome: str
    request_id: str | None = None
    ip: str | None = None
    details: dict[str, Any] = Field(sa_type=JSON)
    prev_hash: str
    hash: str = Field(index=True)


class AuditHeadRow(SQLModel, table=True):
    """The end of a workspace's chain; locked by whoever adds to it."""

    __tablename__ = "audit_heads"

    workspace_id: str = Field(primary_key=True)
    number: int = Field(default=0, sa_type=BigInteger)
    hash: str


class AuditActor(WireOutput):
    """Actor of an audit entry: a key, the operator of the deployment, or the service itself."""

    type: ActorType
    id: str


class AuditResource(WireOutput):
    """Object that an audit entry is about."""

    type: str
    id: str


class AuditEntry(WireOutput):
    """An entry of the audit log; `hash` covers all other members."""

    id: str
    at: WireTime
    actor: AuditActor
    action: str
    resource: AuditResource
    outcome: AuditOutcome
    request_id: str | None
    ip: str | None
    details: dict[str, Any]
    prev_hash: str
    hash: str
