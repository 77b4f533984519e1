"""`/v1/exports`: ask for datasets, read them, fetch manifest and hosted files. Spec §4.3, contract §5."""

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Query, Request, Response

from api.cursors import Pager
from api.dependencies import CallerDep, CursorText, Db, Limit, OriginDep, RuntimeDep
from api.errors import problem_responses
from api.negotiation import ranged_stream
from api.strict_routes import StrictRoute
from recorder import clock, limits
from recorder.access.keys import Caller
from recorder.datasets.formats import FORMATS
from recorder.errors import RecorderError, ValidationFailed
from recorder.exports.requests import queue, validation, wire_objects
from recorder.exports.results import diff, hosted_files
from recorder.exports.runner import finalize
from recorder.models.export import (
    Export,
    ExportCreated,
    ExportDifference,
    ExportRow,
    ExportStatus,
)
from recorder.models.export_request import ExportCreate
from recorder.models.wire import Page
from recorder.runtime import Runtime

router = APIRouter(prefix="/v1/exports", tags=["exports"], route_class=StrictRoute)

_Workflow = Annotated[str, Query(pattern=limits.WORKFLOW_PATTERN)]
_BINARY = {"schema": {"type": "string", "format": "binary"}}
_BYTES = {"content": {format.media_type: _BINARY for format in FORMATS.values()}}


@dataclass(frozen=True)
class OpenedExport:
    """An export that was reached by a key, or by a signed address until that one's end."""

    row: ExportRow
    until: datetime | None


def get_opened_export(
    export_id: str,
    request: Request,
    runtime: RuntimeDep,
    exp: Annotated[int | None, Query(description="End of a signed address, unix seconds.")] = None,
    kid: Annotated[str | None, Query(description="Which secret signed the address.")] = None,
    sig: Annotated[str | None, Query(description="Signature of the address.")] = None,
) -> OpenedExport:
    """The export of an address that a key opens, or a signature; its transaction ends here.

    Raises:
        NotFound: if the caller has no such export.
        InvalidSignature, UrlExpired: if no key was sent and the signature does not hold.
    """
    caller = request.state.caller
    if caller is not None:
        return OpenedExport(_find(runtime, caller, export_id), None)
    if exp is None or kid is None or sig is None:
        text = "A signed address carries exp, kid and sig."
        raise ValidationFailed.of("sig", "missing", message=text, where="query")
    with runtime.database.transaction(write=False) as db:
        row = hosted_files.open_by_signature(
            db,
            runtime.settings,
            export_id,
            request.scope["path"],
            expires_s=exp,
            key_id=kid,
            signature=sig,
        )
    return OpenedExport(row, clock.from_ms(exp * 1000))


def _find(runtime: Runtime, caller: Caller, export_id: str) -> ExportRow:
    with runtime.database.transaction(write=False) as db:
        return queue.find_export(db, caller.tenant, export_id)


Opened = Annotated[OpenedExport, Depends(get_opened_export, max_concurrency=20)]


def get_stored_manifest(opened: Opened, runtime: RuntimeDep) -> dict[str, Any]:
    """The manifest, from a store that may be slow: in no transaction.

    Raises:
        InvalidState, NotFound, Unavailable: if there is none, or its store does not answer.
    """
    return hosted_files.read_manifest(opened.row, runtime.settings, until=opened.until)


def get_hosted_file(path: str, opened: Opened, runtime: RuntimeDep) -> hosted_files.HostedFile:
    """A file of a hosted export, found in a transaction and opened after it.

    Raises:
        NotFound, Unavailable: if there is none, or its store does not answer.
    """
    with runtime.database.transaction(write=False) as db:
        hosted_files.require_file(db, opened.row, path)
    return hosted_files.open_file(opened.row, runtime.settings, path)


# Bounded, since each may wait for a store: what waits must not take the worker threads of all others.
Manifest = Annotated[dict[str, Any], Depends(get_stored_manifest, max_concurrency=8)]
File = Annotated[hosted_files.HostedFile, Depends(get_hosted_file, max_concurrency=8)]


def get_draft(request: Request, caller: CallerDep, runtime: RuntimeDep, body: ExportCreate) -> ExportRow:
    """The export that is asked for, its destination probed: that may take seconds, and is in no transaction.

    Raises:
        InvalidDestination, DestinationNotAllowed, Unavailable: if it cannot be written to.
    """
    draft = validation.draft_export(caller.tenant, body)
    try:
        with runtime.database.transaction(write=False) as db:
            if (keyed := getattr(request.state, "keyed", None)) is not None:
                keyed.look(db)
            queue.require_known(db, draft)
    except RecorderError:
        return draft  # the request's transaction finds the same, and keeps the answer
    queue.probe_destination(draft, runtime.settings)
    return draft


