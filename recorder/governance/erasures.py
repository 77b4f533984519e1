"""Erasure of a person's data: the request, the search for sessions, and its end. Spec §4.5; contract §7.

The open request keeps the subject encrypted. Sessions are found in ranges of ids, each in a transaction of
its own, and purged by the same routine as all others. At the end the row is deleted: the audit log keeps it.
"""

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from sqlalchemy import func
from sqlmodel import Session as DbSession
from sqlmodel import and_, col, exists, insert, or_, select, update

from recorder import clock
from recorder.access.keys import Caller
from recorder.audit.log import Origin, record_audit_entry
from recorder.errors import NotFound
from recorder.governance.content_inventory import list_inventory_tables_to_rewrite
from recorder.governance.holds import list_held_sessions
from recorder.governance.purging.purge_rows import count_deliveries, describe_purge_request, is_purge_open
from recorder.governance.subjects import (
    SubjectMatcher,
    decrypt_subject,
    encrypt_subject,
    hash_subject,
    hash_text,
    hash_tokens,
    iterate_subject_texts,
)
from recorder.ids import is_id, new_timed_id
from recorder.masking.policies import list_masking_replacements
from recorder.memory.storage.graph_session_removal import list_nodes
from recorder.models.governance import Erasure, ErasureCreate, ErasureRow, PurgeRow
from recorder.models.operations import AuditRow
from recorder.models.session import SessionMetadataRow, SessionRow
from recorder.recording.sessions import hide_sessions_keep_statistics
from recorder.runtime import Runtime
from recorder.storage.leases import HeldLease, LeaseKeeper, LeaseLost, lease_for_block
from recorder.storage.upsert import insert_if_missing

log = logging.getLogger("recorder.erasures")

LEASE = "erasures"
_LEASE_MS = 60_000
_BEATS_PER_LEASE = 4
_DUE = timedelta(days=30)
#: Sessions of one range of the search, and sessions that one transaction hides.
_RANGE = 20_000
_CHUNK = 100
_REPEATED_ROWS = 1_000
_COUNTED = ("sessions", "events", "frames", "bytes", "shards", "nodes", "exports", "deliveries")
_HELD = {
    "code": "held",
    "message": "Some sessions are under a legal hold and were left alone. Ask again when the hold has ended.",
}


def request_erasure(
    db: DbSession, secret: bytes, caller: Caller, origin: Origin, body: ErasureCreate
) -> Erasure:
    """Queue the erasure of a subject; while one of the same subject is open, that one is returned."""
    subject_hash = hash_subject(secret, caller.workspace_id, body.subject)
    same = select(ErasureRow).filter_by(
        workspace_id=caller.workspace_id, mode=caller.mode, subject_hash=subject_hash
    )
    erasure_id, now = new_timed_id("era")
    row = ErasureRow(
        id=erasure_id,
        workspace_id=caller.workspace_id,
        mode=caller.mode,
        subject_hash=subject_hash,
        open_key=f"{caller.mode}:{subject_hash}",
        subject=encrypt_subject(secret, body.subject, erasure_id),
        created_at=now,
        due_by=now + _DUE,
        counts=dict.fromkeys(_COUNTED, 0),
    )
    is_made = False
    while not is_made:
        # An open one may also be of an earlier release, or repeated by a restore, without the unique key.
        open_row = db.exec(same.order_by(col(ErasureRow.id))).first()
        if open_row is not None:
            return _describe_erasure(open_row)
        # A request at the same moment makes this wait and insert nothing.
        is_made = insert_if_missing(db, ErasureRow, row.model_dump())
    # After a restore of an older backup both kinds of hashes find the subject again.
    tokens = hash_tokens(secret, caller.workspace_id, body.subject)
    details = {"scope": body.scope, "subject_hash": subject_hash, "token_hashes": tokens}
    record_audit_entry(
        db, origin, "privacy.request", resource_type="erasure", resource_id=row.id, details=details
    )
    return _describe_erasure(row)


