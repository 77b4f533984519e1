"""Hosted files of a finished export, and its manifest with fresh addresses. Contract §5."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, cast

import orjson
from sqlmodel import Session as DbSession

from recorder import clock
from recorder.datasets.formats import CARD, FORMATS, MANIFEST
from recorder.errors import DestinationNotAllowed, InvalidSignature, InvalidState, NotFound, WorkspaceDisabled
from recorder.exports.destinations import open_destination
from recorder.exports.destinations.base import READ_SECONDS, READING, PinnedFile, call_within_time_limit
from recorder.exports.manifest_builder import read_own_manifest
from recorder.exports.signed_urls import check_url_signature, make_signed_url
from recorder.models.export import ExportRow, ExportShardRow
from recorder.models.export_request import ExportFormat
from recorder.models.workspace import WorkspaceRow
from recorder.settings import Settings

_PLAIN_FILES = {CARD: "text/markdown; charset=utf-8", MANIFEST: "application/json"}


def open_signed_export(
    db: DbSession,
    settings: Settings,
    export_id: str,
    path: str,
    *,
    expires_s: int,
    key_id: str,
    signature: str,
) -> ExportRow:
    """Return the hosted export that a signed address opens.

    Args:
        db: database session.
        settings: settings of the deployment.
        export_id: id in the address.
        path: signed path of the address.
        expires_s: end of the address, in seconds.
        key_id: id of the signing secret.
        signature: signature of the address.

    Raises:
        InvalidSignature: if this service did not sign it, or there is no such export.
        UrlExpired: if it has expired.
        WorkspaceDisabled: if its workspace is not active.
    """
    row = db.get(ExportRow, export_id)
    if row is None or row.destination["kind"] != "signed_url":
        raise InvalidSignature
    check_url_signature(
        path,
        expires_s=expires_s,
        key_id=key_id,
        signature=signature,
        workspace_id=row.workspace_id,
        secret=settings.secret,
        now=clock.now(),
    )
    workspace = db.get_one(WorkspaceRow, row.workspace_id)
    if workspace.status != "active":
        raise WorkspaceDisabled(workspace.status)
    return row


def read_manifest(
    row: ExportRow,
    settings: Settings,
    *,
    until: datetime | None = None,
    answer_s: float = READ_SECONDS,
) -> dict[str, Any]:
    """Return the manifest that the export wrote; a hosted one gets addresses for its files.

    Waits for the store, some seconds at most: call outside transactions.

    Args:
        row: row of the export.
        settings: settings of the deployment.
        until: end of the requested address; the addresses of the files must not be valid for longer.
        answer_s: time for the store to answer.

    Raises:
        InvalidState: if the export is not completed.
        NotFound: if it is gone, or replaced by another file.
        Unavailable: if the store does not answer in time.
    """
    if row.status != "completed":
        raise InvalidState(row.status, needed="export must be completed to have a manifest")
    if row.expired_at is not None:
        raise NotFound(
            "manifest", f"The files of {row.id} were deleted after their 30 days; create the export again."
        )
    try:
        destination = open_destination(row, settings, READING)
    except DestinationNotAllowed as error:
        text = f"The files of {row.id} lie in a folder that this service does not export to any more."
        raise NotFound(
            "manifest", f"{text} Ask the operator to set RECORDER_LOCAL_EXPORT_ROOT to it."
        ) from error
    data = call_within_time_limit(lambda: read_own_manifest(destination, row), seconds=answer_s)
    manifest: dict[str, Any] = orjson.loads(data)
    if row.destination["kind"] == "signed_url":
        end = until or clock.now() + timedelta(seconds=row.destination["expires_in"])
        for shard in manifest["shards"]:
            shard["url"] = _sign_hosted_file_url(row, settings, shard["path"], end)
            shard["url_expires_at"] = clock.to_iso(end)
        manifest["card_url"] = _sign_hosted_file_url(row, settings, CARD, end)
    return manifest


@dataclass(frozen=True)
class HostedFile:
    """A file of a hosted export, to be read in parts."""

    name: str
    media_type: str
    #: A rewriting may replace the file while it is read.
    pinned: PinnedFile

    @property
    def size_bytes(self) -> int:
        """Size of the file."""
        return self.pinned.size_bytes

    def read(self, start: int, end: int) -> Iterator[bytes]:
        """Yield the bytes from `start` up to, not including, `end`."""
        yield from self.pinned.read(start, end)


def require_hosted_file(db: DbSession, row: ExportRow, path: str) -> None:
    """Check that a path names a file of a completed hosted export; other paths are never opened.

    Raises:
        NotFound: if the export has no such file.
    """
    if row.status != "completed" or row.destination["kind"] != "signed_url" or row.expired_at is not None:
        raise NotFound("file")
    if path not in _PLAIN_FILES and db.get(ExportShardRow, (row.id, path)) is None:
        raise NotFound("file")


def open_hosted_file(row: ExportRow, settings: Settings, path: str) -> HostedFile:
    """Open a file that `require_hosted_file` accepted; waits for the store: call outside transactions.

    Raises:
        NotFound: if it is gone.
        Unavailable: if the store does not answer in time.
    """
    destination = open_destination(row, settings, READING)
    try:
        pinned = call_within_time_limit(lambda: destination.pin(path), seconds=READ_SECONDS)
    except KeyError as error:
        raise NotFound("file") from error
    return HostedFile(
        name=path.rpartition("/")[2],
        media_type=_PLAIN_FILES.get(path, FORMATS[cast(ExportFormat, row.format)].media_type),
        pinned=pinned,
    )


def _sign_hosted_file_url(row: ExportRow, settings: Settings, path: str, expires_at: datetime) -> str:
    return make_signed_url(
        settings.public_url,
        f"/v1/exports/{row.id}/files/{path}",
        workspace_id=row.workspace_id,
        expires_at=expires_at,
        secret=settings.secret,
    )
