"""Sealed sessions that are not in their graph although they belong there: found, and taken in. Spec §4.2.

Sealing marks a session and indexes it in one transaction, so there are none in a deployment that only ever
ran forwards; a database and a lake that were restored apart may leave some. Their steps are in the lake.
"""

import polars as pl
from sqlmodel import Session as DbSession
from sqlmodel import col, exists, select

from recorder.memory.building.nodes import GraphScope
from recorder.memory.steps import Step
from recorder.memory.storing.indexing import GraphIndexer
from recorder.memory.storing.versions import in_scope
from recorder.models.memory import GraphPauseRow, SessionPathRow
from recorder.models.session import SessionRow
from recorder.runtime import Runtime

_AT_ONCE = 500


def find_missing(db: DbSession, scope: GraphScope) -> list[SessionRow]:
    """Sealed sessions without a path, but for deleted ones, replays, and those sealed in a pause."""
    pause = GraphPauseRow
    paused = (
        *in_scope(pause, scope),
        col(pause.from_seq) <= col(SessionRow.seal_seq),
        col(pause.to_seq).is_(None) | (col(pause.to_seq) >= col(SessionRow.seal_seq)),
    )
    statement = (
        select(SessionRow)
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


def index_missing(runtime: Runtime, scope: GraphScope) -> int:
    """Take what is missing into a graph, from the steps in the lake; nothing while the graph is paused.

    Sessions that the lake does not hold either stay missing.

    Returns:
        How many sessions were taken in.

    Raises:
        Unavailable: if the database or the lake does not answer; the sessions so far stay in.
    """
    with runtime.database.transaction(write=False) as db:
        rows = find_missing(db, scope)
    indexer = GraphIndexer()
    for start in range(0, len(rows), _AT_ONCE):
        steps = _read_steps(runtime, scope, [row.id for row in rows[start : start + _AT_ONCE]])
        some = [row for row in rows[start : start + _AT_ONCE] if row.id in steps]
        with runtime.database.transaction(write=False) as db:
            prepared = indexer.prepare(db, some, steps)
        with runtime.database.transaction(write=True) as db:
            indexer.commit(db, prepared, _as_they_are_now(db, some))
    with runtime.database.transaction(write=False) as db:
        return len(rows) - len(find_missing(db, scope))


def _as_they_are_now(db: DbSession, rows: list[SessionRow]) -> list[SessionRow]:
    """The rows, locked: a late tag or a deletion may have come since they were found."""
    wanted = col(SessionRow.id).in_([row.id for row in rows])
    statement = select(SessionRow).where(wanted).order_by(col(SessionRow.id)).with_for_update()
    return list(db.exec(statement.execution_options(populate_existing=True)))


def _read_steps(runtime: Runtime, scope: GraphScope, session_ids: list[str]) -> dict[str, list[Step]]:
    """The steps of those sessions that the lake holds; a session in it may have none."""
    wanted = (pl.col("workflow") == scope.workflow) & pl.col("session_id").is_in(session_ids)
    there = runtime.lake.scan("sessions", scope.tenant).filter(wanted)
    rows = (
        runtime.lake.scan("steps", scope.tenant)
        .filter(wanted)
        .select("session_id", *Step.__slots__)
        .sort("session_id", "pos")
        .collect()
    )
    steps: dict[str, list[Step]] = {
        session_id: [] for session_id in there.select("session_id").collect()["session_id"]
    }
    for session_id, *members in rows.iter_rows():
        step = Step(*members)
        step.features = tuple(step.features)
        steps[session_id].append(step)
    return steps
