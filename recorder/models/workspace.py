"""Workspaces: settings, masking policies, keys, usage. Spec §2.10, §5; contract §3 (masking), §7.

Expressions are compiled and measured when they are saved (`recorder.masking.pattern_admission`), not here:
bodies are validated on the event loop, and a hostile expression takes a while to compile.
"""

import re
from datetime import datetime
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, field_validator
from pydantic import Field as WireField
from sqlalchemy import JSON, BigInteger
from sqlmodel import Field, SQLModel

from recorder import limits
from recorder.models.wire import Mode, ShownOnce, WireInput, WireOutput, WireTime, left_out_wire_member

Builtin = Literal["email", "card", "token"]


class MaskingPattern(WireInput):
    """One expression of a workspace's or a workflow's own."""

    name: str = WireField(pattern=limits.MASKING_NAME_PATTERN)
    pattern: str = WireField(min_length=1, max_length=limits.MASKING_PATTERN_CHARACTERS)
    #: Stands before the token that takes the place of what was found.
    replacement: str = WireField(default="", max_length=limits.MASKING_REPLACEMENT_CHARACTERS)

    @field_validator("name")
    @classmethod
    def _is_not_built_in(cls, name: str) -> str:
        if name in ("email", "card", "token"):
            raise ValueError("email, card and token name built-in kinds; choose another name")
        return name

    @field_validator("replacement")
    @classmethod
    def _is_printable(cls, replacement: str) -> str:
        if not replacement.isprintable():
            raise ValueError("takes printable characters")
        return replacement


class Masking(WireInput):
    """Masking policy; masks nothing by default."""

    builtins: list[Builtin] = WireField(default_factory=list)
    patterns: Annotated[list[MaskingPattern], WireField(max_length=limits.MASKING_PATTERNS)] = WireField(
        default_factory=list
    )

    @field_validator("builtins")
    @classmethod
    def _are_named_once(cls, builtins: list[Builtin]) -> list[Builtin]:
        if len(set(builtins)) != len(builtins):
            raise ValueError("names each built-in kind once")
        return builtins

    @field_validator("patterns")
    @classmethod
    def _have_own_names(cls, patterns: list[MaskingPattern]) -> list[MaskingPattern]:
        if len({pattern.name for pattern in patterns}) != len(patterns):
            raise ValueError("each pattern has a name of its own")
        return patterns

    def merged_into(self, stored: dict[str, Any] | None) -> dict[str, Any]:
        """Return the settings to store after a change: sent members replace stored ones, the others stay."""
        sent = self.model_dump(include=self.model_fields_set)
        return {**Masking().model_dump(), **(stored or {}), **sent}


WorkspaceStatus = Literal["active", "suspended", "expired"]
STATUSES: tuple[WorkspaceStatus, ...] = get_args(WorkspaceStatus)

_LABEL = r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
# The last label begins with a letter: what looks like a number is an address, whatever its base.
_HOST = re.compile(rf"(?:{_LABEL}\.)*(?=[A-Za-z]){_LABEL}", re.ASCII)
_HOST_CHARACTERS = 253


def _check_workspace_host(entry: str) -> str:
    name, colon, port = entry.partition(":")
    is_port = not colon or (re.fullmatch("[1-9][0-9]{0,4}", port, re.ASCII) and int(port) < 65_536)
    if len(name) > _HOST_CHARACTERS or not _HOST.fullmatch(name) or not is_port:
        raise ValueError(
            "takes a host name such as shop.example.com, with a port if you like (shop.example.com:8443), "
            "without scheme or path"
        )
    return entry.lower()


def _drop_repeated_workspace_hosts(names: list[str]) -> list[str]:
    return list(dict.fromkeys(names))


#: A host of live replays: `name` or `name:port`.
HostEntry = Annotated[str, AfterValidator(_check_workspace_host)]
_Days = Annotated[int, WireField(ge=limits.RETENTION_DAYS[0], le=limits.RETENTION_DAYS[1])]
_Hosts = Annotated[
    list[HostEntry],
    WireField(max_length=limits.LIVE_HOSTS),
    AfterValidator(_drop_repeated_workspace_hosts),
]


class Retention(WireOutput):
    """Days for which a workspace keeps its data."""

    frames_days: int
    events_days: int
    audit_days: int


class LiveReplay(WireOutput):
    """Hosts that replays in the live sandbox may reach; an empty list allows none.

    `name` allows the ports 80 and 443, `name:port` that port.
    """

    allow_hosts: list[str]


class Workspace(WireOutput):
    """A workspace and its settings."""

    id: str
    name: str
    region: str
    status: WorkspaceStatus
    tier: str
    retention: Retention
    masking: Masking
    live_replay: LiveReplay
    created_at: WireTime


class RetentionUpdate(WireInput):
    """Days to change."""

    frames_days: _Days = WireField(default_factory=left_out_wire_member)
    events_days: _Days = WireField(default_factory=left_out_wire_member)
    audit_days: _Days = WireField(default_factory=left_out_wire_member)


class LiveReplayUpdate(WireInput):
    """Hosts that replace the present ones."""

    allow_hosts: _Hosts = WireField(default_factory=left_out_wire_member)


