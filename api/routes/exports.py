"""`/v1/exports`: ask for datasets, read them, fetch manifest and hosted files. Spec §4.3, contract §5."""

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Query, Request, Response

from api.deps import CallerDep, CursorText, Db, Limit, OriginDep, RuntimeDep
from api.errors import problem_responses
from api.paging import Pager
from api.ranges import OUTSIDE, ranged_stream
from api.strict_route import StrictRoute
from recorder import clock, limits
from recorder.errors import RecorderError, ValidationFailed
from recorder.exports.asking import requests, wire
from recorder.exports.formats import FORMATS
from recorder.exports.reading import comparison, serving
from recorder.exports.running import ending
from recorder.models.export import (
    Export,
    ExportCreate,
    ExportCreated,
    ExportDifference,
    ExportRow,
    ExportStatus,
)
from recorder.models.wire import Page

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
    db: Db,
    runtime: RuntimeDep,
    exp: Annotated[int | None, Query(description="End of a signed address, unix seconds.")] = None,
    kid: Annotated[str | None, Query(description="Which secret signed the address.")] = None,
    sig: Annotated[str | None, Query(description="Signature of the address.")] = None,
) -> OpenedExport:
    """The export of an address that a key opens, or a signature.

    Raises:
        NotFound: if the caller has no such export.
        InvalidSignature, UrlExpired: if no key was sent and the signature does not hold.
    """
    caller = request.state.caller
    if caller is not None:
        return OpenedExport(requests.find_export(db, caller.workspace_id, caller.mode, export_id), None)
    if exp is None or kid is None or sig is None:
        text = "A signed address carries exp, kid and sig."
        raise ValidationFailed.of("sig", "missing", text, where="query")
    row = serving.open_by_signature(
        db,
        runtime.settings,
        export_id,
        request.scope["path"],
        expires_s=exp,
        key_id=kid,
        signature=sig,
    )
    return OpenedExport(row, clock.from_ms(exp * 1000))


Opened = Annotated[OpenedExport, Depends(get_opened_export)]


def get_draft(request: Request, caller: CallerDep, runtime: RuntimeDep, body: ExportCreate) -> ExportRow:
    """The export that is asked for, its destination probed: that may take seconds, and is in no transaction.

    Raises:
        InvalidDestination, DestinationNotAllowed, Unavailable: if it cannot be written to.
    """
    draft = requests.draft_export(caller.workspace_id, caller.mode, body)
    try:
        with runtime.database.transaction(write=False) as db:
            if (keyed := getattr(request.state, "keyed", None)) is not None:
                keyed.look(db)
            requests.require_known(db, draft)
    except RecorderError:
        return draft  # the request's transaction finds the same, and keeps the answer
    requests.probe_destination(draft, runtime.settings)
    return draft


# Bounded, since each may wait for a store; and before the transaction, since those are resolved in order.
Draft = Annotated[ExportRow, Depends(get_draft, max_concurrency=8)]


@router.post("", status_code=202, responses=problem_responses(401, 404, 422, 503))
def create_export(draft: Draft, db: Db, origin: OriginDep, runtime: RuntimeDep) -> ExportCreated:
    """Queue an export of sealed sessions as a dataset."""
    return wire.to_created(
        requests.store_export(db, runtime.settings, draft, origin=origin), runtime.settings
    )


@router.get("", responses=problem_responses(400, 401, 422))
def list_exports(
    request: Request,
    db: Db,
    caller: CallerDep,
    runtime: RuntimeDep,
    workflow: Annotated[list[_Workflow], Query(description="Repeat it for several.")] = [],  # noqa: B006
    status: ExportStatus | None = None,
    cursor: CursorText = None,
    limit: Limit = limits.LIST_DEFAULT,
) -> Page[Export]:
    """Exports, newest first."""
    pager = Pager(request, caller)
    before = pager.read(cursor)
    rows, has_more = requests.list_exports(
        db,
        caller.workspace_id,
        caller.mode,
        workflows=tuple(workflow),
        status=status,
        before_id=before[0] if before else None,
        limit=limit,
    )
    page = [wire.to_wire(row, runtime.settings) for row in rows]
    return pager.page(page, [rows[-1].id] if has_more else None)


@router.get("/{export_id}", responses=problem_responses(401, 404))
def get_export(export_id: str, db: Db, caller: CallerDep, runtime: RuntimeDep) -> Export:
    """One export."""
    row = requests.find_export(db, caller.workspace_id, caller.mode, export_id)
    return wire.to_wire(row, runtime.settings)


@router.post("/{export_id}/cancel", responses=problem_responses(401, 404, 409))
def cancel_export(
    export_id: str, db: Db, caller: CallerDep, origin: OriginDep, runtime: RuntimeDep
) -> Export:
    """Call an export off: it ends as `failed`, and what was written of it is taken away."""
    row = ending.cancel(db, runtime.settings, caller.workspace_id, caller.mode, export_id, origin=origin)
    return wire.to_wire(row, runtime.settings)


@router.get("/{export_id}/diff", responses=problem_responses(400, 401, 404, 409, 422))
def compare_exports(
    request: Request,
    export_id: str,
    db: Db,
    caller: CallerDep,
    runtime: RuntimeDep,
    against: Annotated[str, Query(description="Id of the export to compare with.")],
    cursor: CursorText = None,
    limit: Limit = limits.LIST_DEFAULT,
) -> ExportDifference:
    """Which sessions and files differ from those of another export, and why."""
    pager = Pager(request, caller)
    after = pager.read(cursor)
    row = requests.find_export(db, caller.workspace_id, caller.mode, export_id)
    other = requests.find_export(db, caller.workspace_id, caller.mode, against)
    compared = comparison.compare(db, runtime, row, other)
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


@router.get("/{export_id}/manifest", responses=problem_responses(401, 403, 404, 409))
def get_manifest(opened: Opened, runtime: RuntimeDep) -> dict[str, Any]:
    """Every file with size, rows and SHA-256; of a hosted export also with a fresh address."""
    return serving.read_manifest(opened.row, runtime.settings, until=opened.until)


@router.get(
    "/{export_id}/files/{path:path}",
    response_class=Response,
    responses={200: _BYTES, 206: _BYTES, **problem_responses(401, 403, 404), 416: OUTSIDE},
)
def get_file(
    path: str,
    db: Db,
    opened: Opened,
    runtime: RuntimeDep,
    range_header: Annotated[str | None, Header(alias="Range")] = None,
) -> Response:
    """A file of a hosted export; `Range` gives a part of it."""
    file = serving.find_file(db, opened.row, runtime.settings, path)
    headers = {"Content-Disposition": f'attachment; filename="{file.name}"'}
    return ranged_stream(file.read, file.size_bytes, file.media_type, range_header, headers)
