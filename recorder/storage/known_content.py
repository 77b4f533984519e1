"""Content of the stores that the database lists: a store without its mark is no new one then. Spec §1.

A volume that is not mounted leaves an empty folder. As a new store it would let purges and erasures end that
removed nothing, and hide sealed sessions once the volume is back.
"""

from collections.abc import Callable

from sqlalchemy import false
from sqlmodel import Session as DbSession
from sqlmodel import col, select

from recorder.errors import Conflict
from recorder.models.export import ExportRow
from recorder.models.session import SessionRow
from recorder.settings import Settings
from recorder.storage.database import Database
from recorder.storage.store_regions import list_unmarked_stores


class StoreContentMissing(Conflict):
    """A store has no mark, and the database lists content in it."""

    code = "store_content_missing"

    def __init__(self, variable: str) -> None:
        super().__init__(
            f"The store that {variable} names has no mark of this deployment, and the database lists "
            "content in it: a volume may not be mounted, or the address is another one. Mount it, correct "
            "the address, or copy the whole store there. If the content is lost, run `recorder db "
            "accept-stores`."
        )


def require_known_content(settings: Settings, database: Database) -> None:
    """Check that no store without a mark should hold content that the database lists.

    Raises:
        StoreContentMissing: if one is.
        Unavailable: if the database does not answer.
    """
    for variable in list_unmarked_stores(settings):
        with database.transaction(write=False) as db:
            if _LISTS_CONTENT[variable](db, settings):
                raise StoreContentMissing(variable)


def _lists_frames(db: DbSession, settings: Settings) -> bool:
    """Return whether the database lists frames in the store of frames."""
    # In a bucket, archived frames stay where they are with another storage class.
    is_here = col(SessionRow.frames_archived_at).is_(None) | (settings.cold_storage_class is not None)
    return _has_session(db, col(SessionRow.frame_count) > 0, is_here)


def _lists_archived_frames(db: DbSession, settings: Settings) -> bool:
    """Return whether the database lists frames in the cold store."""
    is_moved = col(SessionRow.frames_archived_at).is_not(None)
    return _has_session(db, is_moved if settings.cold_storage_class is None else false())


def _lists_sealed_sessions(db: DbSession, settings: Settings) -> bool:
    """Return whether the database lists sessions whose rows are in the lake."""
    return _has_session(db, col(SessionRow.status) == "sealed")


def _lists_hosted_exports(db: DbSession, settings: Settings) -> bool:
    """Return whether the database lists exports in the service's own export store."""
    kept = select(ExportRow.destination).where(
        ExportRow.status == "completed", col(ExportRow.expired_at).is_(None)
    )
    return any(destination["kind"] == "signed_url" for destination in db.exec(kept))


def _has_session(db: DbSession, *conditions: object) -> bool:
    """Return whether a session fulfils these conditions."""
    return db.exec(select(SessionRow.id).where(*conditions).limit(1)).first() is not None  # type: ignore[arg-type]


_LISTS_CONTENT: dict[str, Callable[[DbSession, Settings], bool]] = {
    "RECORDER_BLOB_URL": _lists_frames,
    "RECORDER_COLD_URL": _lists_archived_frames,
    "RECORDER_LAKE_URL": _lists_sealed_sessions,
    "RECORDER_EXPORT_URL": _lists_hosted_exports,
}