class WorkspaceUpdate(WireInput):
    """Body of `PATCH /v1/workspaces/current`; members left out stay as they are."""

    retention: RetentionUpdate = WireField(default_factory=left_out_wire_member)
    masking: Masking = WireField(default_factory=left_out_wire_member)
    live_replay: LiveReplayUpdate = WireField(default_factory=left_out_wire_member)


_ZERO = {"server_default": "0"}


class WorkspaceRow(SQLModel, table=True):
    """A tenant: owns keys, sessions, graphs and exports."""

    __tablename__ = "workspaces"

    id: str = Field(primary_key=True)
    name: str = Field(unique=True)
    region: str
    status: str = "active"
    tier: str = "default"
    frames_days: int = limits.FRAMES_RETENTION_DAYS
    events_days: int = limits.EVENTS_RETENTION_DAYS
    audit_days: int = limits.AUDIT_RETENTION_DAYS
    #: What is masked in all its workflows; null = nothing.
    masking: dict[str, Any] | None = Field(default=None, sa_type=JSON)
    #: Number of changes of its workflows' masking policies: processes that cached some load them again.
    workflow_policy_version: int = Field(default=0, sa_type=BigInteger, sa_column_kwargs=_ZERO)
    #: Hosts that live replays may reach; null = none.
    live_hosts: list[str] | None = Field(default=None, sa_type=JSON)
    created_at: datetime


class MaskReplacementRow(SQLModel, table=True):
    """Replacement of a masking policy that the workspace or one of its workflows has or had.

    Masked texts keep it, also where the policy changed since.
    """

    __tablename__ = "mask_replacements"
    __table_args__ = {"sqlite_with_rowid": False}

    workspace_id: str = Field(primary_key=True)
    replacement: str = Field(primary_key=True)


class DeploymentRow(SQLModel, table=True):
    """Deployment of this database: one row, made at the first start."""

    __tablename__ = "deployment"

    id: int = Field(default=1, primary_key=True)
    region: str
    #: Into how many sealing lanes the workflows of a workspace and mode are divided.
    seal_slots: int = limits.SEAL_SLOTS
    created_at: datetime
    #: When retention rewrote SQLite's file last.
    rewritten_at: datetime | None = None
    #: Keyed hash that shows whether a process has the deployment's secret; stored at a start.
    secret_check: str | None = None


class Quota(WireOutput):
    """Usage of the current period, and the limits; null means unlimited."""

    period_start: WireTime
    period_end: WireTime
    captured_minutes: int
    captured_minutes_limit: int | None
    exported_rows: int
    exported_rows_limit: int | None


class UsageRow(SQLModel, table=True):
    """Usage of one workspace in one period; made by the first use."""

    __tablename__ = "usage"
    __table_args__ = {"sqlite_with_rowid": False}

    workspace_id: str = Field(primary_key=True)
    #: `YYYY-MM`, UTC.
    period: str = Field(primary_key=True)
    captured_ms: int = Field(default=0, sa_type=BigInteger, sa_column_kwargs=_ZERO)
    exported_rows: int = Field(default=0, sa_type=BigInteger, sa_column_kwargs=_ZERO)
    #: Rows of plans whose export still runs.
    reserved_rows: int = Field(default=0, sa_type=BigInteger, sa_column_kwargs=_ZERO)
    #: Last notice sent for each metric: 0 none, 1 the warning, 2 the exhaustion.
    captured_told: int = Field(default=0, sa_column_kwargs=_ZERO)
    exported_told: int = Field(default=0, sa_column_kwargs=_ZERO)


#: For OpenAPI; `recorder.access.keys` reads scopes.
SCOPE_PATTERN = "^(read|write|admin)( replay:live)?$|^replay:live (read|write|admin)$"


class KeyCreate(WireInput):
    """Body of `POST /v1/keys`."""

    label: str = WireField(min_length=1, max_length=limits.KEY_LABEL_CHARACTERS)
    #: `read`, `write` or `admin`, and `replay:live` behind it where live replays may be started.
    scope: str = WireField(json_schema_extra={"pattern": SCOPE_PATTERN})
    expires_at: WireTime | None = None
    mode: Mode | None = None


class Key(WireOutput):
    """A key as it is listed: never its value, which is not stored."""

    id: str
    label: str
    scope: str
    mode: Mode
    last4: str
    expires_at: WireTime | None
    created_at: WireTime


class KeyCreated(WireOutput):
    """Answer of `POST /v1/keys`: the one time that the value is shown."""

    id: str
    label: str
    scope: str
    key: ShownOnce
    mode: Mode
    expires_at: WireTime | None
    created_at: WireTime


class KeyRow(SQLModel, table=True):
    """An API key, kept only as its keyed hash and last four characters."""

    __tablename__ = "keys"

    id: str = Field(primary_key=True)
    workspace_id: str = Field(index=True)
    mode: str
    label: str
    scope: str
    key_hash: str = Field(unique=True)
    last4: str
    created_at: datetime
    expires_at: datetime | None = None
    revoked_at: datetime | None = None
