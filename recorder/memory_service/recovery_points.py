"""Recovery points: anchors of failed sessions, with event and frame of a step. Spec §2.7, §4.2."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from sqlalchemy import Subquery, and_
from sqlalchemy.orm import aliased
from sqlmodel import Session as DbSession
from sqlmodel import col, select

from recorder import limits
from recorder.hashing import compute_hash_bucket
from recorder.memory.graph.arrays import Ints
from recorder.memory.queries.chosen_sessions import read_newest_columns, select_session_rows
from recorder.memory.queries.columns import NOWHERE, GraphColumns, make_session_lookup
from recorder.memory.queries.recovery_anchors import WITNESSES, Anchor, Witness, find_recovery_anchors
from recorder.memory.queries.structure import make_empty_column
from recorder.models.memory import RecoveryPoint
from recorder.models.session import SessionRow, TagRow
from recorder.models.workflow import WorkflowRow
from recorder.recording.outcomes import OutcomeRules
from recorder.storage.conditions import in_tenant
from recorder.storage.lake import Lake
from recorder.storage.lake_reads import retry_lake_read
from recorder.tenant import GraphScope, Tenant

_IDS_AT_ONCE = 500
#: Tags of one part.
_TAGS_AT_ONCE = 10_000


@dataclass(frozen=True)
class FoundAnchors:
    """The anchors of a workflow, and the graph they are in."""

    columns: GraphColumns
    anchors: list[Anchor]


def read_recovery_point_anchors(
    db: DbSession,
    scope: GraphScope,
    *,
    failure_tag: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    is_timed: bool = True,
) -> FoundAnchors:
    """Return the anchors of the sessions that carry a failure tag, the most frequent first.

    Args:
        db: a transaction.
        scope: the graph.
        failure_tag: by default each of the workflow's error tags.
        since: sessions that started at this instant or later.
        until: sessions that started before this instant.
        is_timed: whether times count to the success tags, and witnesses are listed; else times count to the
            stop, and nothing more is read or kept than where the anchors are.

    Raises:
        NotFound: for an unknown workflow.
    """
    columns = read_newest_columns(db, scope)
    workflow = db.get_one(WorkflowRow, (scope.workspace_id, scope.mode, scope.workflow))
    rules = OutcomeRules.of(workflow.outcome_rules)
    names = rules.error_tags if failure_tag is None else frozenset({failure_tag})
    chosen = select_session_rows(columns, since=since, until=until)
    # The last one: what came between two failures did not lead to success.
    last_ms = read_last_recovery_tag_times(db, scope, columns, names)
    failed_ms = {row: t_ms for row, t_ms in last_ms.items() if chosen[row]}

    def read_successes(rows: Ints) -> Mapping[int, Ints]:
        if not is_timed:
            return {}
        # Sessions that recovered did so after their failure.
        after = names if int(rows[0]) in failed_ms else None
        return read_recovery_tag_times(db, scope, columns, rules.success_tags, after=after)

    witnesses = WITNESSES if is_timed else 0
    anchors = find_recovery_anchors(columns, chosen, failed_ms, read_successes, witnesses=witnesses)
    return FoundAnchors(columns, anchors)


def list_recovery_points(
    db: DbSession,
    lake: Lake,
    *,
    tenant: Tenant,
    workflow: str,
    failure_tag: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    limit: int = limits.LIST_DEFAULT,
) -> list[RecoveryPoint]:
    """Return the recovery points, the most frequent first, then by node id.

    Raises:
        NotFound: for an unknown workflow.
        Unavailable: if the lake does not answer.
    """
    scope = GraphScope(tenant, workflow)
    recovery = read_recovery_point_anchors(db, scope, failure_tag=failure_tag, since=since, until=until)
    columns = recovery.columns
    # One whose sessions were all purged has no step to show.
    anchors = [anchor for anchor in recovery.anchors if anchor.witnesses][:limit]
    steps = read_recovery_point_steps(
        db, lake, scope, columns, [step for anchor in anchors for step in anchor.witnesses]
    )
    points = []
    for anchor in anchors:
        recorded = [witness for witness in anchor.witnesses if witness in steps]
        # One whose step a frame shows comes first; a purged session has neither.
        witness = min(recorded, key=lambda witness: steps[witness].frame_id is None, default=None)
        if witness is None:
            continue
        point = RecoveryPoint(
            frame_id=steps[witness].frame_id,
            event_id=steps[witness].event_id,
            session_id=columns.session_id[witness.row].decode(),
            frequency=anchor.frequency,
            median_recovery_ms=anchor.median_recovery_ms,
            node_id=columns.nodes[anchor.node].node_id,
            label=columns.nodes[anchor.node].label,
            session_count=anchor.session_count,
            basis=anchor.basis,
        )
        points.append(point)
    return points


def read_last_recovery_tag_times(
    db: DbSession, scope: GraphScope, columns: GraphColumns, names: frozenset[str]
) -> dict[int, int]:
    """Return the time of the last tag with one of these names in each session of the graph, by row."""
    last = _select_last_recovery_tags(scope, names)
    statement = (
        select(last.c.session_id, last.c.t_ms)
        .join(SessionRow, col(SessionRow.id) == last.c.session_id)
        .where(SessionRow.workflow == scope.workflow)
    )
    parts = _read_recovery_tags(db, columns, statement)
    return {
        row: t_ms for rows, times in parts for row, t_ms in zip(rows.tolist(), times.tolist(), strict=True)
    }


def read_recovery_tag_times(
    db: DbSession,
    scope: GraphScope,
    columns: GraphColumns,
    names: frozenset[str],
    *,
    after: frozenset[str] | None = None,
) -> dict[int, Ints]:
    """Return the times of tags with these names in sessions of the graph, by row, ascending.

    Args:
        db: a transaction.
        scope: the graph.
        columns: columns of the graph.
        names: names of the tags.
        after: only tags after the last tag of the session with one of these names; none of sessions without.
    """
    statement = (
        select(TagRow.session_id, TagRow.t_ms)
        .where(*_match_recovery_tags(scope, names))
        .join(SessionRow, col(SessionRow.id) == col(TagRow.session_id))
        .where(SessionRow.workflow == scope.workflow)
    )
    if after is not None:
        last = _select_last_recovery_tags(scope, after)
        is_later = and_(last.c.session_id == col(TagRow.session_id), last.c.t_ms < col(TagRow.t_ms))
        statement = statement.join(last, is_later)
    none = make_empty_column()
    parts = [(none, none), *_read_recovery_tags(db, columns, statement)]
    rows, times = (np.concatenate(column) for column in zip(*parts, strict=True))
    if not len(rows):
        return {}
    order = np.lexsort((times, rows))
    tagged, starts = np.unique(rows[order], return_index=True)
    return dict(zip(tagged.tolist(), np.split(times[order], starts[1:]), strict=True))


def _select_last_recovery_tags(scope: GraphScope, names: frozenset[str]) -> Subquery:
    """Select the sessions with a tag of one of these names, and the time of their last one.

    Indexes alone are read: a session may have ten thousand such tags, whose rows hold their data.
    """
    tagged = select(TagRow.session_id).where(*_match_recovery_tags(scope, names)).distinct().subquery()
    tag = aliased(TagRow)
    last = (
        select(tag.t_ms)
        .where(tag.session_id == tagged.c.session_id, col(tag.name).in_(sorted(names)))
        .order_by(col(tag.t_ms).desc())
        .limit(1)
        .scalar_subquery()
    )
    return select(tagged.c.session_id, last.label("t_ms")).subquery()


def _read_recovery_tags(db: DbSession, columns: GraphColumns, statement: Any) -> Iterator[tuple[Ints, Ints]]:
    """Yield rows and times of selected tags in parts, for there may be thousands for each session."""
    lookup = make_session_lookup(columns)
    with closing(db.connection().execute(statement.execution_options(yield_per=_TAGS_AT_ONCE))) as tags:
        for part in tags.partitions():
            rows = lookup.find([session_id for session_id, _ in part])
            is_in_graph = rows != NOWHERE
            yield rows[is_in_graph], np.array([t_ms for _, t_ms in part], dtype=np.int64)[is_in_graph]


def _match_recovery_tags(scope: GraphScope, names: frozenset[str]) -> Iterator[Any]:
    """Return the conditions of tags with one of these names."""
    yield from in_tenant(TagRow, scope.tenant)
    yield col(TagRow.name).in_(sorted(names))


class RecordedStepIds(NamedTuple):
    """The first event of a recorded step, and the frame that shows its screen."""

    event_id: str
    frame_id: str | None


def read_recovery_point_steps(
    db: DbSession, lake: Lake, scope: GraphScope, columns: GraphColumns, witnesses: Sequence[Witness]
) -> dict[Witness, RecordedStepIds]:
    """Return the recorded steps of the witnesses by one read of the lake, without those that are gone."""
    ids = {witness.row: columns.session_id[witness.row].decode() for witness in witnesses}
    dates = {date for date in _read_recovery_lake_dates(db, sorted(ids.values())) if date is not None}
    wanted = (
        (pl.col("workflow") == scope.workflow)
        & pl.col("date").is_in(sorted(dates))
        & pl.col("bucket").is_in(sorted({compute_hash_bucket(session_id) for session_id in ids.values()}))
        & pl.col("session_id").is_in(sorted(ids.values()))
        & pl.col("pos").is_in(sorted({witness.pos for witness in witnesses}))
    )
    columns_read = ("session_id", "pos", "event_id", "frame_id")
    rows = retry_lake_read(
        lambda: lake.scan("steps", scope.tenant).filter(wanted).select(columns_read).collect()
    )
    steps = {
        (session_id, pos): RecordedStepIds(event_id, frame_id)
        for session_id, pos, event_id, frame_id in rows.iter_rows()
    }
    recorded = {witness: steps.get((ids[witness.row], witness.pos)) for witness in witnesses}
    return {witness: step for witness, step in recorded.items() if step is not None}


def _read_recovery_lake_dates(db: DbSession, session_ids: Sequence[str]) -> Iterable[str | None]:
    for start in range(0, len(session_ids), _IDS_AT_ONCE):
        some = session_ids[start : start + _IDS_AT_ONCE]
        yield from db.exec(select(SessionRow.lake_date).where(col(SessionRow.id).in_(some)).distinct())
