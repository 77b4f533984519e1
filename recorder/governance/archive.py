"""Archive of frames: objects of old sessions move to the cold store, where readers find them. Spec §8.3.

An object is deleted only once its copy was checked: within one store by size and tag of the content, else by
the bytes that are read back. A session counts as archived when all of its objects have moved. Readers try the
store of recordings first and then the cold one, so that they read an object at any moment. A run that was
killed is continued by the next one.
"""

import hashlib
import logging
from collections.abc import Iterator
from datetime import datetime, timedelta

from sqlmodel import Session as DbSession
from sqlmodel import col, or_, select

from recorder import clock
from recorder.errors import Conflict, Unavailable
from recorder.governance.item_failures import ItemFailures
from recorder.ids import first_id_at, new_id
from recorder.models.governance import PurgeRow
from recorder.models.session import SessionRow
from recorder.models.workspace import WorkspaceRow
from recorder.runtime import Runtime
from recorder.storage.blobs import Blobs
from recorder.storage.database import Database
from recorder.storage.leases import HeldLease
from recorder.storage.store_regions import require_store_marks

log = logging.getLogger("recorder.retention")

#: Sessions of one read.
SESSIONS_AT_ONCE = 200


class ArchiveNotApart(Conflict):
    """The archive is the store of frames itself: a frame that moved there would be deleted."""

    code = "archive_not_apart"

    def __init__(self) -> None:
        super().__init__(
            "RECORDER_COLD_URL and RECORDER_BLOB_URL lead to one place, so no frame is archived. Give "
            "archived frames another folder or address; or set RECORDER_COLD_STORAGE_CLASS, if the frames "
            "are in a bucket of S3."
        )


def require_separate_archive(frames_url: str, archive_url: str) -> None:
    """Check that an object in the archive is not in the store of frames under the same key.

    Two addresses may lead to one place, such as those of a folder and of a link to it.

    Raises:
        ArchiveNotApart: if it is.
        Unavailable: if a store does not answer.
    """
    key, archive = f"health/{new_id('req')}", Blobs(archive_url)
    archive.put(key, b"archive")
    try:
        Blobs(frames_url).get(key)
    except KeyError:
        return
    finally:
        archive.delete(key)
    raise ArchiveNotApart


def list_sessions_to_archive(
    database: Database, workspace: WorkspaceRow, *, at: datetime
) -> Iterator[SessionRow]:
    """Yield the sessions of a workspace whose frames are due to be archived, in the order of ids.

    `frames_days` counts from the sealing. Sessions whose data are due to be removed are left out.

    Args:
        database: the database; each page of sessions is read in a transaction of its own.
        workspace: the workspace.
        at: the instant.
    """
    before = at - timedelta(days=workspace.frames_days)
    due = (
        SessionRow.workspace_id == workspace.id,
        SessionRow.status == "sealed",
        col(SessionRow.frames_archived_at).is_(None),
        col(SessionRow.deleted_at).is_(None),
        SessionRow.frame_count > 0,
        # Ids rise with the time of creation, which sealing follows: only old sessions are read.
        col(SessionRow.id) < first_id_at("ses", before),
        col(SessionRow.sealed_at) < before,
        col(SessionRow.sealed_at) >= at - timedelta(days=workspace.events_days),
        or_(col(SessionRow.purge_after).is_(None), col(SessionRow.purge_after) > at),
    )
    after, has_more = "", True
    while has_more:
        page = select(SessionRow).where(*due, col(SessionRow.id) > after).order_by(col(SessionRow.id))
        with database.transaction(write=False) as db:
            rows = list(db.exec(page.limit(SESSIONS_AT_ONCE)))
        yield from rows
        has_more = len(rows) == SESSIONS_AT_ONCE
        after = rows[-1].id if rows else after