# Bounded, since each may wait for a store; and before the transaction, since those are resolved in order.
Draft = Annotated[ExportRow, Depends(get_draft, max_concurrency=8)]


@router.post("", status_code=202, responses=problem_responses(401, 404, 422, 503))
def create_export(draft: Draft, db: Db, origin: OriginDep, runtime: RuntimeDep) -> ExportCreated:
    """Queue an export of sealed sessions as a dataset."""
    return wire_objects.to_created(
        queue.store_export(db, runtime.settings, draft, origin=origin), runtime.settings
    )


@router.get("", responses=problem_responses(400, 401, 422))
def list_exports(
    request: Request,
    db: Db,
    caller: CallerDep,
    runtime: RuntimeDep,
    workflow: Annotated[list[_Workflow], Query(description="Repeat it for several.")] = [],  # noqa: B006
    status: ExportStatus | None = None,
    tag: Annotated[
        str | None,
        Query(min_length=1, max_length=limits.TAG_NAME_CHARACTERS, description="Label of the export."),
    ] = None,
    cursor: CursorText = None,
    limit: Limit = limits.LIST_DEFAULT,
) -> Page[Export]:
    """Exports, newest first."""
    pager = Pager(request, caller)
    before = pager.read(cursor)
    rows, has_more = queue.list_exports(
        db,
        caller.tenant,
        workflows=tuple(workflow),
        status=status,
        tag=tag,
        before_id=before[0] if before else None,
        limit=limit,
    )
    page = [wire_objects.to_wire(row, runtime.settings) for row in rows]
    return pager.page(page, [rows[-1].id] if has_more else None)


@router.get("/{export_id}", responses=problem_responses(401, 404))
def get_export(export_id: str, db: Db, caller: CallerDep, runtime: RuntimeDep) -> Export:
    """One export."""
    row = queue.find_export(db, caller.tenant, export_id)
    return wire_objects.to_wire(row, runtime.settings, is_whole=True)


@router.post("/{export_id}/cancel", responses=problem_responses(401, 404, 409))
def cancel_export(
    export_id: str, db: Db, caller: CallerDep, origin: OriginDep, runtime: RuntimeDep
) -> Export:
    """Call an export off: it ends as `failed`, and what was written of it is taken away."""
    row = finalize.cancel(db, runtime.settings, caller.tenant, export_id, origin=origin)
    return wire_objects.to_wire(row, runtime.settings)


def get_difference(
    request: Request,
    export_id: str,
    caller: CallerDep,
    runtime: RuntimeDep,
    against: Annotated[str, Query(description="Id of the export to compare with.")],
    cursor: CursorText = None,
    limit: Limit = limits.LIST_DEFAULT,
) -> ExportDifference:
    """A page of what differs; plans are read and compared in no transaction.

    Raises:
        InvalidCursor, InvalidState, NotFound, ValidationFailed, Unavailable: if there is no such page.
    """
    pager = Pager(request, caller)
    after = pager.read(cursor)
    row, other = (_find(runtime, caller, one) for one in (export_id, against))
    compared = diff.compare(runtime, row, other)
    data, has_more = compared.page(after_id=after[0] if after else None, limit=limit)
    return ExportDifference(
        export_id=row.id,
        against=other.id,
        same_rows=compared.same_rows,
        same_request=compared.same_request,
        sessions=compared.sessions,
        shards=compared.shards,
        causes=compared.causes(),
        **pager.page(data, [data[-1].session_id] if has_more else None).model_dump(),
    )


# Few, since they compare one after the other.
Difference = Annotated[ExportDifference, Depends(get_difference, max_concurrency=4)]


@router.get("/{export_id}/diff", responses=problem_responses(400, 401, 404, 409, 422, 503))
def compare_exports(difference: Difference) -> ExportDifference:
    """Which sessions and files differ from those of another export, and why."""
    return difference


@router.get("/{export_id}/manifest", responses=problem_responses(401, 403, 404, 409, 503))
def get_manifest(manifest: Manifest) -> dict[str, Any]:
    """Every file with size, rows and SHA-256; of a hosted export also with a fresh address."""
    return manifest


@router.get(
    "/{export_id}/files/{path:path}",
    response_class=Response,
    responses={200: _BYTES, 206: _BYTES, **problem_responses(401, 403, 404, 416, 503)},
)
def get_file(
    file: File,
    range_header: Annotated[str | None, Header(alias="Range")] = None,
) -> Response:
    """A file of a hosted export; `Range` gives a part of it."""
    headers = {"Content-Disposition": f'attachment; filename="{file.name}"'}
    return ranged_stream(file.read, file.size_bytes, file.media_type, range_header, headers)
