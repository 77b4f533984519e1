"""Replays: requests, wire objects and rows. Spec §3.3, §4.6; contract §8."""

from datetime import datetime
from typing import Annotated, Any, Literal, Self

from pydantic import Field as WireField
from pydantic import StringConstraints, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticCustomError
from sqlalchemy import JSON, Index, text
from sqlmodel import Field, SQLModel

from recorder import limits
from recorder.models import text_patterns
from recorder.models.wire import WireInput, WireOutput, WireTime
from recorder.models.workspace import HostEntry
from recorder.tenant import Tenant

ReplayStatus = Literal["queued", "running", "completed", "diverged", "failed"]
Sandbox = Literal["dry", "live"]
ReplayMode = Literal["full", "partial", "guided"]
DecisionAction = Literal["act", "skip", "retarget", "abort"]

#: Conditions of dry replays that a run can work on, of those that wait for a person's decision, of live ones
#: that wait for a worker, and of those that a worker runs. SQL finds the partial indexes by these very words.
DRY_TO_RUN = "sandbox = 'dry' AND finished_at IS NULL AND awaiting_step IS NULL"
DRY_AWAITING = "sandbox = 'dry' AND finished_at IS NULL AND awaiting_until IS NOT NULL"
LIVE_QUEUED = "sandbox = 'live' AND status = 'queued' AND finished_at IS NULL"
LIVE_RUNNING = "sandbox = 'live' AND status = 'running' AND finished_at IS NULL"

#: Id of an event or frame.
ItemId = Annotated[str, StringConstraints(pattern=text_patterns.ITEM_ID)]
_Method = Literal["GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE"]
_Methods = Annotated[list[_Method], WireField(min_length=1, max_length=limits.LIVE_METHODS)]
_Address = Annotated[
    str, StringConstraints(pattern=text_patterns.ORIGIN, max_length=limits.ADDRESS_CHARACTERS)
]
_InputName = Annotated[str, StringConstraints(min_length=1, max_length=limits.REPLAY_INPUT_NAME_CHARACTERS)]
#: `check_replay_inputs` has the lower limit of those that hold neither a stored state nor a file.
_InputValue = Annotated[str, StringConstraints(max_length=limits.LARGE_INPUT_CHARACTERS)]
#: Values to type, by `input.secret_ref` or the event's id.
ReplayInputs = dict[_InputName, _InputValue]


def require_single_replay_member(body: WireInput) -> None:
    """Check that exactly one member was sent.

    Raises:
        ValueError: if none or several were.
    """
    if len([name for name in body.model_fields_set if getattr(body, name) is not None]) != 1:
        raise ValueError(f"send one of {', '.join(type(body).model_fields)}")


class ReplayPlace(WireInput):
    """A position in a session: exactly one of its members."""

    tag: str | None = WireField(default=None, min_length=1, max_length=limits.TAG_NAME_CHARACTERS)
    frame_id: ItemId | None = None
    event_id: ItemId | None = None

    @model_validator(mode="after")
    def _require_single_member(self) -> Self:
        require_single_replay_member(self)
        return self


class ReplayAnchorPlace(ReplayPlace):
    """The position at which a replay begins; with `auto` that of the best candidate of a recovery."""

    auto: Literal[True] | None = None


class ReplayThresholds(WireInput):
    """Similarities of states: from `ok` on they match, below `diverged` they do not."""

    ok: float = WireField(default=0.75, ge=0, le=1)
    diverged: float = WireField(default=0.45, ge=0, le=1)

    @model_validator(mode="after")
    def _check_threshold_order(self) -> Self:
        if self.diverged > self.ok:
            raise ValueError("diverged must not exceed ok")
        return self


class ReplayViewport(WireInput):
    """Size of the page in the live sandbox."""

    w: int = WireField(default=1280, ge=100, le=8_192)
    h: int = WireField(default=800, ge=100, le=8_192)


#: Members of a policy with an effect where no browser opens; `min_support` only against a path or the graph.
DRY_POLICY = ("on_divergence", "heal", "thresholds", "min_support")


