"""Export object for clients, its events, and signed addresses. Spec §2.5, §6.1; contract §5."""

import hmac
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import quote

from sqlmodel import Session as DbSession

from recorder import clock, limits
from recorder.errors import InvalidSignature, UrlExpired
from recorder.exports.planning.selection import LONGEST_WAIT, describe_awaited_in_selection
from recorder.hashing import canonical_json, compute_keyed_digest
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
    """Return the manifest's address, None until it is written; that of a hosted export needs no key."""
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


_KEY_ID_CHARACTERS = 8


def signed_url(base_url: str, path: str, *, workspace_id: str, expires_at: datetime, secret: bytes) -> str:
    """Return an address of a path below `base_url`, valid for GET until `expires_at` (whole seconds)."""
    expires_s = clock.to_ms(expires_at) // 1000
    key_id = _compute_signed_url_key_id(secret)
    signature = _sign_url_path(
        path, expires_s=expires_s, key_id=key_id, workspace_id=workspace_id, secret=secret
    )
    return f"{base_url}{quote(path, safe='/=')}?exp={expires_s}&kid={key_id}&sig={signature}"


def check_url_signature(
    path: str,
    *,
    expires_s: int,
    key_id: str,
    signature: str,
    workspace_id: str,
    secret: bytes,
    now: datetime,
) -> None:
    """Check that an address was signed by this service and has not expired.

    Raises:
        InvalidSignature: if path, time, key or workspace differ from the signed ones.
        UrlExpired: if the address has expired.
    """
    expected = _sign_url_path(
        path,
        expires_s=expires_s,
        key_id=_compute_signed_url_key_id(secret),
        workspace_id=workspace_id,
        secret=secret,
    )
    same_key = hmac.compare_digest(key_id.encode(), _compute_signed_url_key_id(secret).encode())
    if not hmac.compare_digest(signature.encode(), expected.encode()) or not same_key:
        raise InvalidSignature
    if clock.to_ms(now) // 1000 >= expires_s:
        raise UrlExpired


def _compute_signed_url_key_id(secret: bytes) -> str:
    """Return an id of the secret that does not disclose it; another secret has another id."""
    return compute_keyed_digest(secret, "url-key-id", b"").hex()[:_KEY_ID_CHARACTERS]


def _sign_url_path(path: str, *, expires_s: int, key_id: str, workspace_id: str, secret: bytes) -> str:
    signed = canonical_json(["GET", path, expires_s, key_id, workspace_id])
    return compute_keyed_digest(secret, "export-url", signed).hex()
