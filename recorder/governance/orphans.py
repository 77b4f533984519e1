"""Orphaned objects: uploads that were stored and never committed, in the stores of frames. Contract §3.

An upload writes its object before the rows that name it. A process that is killed in between leaves an
object without a row, or a temporary file; a client that sends the upload again gets another object. Nothing
can name such an object later, so it is removed once no request can be under way any more.
"""

import logging
from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import NamedTuple

import polars as pl
from sqlalchemy import func
from sqlmodel import Session as DbSession
from sqlmodel import col, select

from recorder import clock
from recorder.errors import Unavailable
from recorder.errors.panics import LibraryPanic
from recorder.governance.holds import list_held_sessions
from recorder.governance.item_failures import ItemFailures
from recorder.governance.purging.session_content import list_content_stores
from recorder.models.frame import FrameRow
from recorder.models.governance import PurgeRow
from recorder.models.session import SessionRow
from recorder.models.workspace import WorkspaceRow
from recorder.runtime import Runtime
from recorder.storage.blobs import Blobs
from recorder.storage.lake import Lake
from recorder.storage.lake_reads import retry_lake_read
from recorder.storage.leases import HeldLease
from recorder.tenant import Tenant

log = logging.getLogger("recorder.orphans")

#: Age, by the store's time of the last change, from which an object without a row is removed.
GRACE = timedelta(hours=24)
#: Sessions of one portion: their rows are read together.
_PAGE = 100


class Orphan(NamedTuple):
    """An object without a row, and the store that holds it."""

    store: Blobs
    key: str
    size: int


@dataclass
class _NamedObjects:
    """Objects that the rows of a session name."""

    rows: int = 0
    keys: set[str] = field(default_factory=set)


def list_orphans(runtime: Runtime, workspace: WorkspaceRow, *, at: datetime) -> Iterator[list[Orphan]]:
    """Yield the orphaned objects of a workspace, those of some sessions at a time.

    Objects of held sessions and of open purges are left out. So are those of a session of which fewer rows
    are found than it has frames: its lake is incomplete, which `recorder doctor` reports.

    Args:
        runtime: the deployment.
        workspace: the workspace.
        at: instant of the run; one in the future counts as now, since uploads may be under way.

    Raises:
        Unavailable: if a store or the database does not answer.
    """
    before = min(at, clock.now()) - GRACE
    folder = f"frames/{workspace.id}/"
    stores = list_content_stores(runtime)
    session_ids = sorted({name for store in stores for name in store.list_folders(folder)})
    for start in range(0, len(session_ids), _PAGE):
        old_objects: dict[str, list[Orphan]] = {}
        for session_id in session_ids[start : start + _PAGE]:
            old_objects[session_id] = [
                Orphan(store, key, size)
                for store in stores
                for key, size in store.list_unchanged(f"{folder}{session_id}/", since=before)
            ]
        named = _read_named_objects(
            runtime, workspace.id, [session_id for session_id, objects in old_objects.items() if objects]
        )
        orphans = [
            orphan
            for session_id, keys in named.items()
            for orphan in old_objects[session_id]
            if orphan.key not in keys
        ]
        if orphans:
            yield orphans


def remove_orphans(
    runtime: Runtime, held: HeldLease, workspace: WorkspaceRow, *, at: datetime
) -> Iterator[list[Orphan]]:
    """Remove the orphaned objects of a workspace; yield them after each portion.

    Args:
        runtime: the deployment.
        held: lease of the run.
        workspace: the workspace.
        at: instant of the run.

    Raises:
        LeaseLost: if another run took over.
        Unavailable: if a store cannot be listed, or the database does not answer; the next run goes on.
        ItemsFailed: once all objects were tried, if some could not be removed.
    """
    failures = ItemFailures("orphaned objects")
    for orphans in list_orphans(runtime, workspace, at=at):
        removed = []
        for orphan in orphans:
            held.require_time()
            with failures.collect(orphan.key):
                orphan.store.delete(orphan.key)
                removed.append(orphan)
        yield removed
    failures.raise_at_end()


def _read_named_objects(
    runtime: Runtime, workspace_id: str, session_ids: Collection[str]
) -> dict[str, set[str]]:
    """Return the objects that rows name, for those of the sessions whose orphans may be removed."""
    if not session_ids:
        return {}
    with runtime.database.transaction(write=False) as db:
        # Before the sessions: the rows of a session that is not sealed afterwards were all in the database.
        named = _read_hot_rows_for_orphans(db, session_ids)
        sessions = db.exec(select(SessionRow).where(col(SessionRow.id).in_(session_ids))).all()
        is_open = (col(PurgeRow.session_id).in_(session_ids), PurgeRow.step != "done")
        left_out = {*db.exec(select(PurgeRow.session_id).where(*is_open))}
        left_out |= list_held_sessions(db, workspace_id, session_ids)
    sealed: defaultdict[Tenant, list[SessionRow]] = defaultdict(list)
    for row in sessions:
        if row.status == "sealed" and row.id not in left_out:
            sealed[row.tenant].append(row)
    for tenant, rows in sealed.items():
        named |= _read_lake_rows_for_orphans(runtime.lake, tenant, rows)
    for row in sessions:
        if row.id not in left_out and named[row.id].rows < row.frame_count:
            log.warning("frames of session %s are incomplete; its objects are left alone", row.id)
            left_out.add(row.id)
    return {session_id: named[session_id].keys for session_id in session_ids if session_id not in left_out}


def _read_hot_rows_for_orphans(
    db: DbSession, session_ids: Collection[str]
) -> defaultdict[str, _NamedObjects]:
    named: defaultdict[str, _NamedObjects] = defaultdict(_NamedObjects)
    is_wanted = col(FrameRow.session_id).in_(session_ids)
    counts = select(FrameRow.session_id, func.count()).where(is_wanted).group_by(col(FrameRow.session_id))
    for session_id, rows in db.exec(counts):
        named[session_id].rows = rows
    for column in (FrameRow.object, FrameRow.dom_object):
        for session_id, key in db.exec(select(FrameRow.session_id, column).where(is_wanted).distinct()):
            if key is not None:
                named[session_id].keys.add(key)
    return named


def _read_lake_rows_for_orphans(
    lake: Lake, tenant: Tenant, sessions: list[SessionRow]
) -> dict[str, _NamedObjects]:
    """Return the objects that the lake's rows of sealed sessions name."""
    is_wanted = (
        pl.col("workflow").is_in(sorted({row.workflow for row in sessions}))
        & pl.col("date").is_in(sorted({row.lake_date for row in sessions if row.lake_date is not None}))
        & pl.col("session_id").is_in([row.id for row in sessions])
    )
    columns = [pl.len().alias("rows"), pl.col("object").unique(), pl.col("dom_object").drop_nulls().unique()]
    try:
        table = retry_lake_read(
            lambda: (
                lake.scan("frames", tenant).filter(is_wanted).group_by("session_id").agg(columns).collect()
            )
        )
    except (LibraryPanic, OSError, pl.exceptions.PolarsError) as error:
        raise Unavailable("The lake") from error
    return {
        row["session_id"]: _NamedObjects(row["rows"], {*row["object"], *row["dom_object"]})
        for row in table.iter_rows(named=True)
    }
