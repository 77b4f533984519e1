"""Consistency of a graph with its sealed sessions: checks of counters, indexing of missing ones. Spec §4.2.

Sealing marks a session and indexes it in one transaction, so none is missing in a deployment that only ever
ran forwards; some may be after a database and a lake were restored apart. Their steps are in the lake.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import polars as pl
from sqlmodel import Session as DbSession
from sqlmodel import col, exists, select

from recorder.memory.graph.capacity import GraphCapacity
from recorder.memory.graph.paths import NO_PATH
from recorder.memory.queries.columns import GraphColumns
from recorder.memory.queries.common_paths import describe_common_paths
from recorder.memory.steps.action_tokens import step_texts_of_label
from recorder.memory.steps.session_steps import STEP_COLUMNS, Step
from recorder.memory.storage.graph_store import read_graph_rows
from recorder.memory.storage.indexing import GraphIndexer
from recorder.memory.storage.versions import in_scope, read_newest_version
from recorder.models.memory import GraphPathRow, GraphPauseRow, GraphTraceRow, GraphVariantRow, SessionPathRow
from recorder.models.session import SessionRow
from recorder.runtime import Runtime
from recorder.storage.lake_reads import retry_lake_read
from recorder.tenant import GraphScope

#: Sessions that are read and taken in at once, and the events that they may have together.
_AT_ONCE, _EVENTS_AT_ONCE = 500, 20_000


def find_missing_sessions(db: DbSession, scope: GraphScope) -> list[str]:
    """Return ids of sealed sessions without a path, in the order of sealing.

    Deleted ones, replays, and those sealed in a pause are none of them.
    """
    pause = GraphPauseRow
    paused = (
        *in_scope(pause, scope),
        col(pause.from_seq) <= col(SessionRow.seal_seq),
        col(pause.to_seq).is_(None) | (col(pause.to_seq) >= col(SessionRow.seal_seq)),
    )
    statement = (
        select(SessionRow.id)
        .where(
            *in_scope(SessionRow, scope),
            SessionRow.status == "sealed",
            col(SessionRow.deleted_at).is_(None),
            col(SessionRow.origin).is_distinct_from("replay"),
            ~exists().where(col(SessionPathRow.session_id) == col(SessionRow.id)),
            ~exists().where(*paused),
        )
        .order_by(col(SessionRow.seal_seq))
    )
    return list(db.exec(statement))


def index_missing_sessions(
    runtime: Runtime,
    scope: GraphScope,
    *,
    at_once: int = _AT_ONCE,
    events_at_once: int = _EVENTS_AT_ONCE,
) -> int:
    """Take what is missing into a graph, from the steps in the lake; nothing while the graph is paused.

    Sessions that the lake does not hold either stay missing.

    Args:
        runtime: the deployment.
        scope: the graph.
        at_once: sessions that are read and taken in at once.
        events_at_once: events that these have together; a larger session is taken in alone.

    Returns:
        How many sessions were taken in.

    Raises:
        Unavailable: if the database or the lake does not answer; the sessions so far stay in.
    """
    with runtime.database.transaction(write=False) as db:
        missing = find_missing_sessions(db, scope)
        portions = list(_divide_missing_sessions(db, missing, at_once, events_at_once))
    indexer = GraphIndexer(GraphCapacity.of_megabytes(runtime.settings.graph_memory_mb))
    for portion in portions:
        steps = _read_missing_session_steps(runtime, scope, portion)
        with runtime.database.transaction(write=False) as db:
            some = _read_missing_session_rows(db, steps)
            prepared = indexer.prepare(db, some, steps)
        with runtime.database.transaction(write=True) as db:
            indexer.commit(db, prepared, _lock_missing_session_rows(db, some))
    with runtime.database.transaction(write=False) as db:
        return len(missing) - len(find_missing_sessions(db, scope))


def _divide_missing_sessions(
    db: DbSession, session_ids: list[str], at_once: int, events_at_once: int
) -> Iterator[list[str]]:
    """Yield the ids in portions: steps of sessions with a million events do not fit into memory together."""
    for start in range(0, len(session_ids), at_once):
        some = session_ids[start : start + at_once]
        sizes = select(SessionRow.id, SessionRow.event_count).where(col(SessionRow.id).in_(some))
        event_counts = dict(db.exec(sizes).all())
        portion: list[str] = []
        events = 0
        for session_id in some:
            count = event_counts[session_id]
            if portion and events + count > events_at_once:
                yield portion
                portion, events = [], 0
            portion.append(session_id)
            events += count
        yield portion


def _read_missing_session_rows(db: DbSession, session_ids: Iterable[str]) -> list[SessionRow]:
    """Return the rows of sessions, in the order of sealing."""
    wanted = col(SessionRow.id).in_(list(session_ids))
    return list(db.exec(select(SessionRow).where(wanted).order_by(col(SessionRow.seal_seq))))


def _lock_missing_session_rows(db: DbSession, rows: list[SessionRow]) -> list[SessionRow]:
    """Return the rows as they are now, locked: a late tag or a deletion may have changed them."""
    wanted = col(SessionRow.id).in_([row.id for row in rows])
    statement = select(SessionRow).where(wanted).order_by(col(SessionRow.id)).with_for_update()
    return list(db.exec(statement.execution_options(populate_existing=True)))


def _read_missing_session_steps(
    runtime: Runtime, scope: GraphScope, session_ids: list[str]
) -> dict[str, list[Step]]:
    """Return the steps of those sessions that the lake holds; a session in it may have none."""
    wanted = (pl.col("workflow") == scope.workflow) & pl.col("session_id").is_in(session_ids)

    def read_tables() -> tuple[pl.DataFrame, pl.DataFrame]:
        there = runtime.lake.scan("sessions", scope.tenant).filter(wanted).select("session_id")
        steps = runtime.lake.scan("steps", scope.tenant).filter(wanted)
        rows = steps.select("session_id", *STEP_COLUMNS).sort("session_id", "pos").collect()
        return rows, there.collect()

    rows, there = retry_lake_read(read_tables)
    steps: dict[str, list[Step]] = {session_id: [] for session_id in there["session_id"]}
    for session_id, *members in rows.iter_rows():
        steps[session_id].append(_restore_missing_session_step(dict(zip(STEP_COLUMNS, members, strict=True))))
    return steps


def _restore_missing_session_step(members: dict[str, Any]) -> Step:
    """Return the step of a row of the lake."""
    values = {**members, "features": tuple(members["features"])}
    location = values.pop("location")
    values["locations"] = tuple(location.split("\n")) if location else ()
    if members["names"] is not None:
        return Step(**{**values, "names": tuple(members["names"])})
    # An earlier release: the label may quote the page, but for that of an activity.
    texts = step_texts_of_label(members["action"], target=members["target"], label=members["label"])
    return Step(**{**values, **texts._asdict()})


@dataclass(frozen=True, slots=True)
class GraphCheck:
    """Result of a check of one graph; each list names what is wrong, and is empty where nothing is."""

    scope: GraphScope
    sessions: int
    #: Sessions with steps that lie on no path, on several, or on one that was merged into another.
    off_path: list[str] = field(default_factory=list)
    #: Sealed sessions that should be in the graph.
    missing: list[str] = field(default_factory=list)
    #: Traces whose counter differs from the sessions that took them: key, counter, sessions.
    miscounted: list[tuple[int, int, int]] = field(default_factory=list)
    #: Paths whose outcomes do not sum to 1, and the graph if its frequencies do not sum to the share of
    #: sessions with steps.
    unequal: list[str] = field(default_factory=list)


def check_graph_consistency(db: DbSession, scope: GraphScope) -> GraphCheck:
    """Compare the counters of a graph with its sessions, in one transaction; return the differences."""
    row = SessionPathRow
    current = read_graph_rows(
        db, scope, row.session_id, row.trace_key, where=[col(row.removed_version).is_(None)]
    )
    off_path = _find_sessions_off_path(db, scope, [(row.session_id, row.trace_key) for row in current])
    return GraphCheck(
        scope,
        sessions=len(current),
        off_path=off_path,
        missing=find_missing_sessions(db, scope),
        miscounted=_find_wrong_counters(db, scope, Counter(row.trace_key for row in current)),
        # Sessions on no path make the fractions unequal, so they are compared only without any.
        unequal=[] if off_path else _find_unequal_fractions(db, scope),
    )


def _find_sessions_off_path(db: DbSession, scope: GraphScope, current: list[tuple[str, int]]) -> list[str]:
    """Return current sessions that are not on exactly one path that still exists."""
    rows = read_graph_rows(db, scope, GraphPathRow.number, where=[col(GraphPathRow.merged_into).is_(None)])
    unmerged = {number for (number,) in rows}
    variant = GraphVariantRow
    rows = read_graph_rows(db, scope, variant.variant_key, variant.path, variant.nodes)
    path_of = {row.variant_key: row.path for row in rows}
    without_steps = {row.variant_key for row in rows if not row.nodes}
    variant_of = dict(read_graph_rows(db, scope, GraphTraceRow.trace_key, GraphTraceRow.variant_key))
    lies_on: defaultdict[str, list[int | None]] = defaultdict(list)
    for session_id, trace in current:
        if variant_of.get(trace) in without_steps:
            continue
        lies_on[session_id].append(path_of.get(variant_of.get(trace, 0)))
    return sorted(
        session_id for session_id, paths in lies_on.items() if len(paths) != 1 or paths[0] not in unmerged
    )


def _find_wrong_counters(db: DbSession, scope: GraphScope, taken: Counter[int]) -> list[tuple[int, int, int]]:
    counters = dict(read_graph_rows(db, scope, GraphTraceRow.trace_key, GraphTraceRow.n))
    keys = sorted(counters.keys() | taken.keys())
    return [(key, counters.get(key, 0), taken[key]) for key in keys if counters.get(key, 0) != taken[key]]


def _find_unequal_fractions(db: DbSession, scope: GraphScope) -> list[str]:
    """Return paths whose fractions of outcomes, and workflows whose frequencies, do not add up."""
    head = read_newest_version(db, scope)
    if head is None or not head.version:
        return []
    columns = GraphColumns().updated(db, scope, head.version)
    paths = describe_common_paths(columns, columns.current(), min_frequency=0, limit=len(columns.paths))
    unequal = [
        path.path_id
        for path in paths
        if not math.isclose(sum(path.outcomes.model_dump().values()), 1, abs_tol=1e-9)
    ]
    on_paths = int((columns.path[columns.current()] != NO_PATH).sum())
    share = on_paths / max(int(columns.current().sum()), 1)
    if not math.isclose(sum(path.frequency for path in paths), share, abs_tol=1e-9):
        unequal.append(scope.workflow)
    return unequal