def find_erasure(db: DbSession, caller: Caller, erasure_id: str) -> Erasure:
    """Return an erasure of the caller's workspace and mode, an ended one from the audit log.

    Raises:
        NotFound: if there is no such erasure.
    """
    if not is_id(erasure_id, "era"):
        raise NotFound("erasure")
    row = db.get(ErasureRow, erasure_id)
    if row is not None and (row.workspace_id, row.mode) == (caller.workspace_id, caller.mode):
        return _describe_erasure(row)
    ended = select(AuditRow.details).where(
        AuditRow.workspace_id == caller.workspace_id,
        AuditRow.action == "privacy.erase",
        AuditRow.resource_id == erasure_id,
        AuditRow.mode == caller.mode,
    )
    details = db.exec(ended).first()
    if details is None:
        raise NotFound("erasure")
    return Erasure.model_validate(details)


def has_unfinished_erasures(db: DbSession) -> bool:
    """Return whether an erasure is not searched yet, or waits neither for a purge nor for a table."""
    stale = func.coalesce(ErasureRow.stale_tables, "")
    has_ended = and_(~_make_erasure_purge_condition(), stale == "")
    waiting = select(ErasureRow.id).where(or_(col(ErasureRow.is_searched).is_(False), has_ended))
    return db.exec(waiting.limit(1)).first() is not None


def run_erasures(
    runtime: Runtime,
    owner: str,
    *,
    remove_texts: Callable[[], bool] = lambda: True,
    lease_ms: int = _LEASE_MS,
) -> int | None:
    """Search the sessions of open erasures, and end those whose purges have ended.

    An erasure that fails, whatever its error, stops no other one: the first error is raised at the end.

    Args:
        runtime: the deployment.
        owner: name of the run.
        remove_texts: removes what quotes recorded content outside the list of purges; called once before
            erasures end. They stay open where it returns False.
        lease_ms: duration of the lease.

    Returns:
        The number of erasures that ended; None if another run is at work.

    Raises:
        LeaseLost: if another run took over.
        Unavailable: if the database does not answer; the next run goes on.
    """
    with lease_for_block(runtime.database, LEASE, owner, ttl_ms=lease_ms) as held:
        if held is None:
            return None
        every_s = lease_ms / 1000 / _BEATS_PER_LEASE
        with LeaseKeeper(runtime.database, lambda: [held], every_s=every_s):
            with runtime.database.transaction(write=False) as db:
                rows = list(db.exec(select(ErasureRow).order_by(col(ErasureRow.id))))
            ended, errors = 0, []
            texts_gone: bool | None = None
            for row in rows:
                try:
                    if not row.is_searched:
                        _search_sessions(runtime, held, row)
                    if texts_gone is None and _are_purges_over(runtime, row.id):
                        texts_gone = remove_texts()
                    if texts_gone is not False:
                        ended += _end_erasure(runtime, held, row.id)
                except LeaseLost:
                    raise
                except Exception as error:
                    log.warning("erasure %s failed and is tried again: %r", row.id, error)
                    errors.append(error)
            if errors:
                raise errors[0]
            return ended


def try_erasures(
    runtime: Runtime, owner: str, remove_texts: Callable[[], bool] = lambda: True
) -> tuple[int, Exception | None]:
    """Return how many erasures ended, and the error of one that failed."""
    try:
        return run_erasures(runtime, owner, remove_texts=remove_texts) or 0, None
    except LeaseLost:
        raise
    except Exception as error:
        log.warning("an erasure failed; the purges go on", exc_info=error)
        return 0, error


def _search_sessions(runtime: Runtime, held: HeldLease, row: ErasureRow) -> None:
    """Begin the purge of every session that names the subject and was created before the request."""
    subject = decrypt_subject(runtime.settings.secret, row.subject, row.id)
    with runtime.database.transaction(write=False) as db:
        replacements = list_masking_replacements(db, row.workspace_id)
    matcher = SubjectMatcher(runtime.settings.secret, row.workspace_id, subject, replacements)
    modes = ["live", "test"] if row.mode == "live" else ["test"]
    for mode in modes[modes.index(row.searched_mode) if row.searched_mode else 0 :]:
        after: str | None = (row.searched_id or "") if mode == row.searched_mode else ""
        while after is not None:
            with runtime.database.transaction(write=False) as db:
                until = _find_erasure_range_end(db, row, mode, after)
                session_ids = matcher.find_sessions(db, row, mode=mode, after=after, until=until)
            for start in range(0, len(session_ids), _CHUNK):
                with held.transaction(runtime.database) as db:
                    _request_erasure_purges(db, row.id, session_ids[start : start + _CHUNK])
            with held.transaction(runtime.database) as db:
                current = db.get_one(ErasureRow, row.id)
                current.status, current.searched_mode, current.searched_id = "running", mode, until or after
                current.is_searched = until is None and mode == modes[-1]
                db.add(current)
            after = until


