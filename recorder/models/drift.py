"""Drift of memory graphs: payloads of its events, and the state of the detector. Spec §6.1; contract §6."""

from datetime import datetime
from typing import Any, Literal

from sqlalchemy import JSON, BigInteger
from sqlmodel import Field, SQLModel

from recorder.models.wire import WireOutput, WireTime

ChangeKind = Literal["stopped", "dropped", "new", "grew"]


class DriftNode(WireOutput):
    """The new node, or the last node of the new edge or path."""

    node_id: str
    label: str
    kind: str


class DriftPath(WireOutput):
    """The path that disappeared, or the most frequent one through the node or edge that did."""

    path_id: str
    node_ids: list[str]
    labels: list[str]


class PathSubject(WireOutput):
    """A path that changed."""

    path_id: str


class NodeSubject(WireOutput):
    """A node that changed."""

    node_id: str


class EdgeSubject(WireOutput):
    """An edge that changed: the ids of the nodes it leads from and to."""

    edge: tuple[str, str]


class DriftWindow(WireOutput):
    """The sessions that an alarm rests on, and why they suffice."""

    kind: ChangeKind
    subject: PathSubject | NodeSubject | EdgeSubject
    sessions: int
    #: How many of them have the subject.
    seen: int
    #: How many the baseline lets expect: about, where it fell; at most, where it grew.
    expected: float
    #: So many misses, or sightings, the rule asks for.
    needed: int
    #: Distinct actors, and UTC days on which they began; at least two of either.
    actors: int
    days: int
    #: When the first and the last of them began.
    since: WireTime
    until: WireTime
    explanation: str


class DriftBaseline(WireOutput):
    """The sessions that the window is compared with."""

    sessions: int
    seen: int
    since: WireTime
    until: WireTime


class DriftStateRow(SQLModel, table=True):
    """State of the drift detector for one graph: the last session it saw, and the reference sessions.

    Counters are not stored: they follow from the session rows between these numbers, so that deletions and
    rebuilds are honoured, and a detector run that was interrupted is repeated.
    """

    __tablename__ = "drift_states"
    __table_args__ = {"sqlite_with_rowid": False}

    workspace_id: str = Field(primary_key=True)
    mode: str = Field(primary_key=True)
    workflow: str = Field(primary_key=True)
    #: `seal_seq` up to which sessions were judged.
    looked_seq: int = Field(sa_type=BigInteger)
    #: First and last `seal_seq` of the baseline; null while there are too few sessions.
    baseline_from_seq: int | None = Field(default=None, sa_type=BigInteger)
    baseline_to_seq: int | None = Field(default=None, sa_type=BigInteger)
    #: How many sessions it had when it was chosen: later deletions do not move its end of term.
    baseline_sessions: int = 0
    #: Nodes seen up to this `seal_seq` are not new.
    known_to_seq: int | None = Field(default=None, sa_type=BigInteger)
    #: Subjects that keep an older baseline: id, first and last `seal_seq` of it, first that counts.
    inherited: list[list[Any]] = Field(default_factory=list, sa_type=JSON)
    #: Changes that were noticed: id of the subject, whether it rose, `seal_seq` of its beginning and of its
    #: alarm, shares before and after, whether it was reported. Null in rows of an earlier release.
    changes: list[list[Any]] | None = Field(default=None, sa_type=JSON)
    updated_at: datetime


class DriftAlarmRow(SQLModel, table=True):
    """An alarm that was given, written in one transaction with its event in the outbox."""

    __tablename__ = "drift_alarms"
    __table_args__ = {"sqlite_with_rowid": False}

    workspace_id: str = Field(primary_key=True)
    mode: str = Field(primary_key=True)
    workflow: str = Field(primary_key=True)
    #: Type of the event, and id of its subject as it was then; of an edge both ends, joined by `>`.
    type: str = Field(primary_key=True)
    subject_id: str = Field(primary_key=True)
    #: `seal_seq` of the session that brought it about.
    seal_seq: int = Field(primary_key=True, sa_type=BigInteger)
    event_id: str
    #: The event's `data`.
    data: dict[str, Any] = Field(sa_type=JSON)
    created_at: datetime
