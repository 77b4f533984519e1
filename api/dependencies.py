"""Cursors: opaque, signed, bound to workspace, mode, address and filters. Contract §1 (lists)."""

import base64
import binascii
import hmac
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any

import orjson
from fastapi import Depends, Query, Request
from sqlmodel import Session as DbSession

from api.gate.endpoints import find_endpoint
from api.gate.idempotency import KeyedRequest
from api.gate.responses import client_address
from recorder import clock, limits
from recorder.access.keys import Caller
from recorder.audit.log import Origin
from recorder.digest import canonical_json, keyed_digest
from recorder.errors import InvalidCursor, InvalidRange, MissingAuthorization
from recorder.models.wire import Item, Page
from recorder.recording.ingest import IngestWriter
from recorder.runtime import Runtime

_MAC_BYTES = 16
_NOT_A_FILTER = ("cursor", "limit")


class Pager:
    """Reads and writes the cursors of one list request."""

    def __init__(self, request: Request, caller: Caller) -> None:
        self._secret: bytes = request.app.state.runtime.settings.secret
        filters = sorted(pair for pair in request.query_params.multi_items() if pair[0] not in _NOT_A_FILTER)
        self._bound_to = [caller.workspace_id, caller.mode, request.url.path, filters]

    def read(self, cursor: str | None) -> list[Any] | None:
        """The position that a cursor of this list holds; None on the first page.

        Raises:
            InvalidCursor: if it was not given out by this list, for this key and these filters.
        """
        if cursor is None:
            return None
        try:
            raw = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        except (binascii.Error, ValueError) as error:
            raise InvalidCursor from error
        mac, position = raw[:_MAC_BYTES], raw[_MAC_BYTES:]
        if _encode(raw) != cursor:  # other letters may stand for the same bytes
            raise InvalidCursor
        if not hmac.compare_digest(mac, self._mac(position)):
            raise InvalidCursor
        value: list[Any] = orjson.loads(position)
        return value

    def write(self, position: list[Any]) -> str:
        """The cursor that leads behind this position."""
        raw = canonical_json(position)
        return _encode(self._mac(raw) + raw)

    def page(self, items: list[Item], position: list[Any] | None) -> Page[Item]:
        """A page; `position` is None on the last one."""
        cursor = None if position is None else self.write(position)
        return Page(data=items, next_cursor=cursor, has_more=cursor is not None)

    def _mac(self, position: bytes) -> bytes:
        bound = canonical_json(self._bound_to) + b"\0" + position
        return keyed_digest(self._secret, "cursor", bound)[:_MAC_BYTES]


def _encode(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


async def get_runtime(request: Request) -> Runtime:
    """The parts that this process was put together from."""
    runtime: Runtime = request.app.state.runtime
    return runtime


async def get_ingest(request: Request) -> IngestWriter:
    """The writer thread of this process."""
    writer: IngestWriter = request.app.state.ingest
    return writer


async def get_caller(request: Request) -> Caller:
    """Who calls, as the gate found out.

    Raises:
        MissingAuthorization: if the address was reached by a signature alone.
    """
    caller: Caller | None = request.state.caller
    if caller is None:
        raise MissingAuthorization
    return caller


async def get_origin(request: Request) -> Origin:
    """Where a change comes from, for the audit log.

    Raises:
        MissingAuthorization: if the address was reached by a signature alone.
    """
    caller = await get_caller(request)
    address, request_id = client_address(request.scope), request.state.request_id
    return Origin(caller.workspace_id, "key", caller.key_id, request_id, address, caller.mode)


def get_db(request: Request, runtime: Annotated[Runtime, Depends(get_runtime)]) -> Iterator[DbSession]:
    """One transaction for the request, committed before the answer leaves."""
    keyed: KeyedRequest | None = getattr(request.state, "keyed", None)
    if keyed is not None:
        with keyed.transaction(runtime.database) as db:
            yield db
        return
    endpoint = find_endpoint(request.method, request.scope["path"])
    is_read = request.method in ("GET", "HEAD") or (endpoint is not None and endpoint.only_reads)
    with runtime.database.transaction(write=not is_read) as db:
        yield db


RuntimeDep = Annotated[Runtime, Depends(get_runtime)]
Ingest = Annotated[IngestWriter, Depends(get_ingest)]
CallerDep = Annotated[Caller, Depends(get_caller)]
OriginDep = Annotated[Origin, Depends(get_origin)]
# Function scope: with the default one the commit would come after the client has its answer.
# Bounded: on SQLite writers wait for each other in worker threads (of 40), and the one whose turn it is
# needs another thread to go on.
Db = Annotated[DbSession, Depends(get_db, scope="function", max_concurrency=20)]

Limit = Annotated[int, Query(ge=1, le=limits.LIST_MAX, description="Items a page.")]
CursorText = Annotated[str | None, Query(description="`next_cursor` of the page before.")]


@dataclass(frozen=True)
class TimeRange:
    """`since` (inclusive) and `until` (exclusive), resolved once."""

    since: datetime | None
    until: datetime | None


async def get_time_range(
    since: Annotated[str | None, Query(description="ISO 8601, or a duration such as `30d`, `1h`.")] = None,
    until: Annotated[str | None, Query(description="ISO 8601, or a duration such as `30d`, `1h`.")] = None,
) -> TimeRange:
    """The range that a query names.

    Raises:
        InvalidTime: if a bound is no time.
        InvalidRange: if `since` lies above `until`.
    """
    return _resolved("since", since, "until", until)


async def get_other_time_range(
    against_since: Annotated[str | None, Query(description="As `since`, of the other side.")] = None,
    against_until: Annotated[str | None, Query(description="As `until`, of the other side.")] = None,
) -> TimeRange:
    """The range that a query holds the first one against.

    Raises:
        InvalidTime: if a bound is no time.
        InvalidRange: if `against_since` lies above `against_until`.
    """
    return _resolved("against_since", against_since, "against_until", against_until)


def _resolved(low: str, since: str | None, high: str, until: str | None) -> TimeRange:
    now = clock.now()
    first = None if since is None else clock.resolve_time(since, now=now, name=low)
    last = None if until is None else clock.resolve_time(until, now=now, name=high)
    if first is not None and last is not None and first > last:
        raise InvalidRange(low, high)
    return TimeRange(first, last)


TimeRangeDep = Annotated[TimeRange, Depends(get_time_range)]
OtherTimeRangeDep = Annotated[TimeRange, Depends(get_other_time_range)]
