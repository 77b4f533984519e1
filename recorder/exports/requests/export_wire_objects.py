"""Export object for clients, and its events. Spec §2.5, §6.1; contract §5."""

from datetime import timedelta
from typing import Any

from sqlmodel import Session as DbSession

from recorder import clock, limits
from recorder.exports.planning.selection import LONGEST_WAIT, describe_awaited_in_selection
from recorder.exports.signed_urls import make_signed_url
from recorder.models.export import Export, ExportCreated, ExportRow
from recorder.request_context import continue_request_context
from recorder.settings import Settings
from recorder.webhooks.outbox import add_outbox_event

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


def export_to_wire(row: ExportRow, settings: Settings, *, is_whole: bool = False) -> Export:
    """Return the export object of spec §2.5.

    Args:
        row: row of the export.
        settings: settings of the deployment.
        is_whole: list the ids of all excluded sessions; otherwise a long list is replaced by its length.
    """
    # Rows of an earlier release have no `split` until they run.
    spec = {"split": None} | row.spec
    return Export.model_validate(
        {
            **row.model_dump(include=_COLUMNS),
            **(spec if is_whole else spec | {"filter": _shorten_excluded_sessions(spec["filter"])}),
            "manifest_url": manifest_url_to_wire(row, settings),
            "progress": {
                "shards_done": row.shards_done,
                "shards_total": row.shards_total,
                "message": _describe_wait(row),
            },
        }
    )


def _shorten_excluded_sessions(filter: dict[str, Any]) -> dict[str, Any]:
    excluded = len(filter.get("exclude_session_ids", ()))
    if excluded <= limits.EXCLUDED_SESSIONS_SHOWN:
        return filter
    others = {name: value for name, value in filter.items() if name != "exclude_session_ids"}
    return others | {"excluded_sessions": excluded}


def _describe_wait(row: ExportRow) -> str | None:
    """Return what an export waits for; None unless it waits."""
    count = row.awaited_sessions
    if count is None:
        return None
    until = clock.to_iso(row.created_at + LONGEST_WAIT)
    return (
        f"Waits for the replayability of {describe_awaited_in_selection(count)}, until {until} at the latest."
    )


def created_export_to_wire(row: ExportRow, settings: Settings) -> ExportCreated:
    """Return the four members that `POST /v1/exports` answers."""
    return ExportCreated.model_validate(
        export_to_wire(row, settings).model_dump(include=set(ExportCreated.model_fields))
    )


def manifest_url_to_wire(row: ExportRow, settings: Settings) -> str | None:
    """Return the manifest's address; that of a hosted export needs no key.

    It is None until the manifest is written, and again once the files of a hosted export were deleted.
    """
    if row.status != "completed" or row.expired_at is not None:
        return None
    path = f"/v1/exports/{row.id}/manifest"
    if row.destination["kind"] != "signed_url":
        return settings.public_url + path
    return make_signed_url(
        settings.public_url,
        path,
        workspace_id=row.workspace_id,
        expires_at=clock.now() + timedelta(seconds=row.destination["expires_in"]),
        secret=settings.secret,
    )


def emit_export_event(db: DbSession, row: ExportRow, settings: Settings, type: str) -> None:
    """Queue an event of the export's life, with the whole object as it is now."""
    with continue_request_context(row.request_id):
        add_outbox_event(
            db,
            tenant=row.tenant,
            type=type,
            subject_id=row.id,
            data={"export": export_to_wire(row, settings).model_dump(mode="json")},
        )
