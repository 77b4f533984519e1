"""`/v1/exports`: exports, their comparison, manifests and files. Spec §4.3, contract §5."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from sqlmodel import Session as DbSession

from api.dependencies import (
    CallerDep,
    Db,
    OriginDep,
    PagerDep,
    RuntimeDep,
    Workflows,
    iterate_slow_work,
    open_earlier_transaction,
    read_before_transaction,
    run_slow_work,
)
from api.errors import problem_responses
from api.negotiation import ByteRange, respond_with_streamed_range
from api.strict_routes import StrictRoute, check_tag_parameter
from recorder import clock, limits
from recorder.access.keys import Caller
from recorder.datasets.formats import FORMATS
from recorder.errors import NotFound, RecorderError, ValidationFailed
from recorder.exports.requests import export_operations, export_wire_objects, validation
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

_BINARY = {"schema": {"type": "string", "format": "binary"}}
_BYTES = {"content": {format.media_type: _BINARY for format in FORMATS.values()}}


@dataclass(frozen=True)
class OpenedExport:
    """An export that a key or, until `until`, a signed address gives access to."""

    row: ExportRow
    until: datetime | None


async def get_opened_export(
    export_id: str,
    request: Request,
    runtime: RuntimeDep,
    exp: Annotated[int | None, Query(description="Unix second at which a signed address expires.")] = None,
    kid: Annotated[str | None, Query(description="Id of the secret that signed the address.")] = None,
    sig: Annotated[str | None, Query(description="Signature of the address.")] = None,
) -> OpenedExport:
    """Return the export that the key or the signature of a request gives access to; commit its transaction.

    Raises:
        NotFound: if the caller has no such export.
        InvalidSignature, UrlExpired: if no key was sent and the signature does not hold.
    """
    caller: Caller | None = request.state.caller

    def find(db: DbSession) -> ExportRow:
        if caller is not None:
            return export_operations.find_export(db, caller.tenant, export_id)
        if exp is None or kid is None or sig is None:
            text = "A signed address carries exp, kid and sig."
            raise ValidationFailed.of("sig", "missing", message=text, where="query")
        return hosted_files.open_signed_export(
            db,
            runtime.settings,
            export_id,
            request.scope["path"],
            expires_s=exp,
            key_id=kid,
            signature=sig,
        )

    row = await read_before_transaction(request, runtime.database, find)
    return OpenedExport(row, clock.from_ms(exp * 1000) if caller is None and exp is not None else None)


def _find_export_for_route(runtime: Runtime, caller: Caller, export_id: str) -> ExportRow:
    with runtime.database.transaction(write=False) as db:
        return export_operations.find_export(db, caller.tenant, export_id)


Opened = Annotated[OpenedExport, Depends(get_opened_export)]


async def get_stored_manifest(request: Request, opened: Opened, runtime: RuntimeDep) -> dict[str, Any]:
    """Return the manifest, read outside of transactions since its store may be slow.

    Raises:
        InvalidState, NotFound, Unavailable: if the manifest is missing, or its store does not answer.
    """

    def read() -> dict[str, Any]:
        return _read_current_manifest(runtime, opened)

    return await run_slow_work(request, "hosted file", read, workspace_id=opened.row.workspace_id)


def _read_current_manifest(runtime: Runtime, opened: OpenedExport) -> dict[str, Any]:
    row = opened.row
    try:
        return hosted_files.read_manifest(row, runtime.settings, until=opened.until)
    except NotFound:
        with runtime.database.transaction(write=False) as db:
            current = db.get_one(ExportRow, row.id)
        if current.next_manifest_sha256 is None and current.revision == row.revision:
            raise
        # A rewriting replaced it after the row was read.
        return hosted_files.read_manifest(current, runtime.settings, until=opened.until)


async def get_hosted_file(
    path: str, request: Request, opened: Opened, runtime: RuntimeDep
) -> hosted_files.HostedFile:
    """Return a file of a hosted export, looked up in a transaction and opened after it.

    Raises:
        NotFound, Unavailable: if the file is missing, or its store does not answer.
    """

    def open_file() -> hosted_files.HostedFile:
        with runtime.database.transaction(write=False) as db:
            hosted_files.require_hosted_file(db, opened.row, path)
        return hosted_files.open_hosted_file(opened.row, runtime.settings, path)

    return await run_slow_work(request, "hosted file", open_file, workspace_id=opened.row.workspace_id)


StoredManifest = Annotated[dict[str, Any], Depends(get_stored_manifest)]
File = Annotated[hosted_files.HostedFile, Depends(get_hosted_file)]


async def get_export_draft(
    request: Request, caller: CallerDep, runtime: RuntimeDep, body: ExportCreate
) -> ExportRow:
    """Return the requested export; probe its destination outside of transactions, since that takes seconds.

    Raises:
        InvalidDestination, DestinationNotAllowed, Unavailable: if the destination cannot be written to.
    """
    # Ten thousand ids to leave out take 5 ms, for which the event loop would stand still.
    draft = await run_in_threadpool(validation.validate_export_request, caller.tenant, body)

    def probe() -> ExportRow:
        try:
            with open_earlier_transaction(request, runtime.database) as db:
                export_operations.prepare_export_draft(db, draft)
        except RecorderError:
            return draft  # the request's transaction raises the same, and keeps the answer
        export_operations.probe_draft_destination(draft, runtime.settings)
        return draft

    return await run_slow_work(request, "destination probe", probe, workspace_id=caller.workspace_id)


# Routes list it before `db`: dependencies run in order.
Draft = Annotated[ExportRow, Depends(get_export_draft)]


@router.post("", status_code=202, responses=problem_responses(404))
def create_export(draft: Draft, db: Db, origin: OriginDep, runtime: RuntimeDep) -> ExportCreated:
    """Queue an export of sealed sessions as a dataset."""
    return export_wire_objects.created_export_to_wire(
        export_operations.queue_draft_export(db, runtime.settings, draft, origin=origin), runtime.settings
    )


@router.get("", response_model=Page[Export])
def list_exports(
    pager: PagerDep,
    db: Db,
    caller: CallerDep,
    runtime: RuntimeDep,
    workflow: Workflows = [],  # noqa: B006
    status: ExportStatus | None = None,
    tag: Annotated[
        str | None,
        Query(min_length=1, max_length=limits.TAG_NAME_CHARACTERS, description="Label of the export."),
    ] = None,
) -> Response:
    """List the exports, newest first."""
    check_tag_parameter(tag)
    page = export_operations.list_exports(
        db,
        caller.tenant,
        workflows=tuple(workflow),
        status=status,
        tag=tag,
        before_id=pager.read_cursor(str),
        limit=pager.limit,
    )
    return pager.make_answer(
        page.convert(lambda row: export_wire_objects.export_to_wire(row, runtime.settings))
    )


@router.get("/{export_id}", responses=problem_responses(404))
def get_export(export_id: str, db: Db, caller: CallerDep, runtime: RuntimeDep) -> Export:
    """Return an export."""
    row = export_operations.find_export(db, caller.tenant, export_id)
    return export_wire_objects.export_to_wire(row, runtime.settings, is_whole=True)


@router.post("/{export_id}/cancel", responses=problem_responses(404, 409))
def cancel_export(
    export_id: str, db: Db, caller: CallerDep, origin: OriginDep, runtime: RuntimeDep
) -> Export:
    """Cancel an export: its status becomes `failed`, and the files that it wrote are deleted."""
    row = finalize.cancel_tenant_export(db, runtime.settings, caller.tenant, export_id, origin=origin)
    return export_wire_objects.export_to_wire(row, runtime.settings)


@router.get("/{export_id}/diff", responses=problem_responses(404, 409))
async def compare_exports(
    export_id: str,
    request: Request,
    pager: PagerDep,
    caller: CallerDep,
    runtime: RuntimeDep,
    against: Annotated[str, Query(description="Id of the export to compare with.")],
) -> ExportDifference:
    """Compare an export with another: the sessions and files that differ, and the causes."""
    after_id = pager.read_cursor(str)

    def compare() -> ExportDifference:
        # Plans are read and compared outside of transactions.
        row = _find_export_for_route(runtime, caller, export_id)
        other = _find_export_for_route(runtime, caller, against)
        compared = diff.compare_exports(runtime, row, other)
        return ExportDifference(
            export_id=row.id,
            against=other.id,
            same_rows=compared.same_rows,
            same_request=compared.same_request,
            sessions=compared.sessions,
            shards=compared.shards,
            causes=compared.count_causes(),
            **pager.make_page(compared.page(after_id=after_id, limit=pager.limit)).model_dump(),
        )

    return await run_slow_work(request, "comparison", compare, workspace_id=caller.workspace_id)


@router.get("/{export_id}/manifest", responses=problem_responses(404, 409))
def get_manifest(manifest: StoredManifest, response: Response) -> dict[str, Any]:
    """Return every file with size, rows and SHA-256, and for hosted exports with a new signed address."""
    response.headers["Cache-Control"] = "no-store"  # a signed address opens a file without a key
    return manifest


@router.get(
    "/{export_id}/files/{path:path}",
    response_class=Response,
    responses={200: _BYTES, 206: _BYTES, **problem_responses(404, 416)},
)
async def get_file(request: Request, opened: Opened, file: File, range_header: ByteRange) -> Response:
    """Return a file of a hosted export; `Range` selects a part of it."""

    def read(start: int, end: int) -> AsyncIterator[bytes]:
        pieces = file.read(start, end)
        return iterate_slow_work(request, "hosted file", pieces, workspace_id=opened.row.workspace_id)

    headers = {"Content-Disposition": f'attachment; filename="{file.name}"'}
    return respond_with_streamed_range(read, file.size_bytes, file.media_type, range_header, headers)
