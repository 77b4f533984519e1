"""Rows of purges: their request, and their way from step to step. Contract §2, §7."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Literal, cast

from sqlalchemy import func, update
from sqlmodel import Session as DbSession
from sqlmodel import col, select

from recorder import clock
from recorder.governance.erasure_subjects import hash_texts
from recorder.governance.holds import list_held_sessions
from recorder.masking.policies import list_masking_replacements
from recorder.models.governance import ErasureRow, PurgeCause, PurgeRow, PurgeStep
from recorder.models.operations import OutboxRow
from recorder.models.session import SessionMetadataRow, SessionRow
from recorder.models.webhook import DeliveryRow
from recorder.recording.sessions import hide_session


def request_purge(
    db: DbSession, row: SessionRow, cause: PurgeCause, *, at: datetime, erasure_id: str | None = None
) -> PurgeRow:
    """Write the intent to purge a session, in the transaction that hides it or finds it hidden.

    Args:
        db: a write transaction that holds the session's row.
        row: the session.
        cause: why it is purged.
        at: time of the request.
        erasure_id: the erasure that asks for it.
    """
    purge = PurgeRow(**describe_purge_request(row, cause, at=at, erasure_id=erasure_id))
    db.add(purge)
    return purge


def describe_purge_request(
    row: SessionRow, cause: PurgeCause, *, at: datetime, erasure_id: str | None = None
) -> dict[str, Any]:
    """Return the columns of the intent to purge a session; see `request_purge`."""
    return {
        "session_id": row.id,
        "workspace_id": row.workspace_id,
        "mode": row.mode,
        "workflow": row.workflow,
        "cause": cause,
        "due_at": at,
        "requested_at": at,
        "dates": [] if row.lake_date is None else [row.lake_date],
        "event_bytes": row.event_bytes,
        "frame_bytes": row.frame_bytes,
        "events": row.event_count,
        "frames": row.frame_count,
        "erasure_id": erasure_id,
    }


def request_purges_of_recordings(
    db: DbSession, purges: Sequence[PurgeRow], recorded: Mapping[str, Sequence[str]], *, secret: bytes
) -> None:
    """Request the purges of sessions that live replays of purged sessions recorded.

    Held ones are due when their hold ends, and erasures that find a purged source find them. An erasure
    counts them with the session, which it waits for.

    Args:
        db: a write transaction.
        purges: the purges of the sessions that were replayed.
        recorded: for each recorded session those that led to it; the first is that of one of `purges`.
        secret: the deployment's secret.
    """
    by_session = {purge.session_id: purge for purge in purges}
    workspaces: defaultdict[str, list[str]] = defaultdict(list)
    for session_id, sources in recorded.items():
        workspaces[by_session[sources[0]].workspace_id].append(session_id)
    statement = select(SessionRow).where(col(SessionRow.id).in_(recorded))
    rows = db.exec(statement.order_by(col(SessionRow.id)).with_for_update()).all()
    held = {held_id for name, ids in workspaces.items() for held_id in list_held_sessions(db, name, ids)}
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for row in rows:
        if db.get(PurgeRow, row.id) is not None:
            continue
        now, purge = clock.now(), by_session[recorded[row.id][0]]
        if row.id in held:
            _keep_held_recording(db, row, recorded[row.id], at=now, secret=secret)
            if purge.erasure_id is not None:
                counts[purge.erasure_id].update(held=1)
            continue
        if row.deleted_at is None:
            hide_session(db, row, at=now)
        request_purge(db, row, cast(PurgeCause, purge.cause), at=now, erasure_id=purge.erasure_id)
        if purge.erasure_id is not None:
            counts[purge.erasure_id].update(
                sessions=1,
                events=row.event_count,
                frames=row.frame_count,
                bytes=row.event_bytes + row.frame_bytes,
                deliveries=count_deliveries(db, [row.id]),
            )
    db.flush()
    # Locked last, as everywhere.
    for erasure_id in sorted(counts):
        erasure = db.get_one(ErasureRow, erasure_id, with_for_update=True, populate_existing=True)
        erasure.held += counts[erasure_id].pop("held", 0)
        erasure.counts = dict(Counter(erasure.counts) + counts[erasure_id])
        db.add(erasure)


def _keep_held_recording(
    db: DbSession, row: SessionRow, sources: Sequence[str], *, at: datetime, secret: bytes
) -> None:
    """Make a held recording due, and let erasures find it by the texts of the sessions that led to it."""
    row.purge_after = at if row.purge_after is None else min(at, row.purge_after)
    db.add(row)
    replacements = list_masking_replacements(db, row.workspace_id)
    metadata = db.get_one(SessionMetadataRow, row.id)
    hashes = set(metadata.source_hashes or ())
    for source_id in sources:
        source, named = db.get(SessionRow, source_id), db.get(SessionMetadataRow, source_id)
        texts = [source and source.actor_id, named and named.metadata_]
        hashes |= hash_texts(secret, row.workspace_id, texts, replacements)
        hashes.update((named and named.source_hashes) or ())
    metadata.source_hashes = sorted(hashes)
    db.add(metadata)


def count_deliveries(db: DbSession, session_ids: Sequence[str]) -> int:
    """Return how many events of sessions were delivered: those copies are out of reach."""
    events = select(OutboxRow.id).where(col(OutboxRow.subject_id).in_(session_ids))
    sent = (col(DeliveryRow.event_id).in_(events), DeliveryRow.status == "succeeded")
    return db.exec(select(func.count()).select_from(DeliveryRow).where(*sent)).one()


def lock_purges(db: DbSession, session_ids: Sequence[str]) -> list[PurgeRow]:
    """Lock the purges of some sessions in the order of their ids, and return them as they are now."""
    statement = select(PurgeRow).where(col(PurgeRow.session_id).in_(session_ids))
    ordered = statement.order_by(col(PurgeRow.session_id)).with_for_update()
    return list(db.exec(ordered.execution_options(populate_existing=True)))


def advance_purges(
    db: DbSession,
    session_ids: Sequence[str],
    *,
    from_step: PurgeStep,
    to_step: Literal["lake", "files", "exports"],
    after: timedelta = timedelta(0),
) -> None:
    """Move purges to their next step; those that another process moved stay where they are."""
    update_purges(db, session_ids, from_step=from_step, step=to_step, due_at=clock.now() + after)


def update_purges(
    db: DbSession, session_ids: Sequence[str], *, from_step: PurgeStep | None = None, **values: Any
) -> None:
    """Change purges, those in one step alone if it is given."""
    wanted = col(PurgeRow.session_id).in_(session_ids)
    # Locked in the order of their ids, as everywhere.
    list(
        db.exec(
            select(PurgeRow.session_id).where(wanted).order_by(col(PurgeRow.session_id)).with_for_update()
        )
    )
    in_step = () if from_step is None else (col(PurgeRow.step) == from_step,)
    db.connection().execute(update(PurgeRow).where(wanted, *in_step).values(values))