class ReplayPolicyBody(WireInput):
    """Policy of a replay; members that were not sent have the values shown here."""

    on_divergence: Literal["stop", "skip", "ask"] = "stop"
    heal: Literal["off", "suggest"] = "suggest"
    thresholds: ReplayThresholds = WireField(default_factory=ReplayThresholds)
    min_support: float = WireField(default=0.01, ge=0, le=1)
    speed: Literal["fast", "recorded"] = "fast"
    step_timeout_ms: int = WireField(default=5_000, ge=100, le=60_000)
    max_ms: int = WireField(default=600_000, ge=1_000, le=3_600_000)
    repeat_consequential: bool = False
    base_url_map: dict[_Address, _Address] = WireField(default_factory=dict, max_length=limits.LIVE_HOSTS)
    #: Hosts of the workspace's list that the replay may reach; absent, all of them.
    allow_hosts: list[HostEntry] | None = WireField(default=None, max_length=limits.LIVE_HOSTS)
    #: Methods by host of that list; other hosts take every method.
    allow_methods: dict[HostEntry, _Methods] = WireField(default_factory=dict, max_length=limits.LIVE_HOSTS)
    #: Input that holds the stored state of a browser, with which a live replay begins.
    storage_state_ref: _InputName | None = None
    viewport: ReplayViewport = WireField(default_factory=ReplayViewport)


class ReplayOther(WireInput):
    """The session whose snapshots the actions are played on, a path, or the whole graph: one of them."""

    session_id: str | None = None
    path_id: str | None = None
    graph: Literal[True] | None = None

    @model_validator(mode="after")
    def _require_single_member(self) -> Self:
        require_single_replay_member(self)
        return self


class ReplayCreate(WireInput):
    """Body of `POST /v1/replays`."""

    session_id: str
    sandbox: Sandbox
    mode: ReplayMode = "full"
    anchor: ReplayAnchorPlace | None = None
    until: ReplayPlace | None = None
    #: Absent: the recording itself.
    against: ReplayOther | None = None
    #: Never shown.
    inputs: ReplayInputs = WireField(default_factory=dict, max_length=limits.REPLAY_INPUTS)
    policy: ReplayPolicyBody = WireField(default_factory=ReplayPolicyBody)


class ReplayDecision(WireInput):
    """Body of `POST /v1/replays/{id}/decision`."""

    step: int = WireField(ge=1)
    action: DecisionAction
    #: With `retarget`: it must match one element alone.
    selector: str | None = WireField(
        default=None, min_length=1, max_length=limits.SELECTOR_CHARACTERS, validate_default=True
    )

    @field_validator("selector")
    @classmethod
    def _check_selector(cls, value: str | None, info: ValidationInfo) -> str | None:
        action = info.data.get("action")
        if action == "retarget" and value is None:
            raise PydanticCustomError("missing", "This member is required.")
        if action not in (None, "retarget") and value is not None:
            raise ValueError("goes with the action retarget alone")
        return value


class ReplayProgress(WireOutput):
    """Last step that was worked on; the total is null before the replay runs."""

    step: int
    steps: int | None


class ReplayAwaiting(WireOutput):
    """Step of a guided replay that waits for a decision until a time."""

    step: int
    expires_at: WireTime


class AnchorEvent(WireOutput):
    """The event with which a replay begins."""

    event_id: str
    t_ms: int


class ReplayFailure(WireOutput):
    """Why a replay could not run."""

    type: Literal["invalid_recording", "input_missing", "sandbox", "timeout", "cancelled", "internal"]
    message: str


class Replay(WireOutput):
    """A replay of a sealed session."""

    id: str
    session_id: str
    workflow: str
    sandbox: Sandbox
    mode: ReplayMode
    status: ReplayStatus
    anchor: dict[str, Any] | None
    anchor_event: AnchorEvent | None
    until: dict[str, Any] | None
    against: dict[str, Any] | None
    #: Of an attempt of a recovery: the event of the failed session before which the replay begins.
    start: dict[str, Any] | None
    #: Names only.
    inputs: list[str]
    policy: dict[str, Any]
    progress: ReplayProgress
    awaiting: ReplayAwaiting | None
    summary: dict[str, Any] | None
    divergence: dict[str, Any] | None
    result_session_id: str | None
    cause: str | None
    attempt: int
    error: ReplayFailure | None
    created_at: WireTime
    started_at: WireTime | None
    finished_at: WireTime | None


