"""The export object as clients see it, and the events that carry it. Spec §2.5, §6.1; contract §5."""

from datetime import timedelta

from sqlmodel import Session as DbSession

from recorder import clock
from recorder.exports.reading.signing import signed_url
from recorder.models.export import Export, ExportCreated, ExportRow
from recorder.settings import Settings
from recorder.tracing import following
from recorder.webhooks.outbox import add_event

_COLUMNS = {
    "id",
    "status",
    "format",
    "destination",
    "tag",
    "rows",
    "shards",
    "shard_size_bytes",
    "frames",
    "actions",
    "error",
    "created_at",
    "completed_at",
}


def to_wire(row: ExportRow, settings: Settings) -> Export:
    """The export object of spec §2.5."""
    return Export.model_validate(
        {
            **row.model_dump(include=_COLUMNS),
            # The release before knew no parts; a run of ours deals them.
            **({"split": None} | row.spec),
            "manifest_url": manifest_url(row, settings),
            "progress": {"shards_done": row.shards_done, "shards_total": row.shards_total},
        }
    )


def to_created(row: ExportRow, settings: Settings) -> ExportCreated:
    """The four members that `POST /v1/exports` answers."""
    return ExportCreated.model_validate(
        to_wire(row, settings).model_dump(include=set(ExportCreated.model_fields))
    )


def manifest_url(row: ExportRow, settings: Settings) -> str | None:
    """Where the manifest is read; null until it is written. A hosted export's address needs no key."""
    if row.status != "completed":
        return None
    path = f"/v1/exports/{row.id}/manifest"
    if row.destination["kind"] != "signed_url":
        return settings.public_url + path
    return signed_url(
        settings.public_url,
        path,
        workspace_id=row.workspace_id,
        expires_at=clock.now() + timedelta(seconds=row.destination["expires_in"]),
        secret=settings.secret,
    )


def emit(db: DbSession, row: ExportRow, settings: Settings, type: str) -> None:
    """Queue an event of the export's life, with the whole object as it is now."""
    with following(row.request_id):
        add_event(
            db,
            workspace_id=row.workspace_id,
            mode=row.mode,
            type=type,
            subject_id=row.id,
            data={"export": to_wire(row, settings).model_dump(mode="json")},
        )
