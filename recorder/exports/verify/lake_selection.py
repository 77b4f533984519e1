"""Second selection of an export's sessions, for its check against the lake. Spec §4.3.

Its conditions are not those of the plan (`planning/selection.py`): the check finds errors of the plan.
"""

from collections.abc import Iterator
from typing import Any

import sqlalchemy
from sqlalchemy import ColumnElement, and_, or_
from sqlmodel import col, select

from recorder import clock
from recorder.memory.queries.path_selection import select_path
from recorder.models.export import ExportRow
from recorder.models.session import SessionRow, TagRow
from recorder.runtime import Runtime
from recorder.storage.conditions import in_tenant

_ROWS_AT_ONCE = 50_000


def select_lake_check_sessions(
    runtime: Runtime, row: ExportRow, spec: dict[str, Any]
) -> tuple[set[str], set[str]]:
    """Return the sessions that the request selects, and others that the export may have or not.

    The latter were deleted, or imported while the export ran. Sessions that were imported after its end are
    in neither.

    Args:
        runtime: deployment.
        row: row of the export.
        spec: resolved request, as the manifest has it.
    """
    filters = spec["filter"]
    excluded = set(filters.get("exclude_session_ids", []))
    statement = sqlalchemy.select(col(SessionRow.id), _make_certain_condition(row)).where(
        *_make_sealed_conditions(row, spec), *_make_filter_conditions(row, filters)
    )
    expected, doubtful = set[str](), set[str]()
    with runtime.database.transaction(write=False) as db:
        path = select_path(db, tenant=row.tenant, path=filters.get("path"), subpath=filters.get("subpath"))
        on_path = None if path is None else set(path.session_ids())
        for session_id, is_certain in (
            db.connection().execution_options(yield_per=_ROWS_AT_ONCE).execute(statement)
        ):
            if session_id not in excluded and (on_path is None or session_id in on_path):
                (expected if is_certain else doubtful).add(session_id)
    return expected, doubtful


def _make_certain_condition(row: ExportRow) -> ColumnElement[bool]:
    """Return whether a session exists, and was sealed before the export chose its sessions."""
    is_early = col(SessionRow.sealed_at) <= (row.started_at or row.created_at)
    return and_(col(SessionRow.deleted_at).is_(None), or_(~col(SessionRow.is_import), is_early))


def _make_sealed_conditions(row: ExportRow, spec: dict[str, Any]) -> Iterator[ColumnElement[bool]]:
    """Yield the conditions for sealed sessions that were there when the export was requested."""
    yield from in_tenant(SessionRow, row.tenant)
    yield col(SessionRow.status) == "sealed"
    yield col(SessionRow.origin).is_(None)
    yield col(SessionRow.workflow).in_(spec["workflow"])
    yield or_(col(SessionRow.deleted_at).is_(None), col(SessionRow.deleted_at) >= row.created_at)


def _make_filter_conditions(row: ExportRow, filters: dict[str, Any]) -> Iterator[ColumnElement[bool]]:
    """Yield the conditions for the filters of a resolved request, except paths and excluded sessions."""
    until = clock.parse_time(filters["until"], name="until")
    yield col(SessionRow.started_at) < until
    # Once the files of the pinned versions are gone, the lake does not tell that an import came later.
    is_early = col(SessionRow.sealed_at) <= (row.completed_at or clock.now())
    is_import = and_(col(SessionRow.is_import), is_early)
    yield or_(is_import, col(SessionRow.sealed_at) <= until)
    since = filters.get("since")
    if since is not None:
        yield col(SessionRow.started_at) >= clock.parse_time(since, name="since")
    for name, made in (
        ("outcome", col(SessionRow.outcome).__eq__),
        ("actor.kind", col(SessionRow.actor_kind).__eq__),
        ("min_duration_ms", col(SessionRow.duration_ms).__ge__),
        ("max_duration_ms", col(SessionRow.duration_ms).__le__),
        ("min_replayability", col(SessionRow.replayability).__ge__),
    ):
        if filters.get(name) is not None:
            yield made(filters[name])
    if "tag" in filters:
        tagged = select(TagRow.session_id).where(
            *in_tenant(TagRow, row.tenant), TagRow.name == filters["tag"]
        )
        yield col(SessionRow.id).in_(tagged)