def _find_erasure_range_end(db: DbSession, row: ErasureRow, mode: str, after: str) -> str | None:
    """Return the id at which a range of sessions ends; None at the last range."""
    ids = select(SessionRow.id).where(
        SessionRow.workspace_id == row.workspace_id, SessionRow.mode == mode, col(SessionRow.id) > after
    )
    return db.exec(ids.order_by(col(SessionRow.id)).offset(_RANGE - 1).limit(1)).first()


def repeat_erasures(runtime: Runtime, workspace_id: str, requests: Sequence[AuditRow]) -> None:
    """Begin the erasures of a restored copy that were requested after its backup.

    The audit log holds no subjects: every text of a session is hashed and compared. `run_erasures` ends them.

    Args:
        runtime: the restored deployment, which nothing else works on.
        workspace_id: the workspace.
        requests: its entries `privacy.request`, of which some may have ended before.
    """
    if not requests:
        return
    secret = runtime.settings.secret
    wanted: dict[str, list[AuditRow]] = {}
    with runtime.database.transaction(write=True) as db:
        replacements = list_masking_replacements(db, workspace_id)
        for entry in requests:
            for digest in (entry.details["subject_hash"], *entry.details.get("token_hashes", ())):
                wanted.setdefault(digest, []).append(entry)
            if db.get(ErasureRow, entry.resource_id) is None:
                db.add(_make_repeated_erasure(entry))
    after = ""
    while True:
        with runtime.database.transaction(write=False) as db:
            rows = _read_texts_for_erasure(db, workspace_id, after)
        matches: dict[str, list[str]] = {}
        for row, metadata in rows:
            texts = iterate_subject_texts([row.actor_id, metadata])
            for digest in {
                digest for text in texts for digest in hash_text(secret, workspace_id, text, replacements)
            }:
                for entry in wanted.get(digest, ()):
                    if row.created_at <= entry.at and (entry.mode == "live" or row.mode == "test"):
                        matches.setdefault(entry.resource_id, []).append(row.id)
        for erasure_id, session_ids in matches.items():
            for start in range(0, len(session_ids), _CHUNK):
                with runtime.database.transaction(write=True) as db:
                    _request_erasure_purges(db, erasure_id, session_ids[start : start + _CHUNK])
        if len(rows) < _REPEATED_ROWS:
            return
        after = rows[-1][0].id


def _make_repeated_erasure(entry: AuditRow) -> ErasureRow:
    return ErasureRow(
        id=entry.resource_id,
        workspace_id=entry.workspace_id,
        mode=entry.mode or "live",
        status="running",
        subject_hash=entry.details["subject_hash"],
        subject=b"",
        created_at=entry.at,
        due_by=entry.at + _DUE,
        is_searched=True,
        counts=dict.fromkeys(_COUNTED, 0),
    )


def _read_texts_for_erasure(db: DbSession, workspace_id: str, after: str) -> list[Any]:
    statement = (
        select(SessionRow, SessionMetadataRow.metadata_)
        .join(SessionMetadataRow, col(SessionMetadataRow.session_id) == col(SessionRow.id), isouter=True)
        .where(SessionRow.workspace_id == workspace_id, col(SessionRow.id) > after)
    )
    return list(db.exec(statement.order_by(col(SessionRow.id)).limit(_REPEATED_ROWS)))


