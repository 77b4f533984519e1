"""Selection of an export's sessions: filters, splits, deleted ones, replayability awaited. Spec §4.3."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, cast

import polars as pl
import sqlalchemy
from sqlalchemy import ColumnElement, and_, or_
from sqlmodel import Session as DbSession
from sqlmodel import col, select

from recorder import clock
from recorder.datasets.formats import FORMATS
from recorder.exports.planning.lake_stats import LakeStats
from recorder.exports.planning.plan import Plan, Sampling, make_export_plan
from recorder.exports.planning.sealed_again import require_sealed_rows
from recorder.memory.queries.path_selection import select_path
from recorder.models.export import ExportRow
from recorder.models.export_request import ExportFormat, SplitRule
from recorder.models.governance import PurgeRow, is_purge_open
from recorder.models.session import WAITS_FOR_REPLAYABILITY, SessionRow, TagRow
from recorder.number_formats import format_count
from recorder.storage.conditions import in_tenant
from recorder.storage.database import Database
from recorder.storage.lake import Lake
from recorder.storage.lake_schemas import LakeKind
from recorder.tenant import Tenant

_RANGE = 2**64


def split_of_unit(unit: str, rule: SplitRule) -> str:
    """Return the split of all sessions of a unit, by hash: the same in every export.

    A larger share moves units out of `train` only: `test` takes one end of the hash range, `validation` the
    other.

    Args:
        unit: id that must not be in two splits: a session's, or an actor's within its workspace.
        rule: shares of the splits.
    """
    position = int.from_bytes(hashlib.sha256(b"split:" + unit.encode()).digest()[:8]) / _RANGE
    if position < rule.test:
        return "test"
    return "validation" if 1 - position <= rule.validation else "train"


#: Sessions whose replayability an export waits for are counted up to this number, and waited for so long.
MOST_AWAITED = 1_000
LONGEST_WAIT = timedelta(hours=1)
_TABLES: tuple[LakeKind, ...] = ("events", "frames", "sessions")
_ROWS_AT_ONCE = 50_000
_IDS_AT_ONCE = 2_000
# A search by id costs twice a row of a scan. More sessions than this are found by a scan of their workflows.
_MOST_LOOKED_UP = 20_000
_CHOSEN = pl.Schema(
    {
        "session_id": pl.String,
        "workflow": pl.String,
        "date": pl.String,
        "outcome": pl.String,
        "actor_kind": pl.String,
        "actor_id": pl.String,
    }
)


def plan_selected_sessions(database: Database, lake: Lake, row: ExportRow) -> Plan:
    """Choose the sessions and pin the lake; nothing is written.

    Raises:
        LakeStatsMissing: if the lake lacks a session that SQL calls sealed.
        SessionsSetAside: if sessions were set aside after they were sealed.
        SealingAwaited: if sessions are to be sealed again.
        NotFound: if the filter's path is gone.
    """
    graph: dict[str, int] = {}
    _await_sealing_transactions(database, row)
    with database.transaction(write=False) as db:
        on_path = _select_sessions_of_path(db, row, graph)
        chosen = select_export_sessions(db, row.tenant, row.spec)
        if on_path is not None:
            chosen = chosen.filter(pl.col("session_id").is_in(on_path.implode()))
        require_sealed_rows(db, row.tenant, chosen)
    # After the choice: a session is marked as sealed only once the lake has it.
    versions: dict[str, int | None] = {kind: lake.version(kind, row.tenant) for kind in _TABLES}
    stats = LakeStats(lake, row.tenant, versions, chosen)
    format = cast(ExportFormat, row.format)
    sessions = stats.add_frame_statistics(
        stats.sessions(),
        Sampling(**row.spec["frame_sampling"]),
        with_events="samples" in FORMATS[format].kinds,
    )
    return make_export_plan(format=format, spec=row.spec, versions=versions, graph=graph, sessions=sessions)


def _await_sealing_transactions(database: Database, row: ExportRow) -> None:
    """Wait for transactions that seal sessions of an export: their `sealed_at` is earlier than their commit.

    Otherwise a repeat with the same `until` would find sessions that this plan cannot see yet. On SQLite the
    export was queued after such a transaction, since writers wait for each other.
    """
    if database.is_sqlite:
        return
    sealing = select(SessionRow.id).where(
        *in_tenant(SessionRow, row.tenant),
        SessionRow.status == "stopped",
        col(SessionRow.waiting_since).is_not(None),
        col(SessionRow.workflow).in_(row.spec["workflow"]),
    )
    with database.transaction(write=True) as db:
        list(db.exec(sealing.order_by(col(SessionRow.id)).with_for_update(read=True)))


def _select_sessions_of_path(db: DbSession, row: ExportRow, graph: dict[str, int]) -> pl.Series | None:
    """Return the sessions of the filter's path, and store in `graph` the version that was searched.

    A path that a rebuild has merged is replaced by the merged one. Return None without such a filter.
    """
    filters = row.spec["filter"]
    path = select_path(db, tenant=row.tenant, path=filters.get("path"), subpath=filters.get("subpath"))
    if path is None:
        return None
    graph[path.workflow] = path.columns.version
    return pl.Series(path.session_ids(), dtype=pl.String)


def select_export_sessions(db: DbSession, tenant: Tenant, spec: dict[str, Any]) -> pl.DataFrame:
    """Return the sealed sessions that pass every filter of a resolved request, in no order.

    Returns:
        session_id, workflow, date (lake partition), outcome, actor_kind, split.
    """
    statement = sqlalchemy.select(
        col(SessionRow.id),
        col(SessionRow.workflow),
        col(SessionRow.lake_date),
        col(SessionRow.outcome),
        col(SessionRow.actor_kind),
        col(SessionRow.actor_id),
    ).where(*_make_selection_conditions(tenant, spec))
    rows = db.connection().execution_options(yield_per=_ROWS_AT_ONCE).execute(statement)
    parts = [
        pl.DataFrame([tuple(row) for row in part], schema=_CHOSEN, orient="row") for part in rows.partitions()
    ]
    chosen = pl.concat(parts) if parts else pl.DataFrame(schema=_CHOSEN)
    # Not in SQL: ten thousand ids are more parameters than a statement should carry.
    excluded = spec["filter"].get("exclude_session_ids", [])
    return _add_split(chosen.filter(~pl.col("session_id").is_in(excluded)), spec)


@dataclass(frozen=True)
class SelectionSize:
    """Upper bound of an export: everything that its sessions recorded, sampled or not."""

    sessions: int
    #: Those that have sessions.
    workflows: int
    events: int
    frames: int
    bytes: int


def measure_export_selection(
    db: DbSession, tenant: Tenant, spec: dict[str, Any], *, most_sessions: int
) -> SelectionSize:
    """Add up what the sessions of a resolved request recorded, without regard to `path` and exclusions.

    Args:
        db: database session.
        tenant: workspace and mode.
        spec: resolved request.
        most_sessions: number of sessions after which counting ends; one more than this is counted.
    """
    counted = ("workflow", "event_count", "frame_count", "event_bytes", "frame_bytes")
    chosen = (
        sqlalchemy.select(*(getattr(SessionRow, name) for name in counted))
        .where(*_make_selection_conditions(tenant, spec))
        .limit(most_sessions + 1)
        .subquery("chosen")
    )
    columns = chosen.c
    sums = sqlalchemy.select(
        sqlalchemy.func.count(),
        sqlalchemy.func.count(columns.workflow.distinct()),
        sqlalchemy.func.sum(columns.event_count),
        sqlalchemy.func.sum(columns.frame_count),
        sqlalchemy.func.sum(columns.event_bytes + columns.frame_bytes),
    ).select_from(chosen)
    sessions, workflows, events, frames, size_bytes = db.connection().execute(sums).one()
    return SelectionSize(sessions, workflows, int(events or 0), int(frames or 0), int(size_bytes or 0))


def count_awaited_in_selection(db: DbSession, tenant: Tenant, spec: dict[str, Any]) -> int:
    """Count the sessions of a resolved request whose replayability its filter needs and is not computed yet.

    Counting ends after one more than `MOST_AWAITED`. `path` and exclusions are disregarded, as in
    `measure_export_selection`.
    """
    others = {name: value for name, value in spec["filter"].items() if name != "min_replayability"}
    if others == spec["filter"]:
        return 0
    conditions = _make_selection_conditions(tenant, spec | {"filter": others})
    waiting = select(SessionRow.id).where(*conditions, WAITS_FOR_REPLAYABILITY).limit(MOST_AWAITED + 1)
    return db.exec(select(sqlalchemy.func.count()).select_from(waiting.subquery())).one()


def describe_awaited_in_selection(count: int) -> str:
    """Return the result of `count_awaited_in_selection` in words: "1 session", "more than 1,000 sessions"."""
    return f"more than {MOST_AWAITED:,} sessions" if count > MOST_AWAITED else format_count(count, "session")


def _add_split(chosen: pl.DataFrame, spec: dict[str, Any]) -> pl.DataFrame:
    """Return the sessions with their split, without the actor's id, which may be a person's."""
    rule = SplitRule.model_validate(spec["split"])
    unit = pl.coalesce("actor_id", "session_id") if rule.by == "actor" else pl.col("session_id")
    parts = [split_of_unit(name, rule) for name in chosen.select(unit).to_series()]
    return chosen.drop("actor_id").with_columns(pl.Series("split", parts, pl.String))


@dataclass(frozen=True)
class DeletedSessions:
    """Planned sessions that were deleted since."""

    #: Deleted by a user, purged or not yet.
    deleted: list[str]
    #: Erased with a person's data: nothing is known of them.
    erased: list[str]
    #: Removed after the days of the retention of events, or of a test session.
    expired: list[str] = field(default_factory=list)

    @property
    def ids(self) -> list[str]:
        """Ids of all these sessions."""
        return self.deleted + self.erased + self.expired


def find_deleted_sessions(
    db: DbSession, tenant: Tenant, workflows: list[str], sessions: pl.Series
) -> DeletedSessions:
    """Return the sessions that were deleted.

    Args:
        db: database session.
        tenant: workspace and mode.
        workflows: workflows of the sessions.
        sessions: ids of sessions that were sealed once.
    """
    of_workflows = select(SessionRow.id).where(
        *in_tenant(SessionRow, tenant),
        SessionRow.status == "sealed",
        col(SessionRow.workflow).in_(workflows),
    )
    purges = select(PurgeRow.session_id, PurgeRow.cause).where(
        *in_tenant(PurgeRow, tenant),
        col(PurgeRow.workflow).in_(workflows),
    )
    still_there = of_workflows.where(col(SessionRow.deleted_at).is_(None))
    present = set[str]()
    if len(sessions) <= _MOST_LOOKED_UP:
        for ids in _split_selected_session_ids(sorted(sessions)):
            present.update(db.exec(still_there.where(col(SessionRow.id).in_(ids))))
    else:
        present.update(db.exec(still_there))
    missing = [session_id for session_id in sessions if session_id not in present]
    causes: dict[str, str] = {}
    for ids in _split_selected_session_ids(missing):
        hidden = of_workflows.where(col(SessionRow.id).in_(ids), col(SessionRow.deleted_at).is_not(None))
        causes.update(dict.fromkeys(db.exec(hidden), "deletion"))
        causes.update(db.exec(purges.where(col(PurgeRow.session_id).in_(ids))).all())
    gone = DeletedSessions([], [])
    for session_id in missing:
        match causes.get(session_id):
            case "deletion" | "hard_delete":
                gone.deleted.append(session_id)
            case "retention" | "test_expiry":
                gone.expired.append(session_id)
            case _:
                gone.erased.append(session_id)
    return gone


def _split_selected_session_ids(ids: Sequence[str]) -> Iterator[Sequence[str]]:
    """Yield the ids of selected sessions, as many at once as one statement takes."""
    for start in range(0, len(ids), _IDS_AT_ONCE):
        yield ids[start : start + _IDS_AT_ONCE]


def list_sessions_deleted_since(db: DbSession, tenant: Tenant, since: datetime) -> list[str]:
    """Return the sessions that were deleted at an instant or later.

    The row of a session that is deleted for good is gone at once. Its purge stays open while a running export
    has the session.
    """
    hidden = select(SessionRow.id).where(*in_tenant(SessionRow, tenant), col(SessionRow.deleted_at) >= since)
    purged = select(PurgeRow.session_id).where(
        *in_tenant(PurgeRow, tenant), is_purge_open(), col(PurgeRow.requested_at) >= since
    )
    return [*db.exec(hidden), *db.exec(purged)]


def _make_selection_conditions(tenant: Tenant, spec: dict[str, Any]) -> Iterator[ColumnElement[bool]]:
    yield from in_tenant(SessionRow, tenant)
    yield col(SessionRow.status) == "sealed"
    yield col(SessionRow.deleted_at).is_(None)
    # A replay is a copy of its source: in an export it would be in training and test data.
    yield col(SessionRow.origin).is_(None)
    yield col(SessionRow.workflow).in_(spec["workflow"])
    filters = spec["filter"]
    since = filters.get("since")
    until = clock.parse_time(filters["until"], name="until")
    if since is not None:
        yield col(SessionRow.started_at) >= clock.parse_time(since, name="since")
    # A session recorded live must be sealed by then too, so that a repeat selects the same sessions. For an
    # import only the start counts: it is in the past when it arrives.
    in_time = and_(col(SessionRow.started_at) < until, col(SessionRow.sealed_at) <= until)
    yield or_(in_time, and_(col(SessionRow.is_import), col(SessionRow.started_at) < until))
    if "outcome" in filters:
        yield col(SessionRow.outcome) == filters["outcome"]
    if "actor.kind" in filters:
        yield col(SessionRow.actor_kind) == filters["actor.kind"]
    if "min_duration_ms" in filters:
        yield col(SessionRow.duration_ms) >= filters["min_duration_ms"]
    if "max_duration_ms" in filters:
        yield col(SessionRow.duration_ms) <= filters["max_duration_ms"]
    if "min_replayability" in filters:
        yield col(SessionRow.replayability) >= filters["min_replayability"]
    if "tag" in filters:
        tagged = select(TagRow.session_id).where(
            *in_tenant(TagRow, tenant),
            TagRow.name == filters["tag"],
        )
        yield col(SessionRow.id).in_(tagged)
