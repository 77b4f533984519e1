"""Search for the sessions of an erasure, in ranges of ids, and the requests of their purges. Contract §7.

A range has a bounded number of the workspace's own sessions: neither a large workspace nor the sessions of
others between its own hold up other work.
"""

import time
from collections import Counter
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import func
from sqlmodel import Session as DbSession
from sqlmodel import col, insert, select, update

from recorder import clock
from recorder.governance.erasure_subjects import SubjectMatcher, decrypt_subject
from recorder.governance.erasures import SEARCHED_MODES
from recorder.governance.holds import list_held_sessions
from recorder.governance.purging.purge_rows import count_deliveries, describe_purge_request
from recorder.ids import first_id_at
from recorder.masking.policies import list_masking_replacements
from recorder.memory.storage.graph_session_removal import list_nodes
from recorder.models.governance import ErasureNodeRow, ErasureRow, PurgeRow, is_purge_open
from recorder.models.session import SessionRow
from recorder.recording.sessions import hide_sessions_keep_statistics
from recorder.runtime import Runtime
from recorder.storage.conditions import in_tenant
from recorder.storage.leases import HeldLease
from recorder.storage.upsert import insert_missing_rows
from recorder.tenant import Tenant

#: Sessions of one range, and sessions that one transaction hides.
_RANGE = 20_000
_CHUNK = 100
#: A range whose sessions take longer to hide ends after this.
_RANGE_S = 2.0
#: Sessions of so long before the request are searched twice: the longest request, and the clock of its host.
_SEARCHED_TWICE = timedelta(minutes=4)


@dataclass(frozen=True)
class SearchRange:
    """Sessions of a workspace and mode that follow one another by id."""

    tenant: Tenant
    #: Statement for the ids.
    ids: Any
    #: The range begins after this id.
    after: str
    #: Its last id; None if it has no session.
    last_id: str | None
    #: Whether no session follows it.
    is_last: bool


def make_subject_matcher(runtime: Runtime, row: ErasureRow) -> SubjectMatcher:
    """Return the matcher of an open erasure, which must not be searched yet."""
    subject = decrypt_subject(runtime.settings.secret, row.subject, row.id)
    with runtime.database.transaction(write=False) as db:
        replacements = list_masking_replacements(db, row.workspace_id)
    return SubjectMatcher(runtime.settings.secret, row.workspace_id, subject, replacements)


def search_next_range(
    runtime: Runtime, held: HeldLease, row: ErasureRow, matcher: SubjectMatcher, *, longest_request: timedelta
) -> bool:
    """Begin the purge of the sessions in the next range of an erasure that name its subject.

    A request that drew the id of its session before the erasure may commit it after the first search. So the
    sessions of the last minutes before the erasure are searched again, once such requests have ended.

    Args:
        runtime: the deployment.
        held: lease of the run.
        row: an erasure whose next search is due.
        matcher: its matcher.
        longest_request: the longest time that a request takes.

    Returns:
        Whether a further range of this search is left.

    Raises:
        LeaseLost: if another run took over.
    """
    with runtime.database.transaction(write=False) as db:
        searched = _find_next_session_range(db, row)
        matches = matcher.find_sessions(db, searched.ids)
    began_s, end = time.monotonic(), searched.last_id
    for start in range(0, len(matches), _CHUNK):
        if start and time.monotonic() - began_s > _RANGE_S:
            end = matches[start - 1]
            break
        with held.transaction(runtime.database) as db:
            request_erasure_purges(db, row.id, matches[start : start + _CHUNK])
    mode, searched_id = searched.tenant.mode, end or searched.after
    is_over = searched.is_last and end == searched.last_id
    is_search_over = is_over and mode == SEARCHED_MODES[row.mode][-1]
    if is_over:
        mode, searched_id = SEARCHED_MODES[row.mode][-1], ""
    with held.transaction(runtime.database) as db:
        current = db.get_one(ErasureRow, row.id)
        current.status, current.searched_mode, current.searched_id = "running", mode, searched_id
        if is_search_over and current.second_search_at is None:
            current.second_search_at = row.created_at + longest_request
            current.searched_mode = None
        elif is_search_over:
            # Purges that hid sessions from the searches may be of a later time, if a clock was set back.
            newest = _find_newest_purge_request(db, row.workspace_id) or clock.now()
            current.is_searched, current.second_search_at = True, max(clock.now(), newest)
            # Sessions that were searched may be erased now, or later by another erasure.
            current.newest_id = current.searched_id = None
        db.add(current)
    return not is_search_over


