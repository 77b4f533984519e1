"""Factory of destinations: from the request to a directory for its files. Contract §5."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from recorder.errors import DestinationNotAllowed, InvalidDestination
from recorder.exports.destinations.base import (
    WORKING,
    Destination,
    ExportLocation,
    ObjectStoreClient,
    StoreTimeouts,
)
from recorder.exports.destinations.local import LocalFolderDestination
from recorder.settings import Settings

#: Names in a local path: file systems take no longer ones, and the service creates each folder.
_PATH_PARTS = 64
_PART_BYTES = 255


class ExportDestination(Protocol):
    """Members of an export's row that name its destination."""

    id: str
    workspace_id: str
    destination: dict[str, Any]


def resolve_export_location(row: ExportDestination, settings: Settings) -> ExportLocation:
    """Return the directory of an export: hosted by the service, or in the client's store.

    Raises:
        DestinationNotAllowed: if a local path leads out of the export root, also over a link.
    """
    requested = row.destination
    match requested["kind"]:
        case "signed_url":
            url = f"{settings.export_url.rstrip('/')}/{row.workspace_id}/{row.id}"
            return resolve_hosted_destination(
                url, workspace_id=row.workspace_id, export_id=row.id, settings=settings
            )
        case "local":
            folder = _resolve_allowed_folder(requested["path"], settings.local_export_root)
            return ExportLocation(
                kind="local", root=str(folder / row.id), workspace_id=row.workspace_id, export_id=row.id
            )
    kind, bucket = requested["kind"], requested.get("bucket") or requested["container"]
    account = requested.get("account", "")
    return ExportLocation(
        kind=kind,
        workspace_id=row.workspace_id,
        export_id=row.id,
        root=f"{requested['prefix']}/{row.id}" if requested.get("prefix") else row.id,
        bucket=bucket,
        account=account,
        region=requested.get("region"),
        role_arn=requested.get("role_arn"),
        service_account=requested.get("service_account"),
        endpoint=_find_store_endpoint(kind, settings),
        is_trusted=_make_bucket_address(kind, account=account, bucket=bucket) in settings.export_buckets,
    )


def open_destination_directory(target: ExportLocation, patience: StoreTimeouts = WORKING) -> Destination:
    """Open the directory of an export with its own rights; the store is asked when it is used."""
    if target.kind == "local":
        return LocalFolderDestination(target.root)
    from recorder.exports.destinations.object_store import ObjectStoreDestination

    bucket = replace(target, workspace_id="", export_id="", root="")
    return ObjectStoreDestination(partial(_open_destination_store, target), target.root, bucket, patience)


def _open_destination_store(target: ExportLocation, patience: StoreTimeouts) -> ObjectStoreClient:
    # Client libraries are slow to load: a service that writes only to S3 loads one.
    match target.kind:
        case "s3":
            from recorder.exports.destinations.s3 import S3Store

            return S3Store(target, patience)
        case "gcs":
            from recorder.exports.destinations.gcs import GcsStore

            return GcsStore(target, patience)
        case "azure_blob":
            from recorder.exports.destinations.azure import AzureStore

            return AzureStore(target, patience)
    from recorder.exports.destinations.fsspec_store import FsspecStore

    return FsspecStore(target)


def open_destination(
    row: ExportDestination, settings: Settings, patience: StoreTimeouts = WORKING
) -> Destination:
    """Open the directory of an export.

    Args:
        row: row of the export.
        settings: settings of the deployment.
        patience: time limits for an object store; a probe has its own.

    Raises:
        DestinationNotAllowed: if a local path leads out of the export root, also over a link.
    """
    return open_destination_directory(resolve_export_location(row, settings), patience)


def open_destination_url(url: str) -> Destination:
    """Open a folder or an fsspec address as the directory of an export."""
    path = url.rstrip("/").removeprefix("file://")
    if "://" not in path and "::" not in path:
        return LocalFolderDestination(path)
    return open_destination_directory(
        ExportLocation(kind="address", root=path, workspace_id="", export_id="", is_trusted=True)
    )


def resolve_hosted_destination(
    url: str, *, workspace_id: str, export_id: str, settings: Settings
) -> ExportLocation:
    """Return a directory in the operator's own store, as `RECORDER_EXPORT_URL` names it."""
    path = url.removeprefix("file://")
    protocol, _, location = path.partition("://")
    bucket, _, root = location.partition("/")
    owner: dict[str, Any] = {
        "workspace_id": workspace_id,
        "export_id": export_id,
        "is_hosted": True,
        "is_trusted": True,
    }
    match protocol:
        case "s3" | "s3a":
            return ExportLocation(kind="s3", bucket=bucket, root=root, endpoint=settings.s3_endpoint, **owner)
        case "gs" | "gcs":
            return ExportLocation(
                kind="gcs", bucket=bucket, root=root, endpoint=settings.gcs_endpoint, **owner
            )
        case "abfs" | "abfss" if "@" in bucket:
            container, _, host = bucket.partition("@")
            account, endpoint = host.partition(".")[0], settings.azure_endpoint
            return ExportLocation(
                kind="azure_blob", account=account, bucket=container, root=root, endpoint=endpoint, **owner
            )
    return ExportLocation(kind="address" if location or "::" in path else "local", root=path, **owner)


def _find_store_endpoint(kind: str, settings: Settings) -> str | None:
    endpoints = {
        "s3": settings.s3_endpoint,
        "gcs": settings.gcs_endpoint,
        "azure_blob": settings.azure_endpoint,
    }
    return endpoints[kind]


def _make_bucket_address(kind: str, *, account: str, bucket: str) -> str:
    return {"s3": f"s3://{bucket}", "gcs": f"gs://{bucket}", "azure_blob": f"az://{account}/{bucket}"}[kind]


def _resolve_allowed_folder(path: str, root: Path | None) -> Path:
    """Return the real folder that a path names; relative paths start at the root."""
    if root is None:
        raise DestinationNotAllowed(has_root=False)
    if not path.isprintable() or "\\" in path:
        text = "path takes printable characters, without backslashes."
        raise InvalidDestination(text, "/destination/path")
    parts = Path(path).parts
    if len(parts) > _PATH_PARTS or any(len(part.encode()) > _PART_BYTES for part in parts):
        text = f"path takes up to {_PATH_PARTS} names of up to {_PART_BYTES} bytes each."
        raise InvalidDestination(text, "/destination/path")
    try:
        folder = (root / path).resolve()
    except (OSError, RuntimeError, ValueError) as error:
        raise DestinationNotAllowed from error
    if not folder.is_relative_to(root.resolve()):
        raise DestinationNotAllowed
    return folder