def archive_frames(
    runtime: Runtime, held: HeldLease, workspace: WorkspaceRow, *, at: datetime
) -> Iterator[SessionRow]:
    """Move the frames of the sessions of a workspace that are due; yield each session that is archived.

    Args:
        runtime: the deployment.
        held: lease of the run.
        workspace: the workspace.
        at: instant at which sessions are due.

    Raises:
        LeaseLost: if another run took over.
        ArchiveNotApart: if frames and archived frames have one place; nothing is changed then.
        StoreAway: if a store is away; nothing is changed then.
        Unavailable: if the database or the archive does not answer; the next run goes on.
        ItemsFailed: once all sessions were tried, if a store did not answer for some, or a copy differed.
    """
    failures = ItemFailures("sessions to archive")
    is_checked = False
    for row in list_sessions_to_archive(runtime.database, workspace, at=at):
        if not is_checked:
            require_store_marks(runtime.settings)
            if runtime.settings.cold_storage_class is None:
                require_separate_archive(runtime.blobs.url, runtime.settings.cold_url)
            is_checked = True
        is_archived = False
        with failures.collect(row.id):
            is_archived = _archive_session(runtime, held, row)
        if is_archived:
            yield row
    failures.raise_at_end()


def _archive_session(runtime: Runtime, held: HeldLease, row: SessionRow) -> bool:
    """Move the objects of one session; return False if it was deleted by then, or objects were not there."""
    folder = f"frames/{row.workspace_id}/{row.id}/"
    cold, storage_class = Blobs(runtime.settings.cold_url), runtime.settings.cold_storage_class
    keys = [stored.key for stored in runtime.blobs.list_objects(folder)]
    if not keys and not cold.list_objects(folder):
        log.warning("no object of session %s is there; it is not archived", row.id)
        return False
    missing = 0
    for key in keys:
        try:
            if storage_class is not None:
                runtime.blobs.set_storage_class(key, storage_class)
            else:
                _copy_object_to_archive(Blobs(runtime.blobs.url), cold, key)
        except KeyError:
            missing += 1  # a purge removed it; the check below sees that
    with held.transaction(runtime.database) as db:
        current = _lock_session_for_archive(db, row.id)
        is_deleted = current is None or current.deleted_at is not None
        is_purged = current is None or db.get(PurgeRow, row.id) is not None
        if current is not None and not is_deleted and not missing and storage_class is not None:
            current.frames_archived_at = clock.now()
            db.add(current)
    if is_purged:
        # The purge may have looked at the cold store before the copies were there.
        cold.delete_below(folder)
    elif is_deleted and storage_class is None:
        # Only copies of this run: a session that is not purged, as under a legal hold, may have objects in
        # the cold store alone, where a run that was killed moved them.
        for key in keys:
            cold.delete(key)
    if is_deleted:
        return False
    if missing:
        # Only what was copied may be deleted: the next run lists the objects again.
        log.warning("%d of %d objects of session %s were not there", missing, len(keys), row.id)
        return False
    if storage_class is None:
        for key in keys:
            runtime.blobs.delete(key)
        with held.transaction(runtime.database) as db:
            current = _lock_session_for_archive(db, row.id)
            if current is not None:
                current.frames_archived_at = clock.now()
                db.add(current)
    return True


def _lock_session_for_archive(db: DbSession, session_id: str) -> SessionRow | None:
    statement = select(SessionRow).where(SessionRow.id == session_id)
    return db.exec(statement.with_for_update().execution_options(populate_existing=True)).first()


def _copy_object_to_archive(hot: Blobs, cold: Blobs, key: str) -> None:
    """Copy an object, inside the store if both are in one, and check the copy: by its tag, or its bytes.

    Raises:
        KeyError: if the object is gone.
        Unavailable: if a store does not answer, or the copy differs.
    """
    if cold.shares_client(hot):
        if cold.copy_from(hot, key):
            return
        data = hot.get(key)
    else:
        data = hot.get(key)
        cold.put(key, data)
    if hashlib.sha256(cold.get(key)).digest() != hashlib.sha256(data).digest():
        raise Unavailable("The store of archived frames")