def _request_erasure_purges(db: DbSession, erasure_id: str, session_ids: list[str]) -> None:
    """Hide sessions and request their purges, but for held ones; count both."""
    held = list_held_sessions(db, db.get_one(ErasureRow, erasure_id).workspace_id, session_ids)
    statement = select(SessionRow).where(col(SessionRow.id).in_(set(session_ids) - held))
    ordered = statement.order_by(col(SessionRow.id)).with_for_update()
    rows = list(db.exec(ordered.execution_options(populate_existing=True)))
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
    counts = Counter(
        sessions=len(unclaimed),
        events=sum(row.event_count for row in unclaimed),
        frames=sum(row.frame_count for row in unclaimed),
        bytes=sum(row.event_bytes + row.frame_bytes for row in unclaimed),
        deliveries=count_deliveries(db, unclaimed_ids),
    )
    nodes = {f"{scope.mode}/{scope.workflow}/{number}" for scope, number in list_nodes(db, unclaimed_ids)}
    # Locked last, as by purges: they lock an erasure after its sessions.
    erasure = db.get_one(ErasureRow, erasure_id, with_for_update=True, populate_existing=True)
    erasure.counts = dict(Counter(erasure.counts) + counts)
    erasure.nodes = sorted({*(erasure.nodes or ()), *nodes})
    erasure.held += len(held)
    db.add(erasure)


def _make_erasure_purge_condition() -> Any:
    """Return the condition that an erasure waits for purges: its own, and those that had begun before it.

    The rows of sessions that were being purged before are gone: the search cannot find out whether they name
    the subject.
    """
    is_own = col(PurgeRow.erasure_id) == ErasureRow.id
    is_earlier = and_(
        col(PurgeRow.workspace_id) == ErasureRow.workspace_id,
        or_(col(PurgeRow.mode) == ErasureRow.mode, col(ErasureRow.mode) == "live"),
        col(PurgeRow.requested_at) <= ErasureRow.created_at,
    )
    return exists().where(is_purge_open(), or_(is_own, is_earlier))


def _are_purges_over(runtime: Runtime, erasure_id: str) -> bool:
    """Return whether an erasure found sessions, all are purged, and its table rewrites are not requested."""
    with runtime.database.transaction(write=False) as db:
        row = db.get_one(ErasureRow, erasure_id)
        has_sessions = row.counts.get("sessions", 0) > 0
        is_over = row.is_searched and row.stale_tables is None and not _is_erasure_purging(db, erasure_id)
        return has_sessions and is_over


def _is_erasure_purging(db: DbSession, erasure_id: str) -> bool:
    purging = select(ErasureRow.id).where(ErasureRow.id == erasure_id, _make_erasure_purge_condition())
    return db.exec(purging).first() is not None


def _end_erasure(runtime: Runtime, held: HeldLease, erasure_id: str) -> bool:
    """End an erasure whose sessions are all purged, and their tables rewritten; return whether it ended."""
    with held.transaction(runtime.database) as db:
        row = db.get_one(ErasureRow, erasure_id, populate_existing=True)
        if not row.is_searched or _is_erasure_purging(db, erasure_id):
            return False
        is_sqlite = runtime.database.is_sqlite
        if row.stale_tables is None and not (is_sqlite and not row.counts.get("sessions")):
            # Rewritten pages must not hold an earlier version of this row with the subject.
            row.subject = b""
            row.stale_tables = " ".join(list_inventory_tables_to_rewrite(is_sqlite=is_sqlite))
            db.add(row)
        if row.stale_tables:
            return False
        ended = {**_describe_erasure(row).model_dump(mode="json"), "completed_at": clock.to_iso(clock.now())}
        ended |= {"status": "failed", "error": _HELD} if row.held else {"status": "completed"}
        # The mode of the request: a test key reads back what test keys asked for.
        origin = Origin(row.workspace_id, "system", "privacy", mode=row.mode)
        record_audit_entry(
            db, origin, "privacy.erase", resource_type="erasure", resource_id=erasure_id, details=ended
        )
        db.delete(row)
        return True


def _describe_erasure(row: ErasureRow) -> Erasure:
    return Erasure(
        id=row.id,
        status="running" if row.status == "running" else "queued",
        scope="all",
        subject_hash=row.subject_hash,
        created_at=row.created_at,
        due_by=row.due_by,
        completed_at=None,
        counts=dict.fromkeys(_COUNTED, 0)
        | row.counts
        | {"nodes": len(row.nodes or ()), "exports": len(row.exports)},
        error=None,
    )
