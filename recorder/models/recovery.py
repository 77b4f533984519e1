"""Recoveries: requests, wire objects and rows. Spec §3.3, §4.6; contract §8."""

from datetime import datetime
from typing import Any, Literal, Self

from pydantic import Field as WireField
from pydantic import field_validator, model_validator
from sqlalchemy import JSON, BigInteger, Index, false, text
from sqlmodel import Field, SQLModel

from recorder import limits
from recorder.models.replay import ItemId, ReplayInputs, ReplayPolicyBody, Sandbox
from recorder.models.wire import WireInput, WireOutput, WireTime
from recorder.tenant import Tenant

#: Condition of a partial index, which SQL finds by these very words.
OPEN_RECOVERY = "finished_at IS NULL"
#: Recoveries that a run can continue: no attempt of theirs is under way.
DUE_RECOVERY = "finished_at IS NULL AND NOT attempt_is_open"

RecoveryStatus = Literal["started", "succeeded", "failed"]
RecoveryReason = Literal[
    "no_recovery_points",
    "candidates_exhausted",
    "live_replay_ended",
    "invalid_recording",
    "cancelled",
    "internal",
]


class RecoveryPlace(WireInput):
    """A recovery point as `GET /v1/memory/recovery_points` gives it: a session, and one of its two ids."""

    session_id: str
    frame_id: ItemId | None = None
    event_id: ItemId | None = None

    @model_validator(mode="after")
    def _require_event_or_frame(self) -> Self:
        if (self.frame_id is None) == (self.event_id is None):
            raise ValueError("send one of event_id and frame_id")
        return self


class RecoveryCreate(WireInput):
    """Body of `POST /v1/recoveries`."""

    session_id: str
    sandbox: Sandbox
    #: Absent: the last error tag of the session, else its last error event.
    failure_tag: str | None = WireField(default=None, min_length=1, max_length=limits.TAG_NAME_CHARACTERS)
    #: Absent: the best candidates, up to three.
    recovery_point: RecoveryPlace | None = None
    #: Values to type in the live attempt, as those of a replay; never shown.
    inputs: ReplayInputs = WireField(default_factory=dict, max_length=limits.REPLAY_INPUTS)
    #: Of every attempt.
    policy: ReplayPolicyBody = WireField(default_factory=ReplayPolicyBody)

    @field_validator("failure_tag")
    @classmethod
    def _check_printable(cls, name: str | None) -> str | None:
        if name is not None and not name.isprintable():
            raise ValueError("failure_tag takes printable characters")
        return name


class RecoveryNode(WireOutput):
    """A node of the graph, and the step with which the failed session entered it last before its failure.

    The ids of the step are null where the session did not pass the node.
    """

    node_id: str
    event_id: str | None
    t_ms: int | None
    frame_id: str | None


class ScoredNode(RecoveryNode):
    """A node from which the session may be recovered, with every factor of its score."""

    basis: Literal["in_session", "cross_session"]
    hits: int
    successes: int
    frequency: float
    lower_bound: float
    #: Null without snapshots: the graph alone decides.
    replayability: float | None
    consequential_steps: int
    consequence_factor: float
    median_recovery_ms: int | None
    score: float
    #: The attempt from this node; null if it was not tried.
    replay_id: str | None


class Recovery(WireOutput):
    """A recovery of a failed session."""

    id: str
    session_id: str
    workflow: str
    #: Null if an error event marks the failure.
    failure_tag: str | None
    #: Time of the failure since the start of the session.
    failed_at_ms: int
    sandbox: Sandbox
    status: RecoveryStatus
    #: What the attempts compared: snapshots, or the graph alone; null before one ended.
    evidence: Literal["dom", "graph"] | None
    #: The node of the attempt that succeeded.
    recovery_point: RecoveryNode | None
    #: The best first; empty before they are computed.
    candidates: list[ScoredNode]
    replay_ids: list[str]
    #: Names only.
    inputs: list[str]
    policy: dict[str, Any]
    reason: RecoveryReason | None
    #: Time from the request to success.
    recovery_ms: int | None
    created_at: WireTime
    finished_at: WireTime | None


class RecoveryRow(SQLModel, table=True):
    """A recovery; its attempts are replays whose `cause` is its id."""

    __tablename__ = "recoveries"
    __table_args__ = (
        Index("ix_recoveries_list", "workspace_id", "mode", "id"),
        Index("ix_recoveries_session", "session_id"),
        Index(
            "ix_recoveries_point",
            "point_session_id",
            sqlite_where=text("point_session_id IS NOT NULL"),
            postgresql_where=text("point_session_id IS NOT NULL"),
        ),
        Index(
            "ix_recoveries_open",
            "workspace_id",
            "mode",
            "id",
            sqlite_where=text(OPEN_RECOVERY),
            postgresql_where=text(OPEN_RECOVERY),
        ),
        Index(
            "ix_recoveries_due",
            "workspace_id",
            "mode",
            "id",
            sqlite_where=text(DUE_RECOVERY),
            postgresql_where=text(DUE_RECOVERY),
        ),
    )

    id: str = Field(primary_key=True)
    workspace_id: str
    mode: str
    workflow: str
    session_id: str
    failure_tag: str | None = None
    failed_at_ms: int = Field(sa_type=BigInteger)
    sandbox: str
    status: str
    #: Session of the requested recovery point, and time of its event.
    point_session_id: str | None = None
    point_t_ms: int | None = Field(default=None, sa_type=BigInteger)
    #: Null before they are computed; while the recovery is open, each has the positions of its donor.
    candidates: list[dict[str, Any]] | None = Field(default=None, sa_type=JSON)
    replay_ids: list[str] = Field(sa_type=JSON)
    #: Null for recoveries of earlier releases.
    input_names: list[str] | None = Field(default=None, sa_type=JSON)
    #: Nonce and ciphertext of the inputs; null once the live attempt has them, or the recovery ended.
    input_values: bytes | None = None
    #: Policy of the attempts, with defaults; null for recoveries of earlier releases.
    policy: dict[str, Any] | None = Field(default=None, sa_type=JSON)
    #: Searches for candidates that began and gave no answer.
    searches: int = Field(default=0, sa_column_kwargs={"server_default": "0"})
    #: An attempt was started live; its row goes with its donor.
    went_live: bool = Field(default=False, sa_column_kwargs={"server_default": false()})
    #: Set when an attempt starts, and cleared when it ends or is removed.
    attempt_is_open: bool = Field(default=False, sa_column_kwargs={"server_default": false()})
    evidence: str | None = None
    recovery_point: dict[str, Any] | None = Field(default=None, sa_type=JSON)
    reason: str | None = None
    recovery_ms: int | None = Field(default=None, sa_type=BigInteger)
    #: The POST that asked for it.
    request_id: str | None = None
    created_at: datetime
    finished_at: datetime | None = None

    @property
    def tenant(self) -> Tenant:
        """Workspace and mode of the recovery."""
        return Tenant(self.workspace_id, self.mode)