def _find_newest_purge_request(db: DbSession, workspace_id: str) -> datetime | None:
    """Return when the newest open purge of a workspace was requested."""
    of_workspace = (is_purge_open(), PurgeRow.workspace_id == workspace_id)
    return db.exec(select(func.max(PurgeRow.requested_at)).where(*of_workspace)).one()


def _find_next_session_range(db: DbSession, row: ErasureRow) -> SearchRange:
    """Return the range of sessions that follows those which were searched."""
    tenant = Tenant(row.workspace_id, row.searched_mode or SEARCHED_MODES[row.mode][0])
    begin = ""
    if row.second_search_at is not None:
        begin = first_id_at("ses", row.created_at - _SEARCHED_TWICE)
    after = row.searched_id or begin
    # The time in an id is that of its creation: sessions that were created after the request stay.
    end = max(first_id_at("ses", row.created_at + timedelta(milliseconds=1)), row.newest_id or "")
    ids = select(SessionRow.id).where(*in_tenant(SessionRow, tenant), col(SessionRow.id) > after)
    ids = ids.where(col(SessionRow.id) <= end).order_by(col(SessionRow.id)).limit(_RANGE)
    rows = ids.subquery()
    count, last_id = db.exec(select(func.count(), func.max(rows.c.id)).select_from(rows)).one()
    return SearchRange(tenant, ids, after, last_id, count < _RANGE)


def request_erasure_purges(db: DbSession, erasure_id: str, session_ids: list[str]) -> None:
    """Hide sessions and request their purges, but for held ones; count both."""
    statement = select(SessionRow).where(col(SessionRow.id).in_(session_ids))
    ordered = statement.order_by(col(SessionRow.id)).with_for_update()
    locked = list(db.exec(ordered.execution_options(populate_existing=True)))
    # Read after the sessions are locked: a hold that is added at the moment waits for the lock.
    held = list_held_sessions(db, db.get_one(ErasureRow, erasure_id).workspace_id, session_ids)
    rows = [row for row in locked if row.id not in held]
    purge = PurgeRow
    begun = select(purge.session_id, purge.erasure_id).where(col(purge.session_id).in_(session_ids))
    erasures = dict(db.exec(begun.order_by(col(purge.session_id)).with_for_update()).all())
    # A run that was killed found some of them before.
    unclaimed = [row for row in rows if erasures.get(row.id) is None]
    unclaimed_ids, now = [row.id for row in unclaimed], clock.now()
    hide_sessions_keep_statistics(db, unclaimed_ids, at=now)
    joined = {"cause": "erasure", "erasure_id": erasure_id}
    connection = db.connection()
    connection.execute(update(purge).where(col(purge.session_id).in_(unclaimed_ids)).values(joined))
    new = [row for row in unclaimed if row.id not in erasures]
    requests = [describe_purge_request(row, "erasure", at=now, erasure_id=erasure_id) for row in new]
    if requests:
        connection.execute(insert(purge), requests)
    visited = {f"{scope.mode}/{scope.workflow}/{number}" for scope, number in list_nodes(db, unclaimed_ids)}
    nodes = [{"erasure_id": erasure_id, "node_id": node_id} for node_id in sorted(visited)]
    counts = Counter(
        sessions=len(unclaimed),
        events=sum(row.event_count for row in unclaimed),
        frames=sum(row.frame_count for row in unclaimed),
        bytes=sum(row.event_bytes + row.frame_bytes for row in unclaimed),
        deliveries=count_deliveries(db, unclaimed_ids),
        nodes=insert_missing_rows(db, ErasureNodeRow, nodes),
    )
    # Locked last, as by purges: they lock an erasure after its sessions.
    erasure = db.get_one(ErasureRow, erasure_id, with_for_update=True, populate_existing=True)
    erasure.counts = dict(Counter(erasure.counts) + counts)
    # The next search meets held sessions of the last minutes again.
    is_last_search = erasure.is_searched or erasure.second_search_at is not None
    searched_twice = first_id_at("ses", erasure.created_at - _SEARCHED_TWICE)
    erasure.held += sum(is_last_search or session_id <= searched_twice for session_id in held)
    db.add(erasure)