class ReplayStep(WireOutput):
    """A step of a replay."""

    step: int
    event_id: str
    outcome: str
    similarity: float | None
    locator: str | None
    #: Null in the dry sandbox, whose times are those of the recording.
    ms: int | None
    frame_id: str | None
    delivery: str


class ReplayRow(SQLModel, table=True):
    """A replay: the row is the queue that the replay drain run works on."""

    __tablename__ = "replays"
    __table_args__ = (
        Index("ix_replays_list", "workspace_id", "mode", "id"),
        Index("ix_replays_session", "session_id", "id"),
        Index(
            "ix_replays_other",
            "against_session_id",
            sqlite_where=text("against_session_id IS NOT NULL"),
            postgresql_where=text("against_session_id IS NOT NULL"),
        ),
        Index(
            "ix_replays_result",
            "result_key",
            sqlite_where=text("result_key IS NOT NULL"),
            postgresql_where=text("result_key IS NOT NULL"),
        ),
        Index(
            "ix_replays_cause",
            "cause",
            sqlite_where=text("cause IS NOT NULL"),
            postgresql_where=text("cause IS NOT NULL"),
        ),
        Index(
            "ix_replays_open",
            "workspace_id",
            "mode",
            "id",
            sqlite_where=text("finished_at IS NULL"),
            postgresql_where=text("finished_at IS NULL"),
        ),
        Index(
            "ix_replays_to_run",
            "workspace_id",
            "mode",
            "id",
            sqlite_where=text(DRY_TO_RUN),
            postgresql_where=text(DRY_TO_RUN),
        ),
        Index(
            "ix_replays_awaiting",
            "workspace_id",
            "mode",
            "awaiting_until",
            sqlite_where=text(DRY_AWAITING),
            postgresql_where=text(DRY_AWAITING),
        ),
        Index(
            "ix_replays_live_queued",
            "workspace_id",
            "mode",
            "id",
            sqlite_where=text(LIVE_QUEUED),
            postgresql_where=text(LIVE_QUEUED),
        ),
        Index(
            "ix_replays_live_running",
            "id",
            sqlite_where=text(LIVE_RUNNING),
            postgresql_where=text(LIVE_RUNNING),
        ),
    )

    id: str = Field(primary_key=True)
    workspace_id: str
    mode: str
    workflow: str
    session_id: str
    sandbox: str
    kind: str
    status: str
    #: Anchor, until and policy as they were sent, with defaults; path or graph of `against`; start of an
    #: attempt.
    spec: dict[str, Any] = Field(sa_type=JSON)
    anchor_event: dict[str, Any] | None = Field(default=None, sa_type=JSON)
    #: Searches for an automatic anchor that began and gave no answer.
    searches: int = Field(default=0, sa_column_kwargs={"server_default": "0"})
    #: Session of `against`, or of the start of an attempt.
    against_session_id: str | None = None
    input_names: list[str] = Field(sa_type=JSON)
    #: Nonce and ciphertext of the inputs; null once the replay ended.
    input_values: bytes | None = None
    #: Decisions of a guided replay by step.
    decisions: dict[str, Any] = Field(sa_type=JSON)
    awaiting_step: int | None = None
    awaiting_until: datetime | None = None
    step: int = 0
    steps: int | None = None
    summary: dict[str, Any] | None = Field(default=None, sa_type=JSON)
    divergence: dict[str, Any] | None = Field(default=None, sa_type=JSON)
    #: Of a dry one whose result another one may copy: hash of what it depends on.
    result_key: str | None = None
    result_session_id: str | None = None
    cause: str | None = None
    attempt: int = 1
    error: dict[str, Any] | None = Field(default=None, sa_type=JSON)
    #: The POST that asked for it.
    request_id: str | None = None
    created_at: datetime
    started_at: datetime | None = None
    finished_at: datetime | None = None

    @property
    def tenant(self) -> Tenant:
        """Workspace and mode of the replay."""
        return Tenant(self.workspace_id, self.mode)


class ReplayStepRow(SQLModel, table=True):
    """A step of a replay."""

    __tablename__ = "replay_steps"
    __table_args__ = {"sqlite_with_rowid": False}

    replay_id: str = Field(primary_key=True)
    step: int = Field(primary_key=True)
    event_id: str
    outcome: str
    similarity: float | None = None
    locator: str | None = None
    ms: int | None = None
    frame_id: str | None = None
    delivery: str
