"""Dependencies of routes: runtime, caller, origin of a change, transaction, pages of lists, time ranges.

Contract §1.
"""

import base64
import binascii
import hmac
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Annotated, Any, TypeVar, cast

import msgspec
import orjson
from fastapi import Depends, Query, Request, Response
from fastapi.concurrency import contextmanager_in_threadpool, run_in_threadpool
from pydantic import BaseModel
from sqlmodel import Session as DbSession

from api.fair_slots import FairSlots, SlowWork
from api.gate.endpoints import find_endpoint
from api.gate.idempotency import IdempotentRequest
from api.gate.rate_limiter import find_client_network
from api.gate.responses import read_client_address
from recorder import clock, limits
from recorder.access.keys import Caller
from recorder.audit.log import Origin
from recorder.errors import InvalidCursor, InvalidRange, InvalidTime, MissingAuthorization
from recorder.hashing import canonical_json, compute_keyed_digest
from recorder.models.wire import Item, Page
from recorder.runtime import Runtime
from recorder.storage.database import Database
from recorder.storage.limited_reads import limited_read
from recorder.storage.list_pages import FetchedPage

_MAC_BYTES = 16
_NOT_A_FILTER = ("cursor", "limit")
#: Instant and position of a request without a cursor.
_FIRST_PAGE: tuple[int | None, Any] = (None, None)

#: Filter of lists of what belongs to workflows.
Workflows = Annotated[
    list[Annotated[str, Query(pattern=limits.WORKFLOW_PATTERN)]], Query(description="Repeat it for several.")
]
_Position = TypeVar("_Position")
_Result = TypeVar("_Result")


async def get_runtime(request: Request) -> Runtime:
    """Return the parts that this process was composed of."""
    runtime: Runtime = request.app.state.runtime
    return runtime


async def get_caller(request: Request) -> Caller:
    """Return the caller that the gate identified.

    Raises:
        MissingAuthorization: if the address was reached by a signature alone.
    """
    caller: Caller | None = request.state.caller
    if caller is None:
        raise MissingAuthorization
    return caller


async def get_origin(request: Request) -> Origin:
    """Return the origin of a change, for the audit log.

    Raises:
        MissingAuthorization: if the address was reached by a signature alone.
    """
    caller = await get_caller(request)
    address, request_id = read_client_address(request.scope), request.state.request_id
    return Origin(caller.workspace_id, "key", caller.key_id, request_id, address, caller.mode)


@contextmanager
def _open_request_transaction(request: Request, runtime: Runtime) -> Iterator[DbSession]:
    """Open the transaction of a request, in the thread that is to use it first."""
    endpoint = find_endpoint(request.method, request.scope["path"])
    if endpoint is not None and endpoint.is_list:
        with limited_read(runtime.database, limit_s=limits.LIST_SECONDS) as db:
            yield db
        return
    is_read = request.method in ("GET", "HEAD") or (endpoint is not None and endpoint.only_reads)
    keyed: IdempotentRequest | None = getattr(request.state, "keyed", None)
    if keyed is not None:
        with keyed.transaction(runtime.database, only_reads=is_read) as db:
            yield db
        return
    with runtime.database.transaction(write=not is_read) as db:
        yield db


async def get_db(
    request: Request, runtime: Annotated[Runtime, Depends(get_runtime)]
) -> AsyncIterator[DbSession]:
    """Yield the transaction of the request, which is committed before the answer is sent.

    It waits for one of the process's slots, of which no workspace takes all.
    """
    transaction = contextmanager_in_threadpool(_open_request_transaction(request, runtime))
    async with _hold_database_slot(request), transaction as db:
        yield db


@contextmanager
def open_earlier_transaction(
    request: Request, database: Database, *, write: bool = False
) -> Iterator[DbSession]:
    """Open a transaction before the request's own begins.

    Its first statement raises the stored answer of a keyed request that was answered before.

    Args:
        request: the request.
        database: database of the deployment.
        write: whether the transaction writes.
    """
    with database.transaction(write=write) as db:
        keyed: IdempotentRequest | None = getattr(request.state, "keyed", None)
        if keyed is not None:
            keyed.claim_at_first_statement(db)
        yield db


async def read_before_transaction(
    request: Request,
    database: Database,
    read: Callable[[DbSession], _Result],
    *,
    slow: SlowWork | None = None,
) -> _Result:
    """Return the result of a function that reads in a transaction of its own, in another slot and thread.

    For reads that take long, before the request's write transaction begins: other writers wait for that.

    Args:
        request: the request.
        database: database of the deployment.
        read: the function; its argument is the transaction.
        slow: kind of slow work whose slots it takes; None takes one of the database.
    """

    def read_in_transaction() -> _Result:
        with open_earlier_transaction(request, database) as db:
            return read(db)

    if slow is None:
        return await run_in_database_slot(request, read_in_transaction)
    caller = await get_caller(request)
    return await run_slow_work(request, slow, read_in_transaction, workspace_id=caller.workspace_id)


async def run_in_database_slot(request: Request, work: Callable[[], _Result]) -> _Result:
    """Return the result of work that opens transactions of its own, in a slot and in a worker thread."""
    async with _hold_database_slot(request):
        return await run_in_threadpool(work)


async def run_slow_work(
    request: Request, kind: SlowWork, work: Callable[[], _Result], *, workspace_id: str
) -> _Result:
    """Return the result of work that may wait for a store, in one of a few slots and in a worker thread.

    Waiting requests leave the worker threads to others, and workspaces take turns.

    Args:
        request: the request.
        kind: kind of the work, each of which has slots of its own.
        work: the function.
        workspace_id: workspace that the work is for.
    """
    work_slots: dict[SlowWork, FairSlots] = request.app.state.work_slots
    async with work_slots[kind].hold(workspace_id):
        return await run_in_threadpool(work)


async def iterate_slow_work(
    request: Request, kind: SlowWork, items: Iterator[_Result], *, workspace_id: str
) -> AsyncIterator[_Result]:
    """Yield what an iterator yields; each item is slow work of its own, as in `run_slow_work`.

    Args:
        request: the request.
        kind: kind of the work.
        items: the iterator, whose next item may wait for a store.
        workspace_id: workspace that the work is for.
    """
    end = object()
    while True:
        item = await run_slow_work(request, kind, partial(next, items, end), workspace_id=workspace_id)
        if item is end:
            return
        yield cast("_Result", item)


@asynccontextmanager
async def _hold_database_slot(request: Request) -> AsyncIterator[None]:
    caller: Caller | None = request.state.caller
    network = find_client_network(read_client_address(request.scope))
    owner = network if caller is None else caller.workspace_id
    database_slots: FairSlots = request.app.state.database_slots
    async with database_slots.hold(owner):
        yield


RuntimeDep = Annotated[Runtime, Depends(get_runtime)]
CallerDep = Annotated[Caller, Depends(get_caller)]
OriginDep = Annotated[Origin, Depends(get_origin)]
# Function scope: with the default one the commit would come after the client has its answer.
Db = Annotated[DbSession, Depends(get_db, scope="function")]

Limit = Annotated[int, Query(ge=1, le=limits.LIST_MAX, description="Items a page.")]
_Cursor = Annotated[str | None, Query(description="`next_cursor` of the page before.")]


class Pager:
    """Cursors of one list request: opaque, signed, bound to workspace, mode, address and filters.

    In a list that takes times, a cursor holds the instant of the first page too: relative times (`since=1h`)
    mean the same on every page. In other lists equal pages have equal cursors.

    Attributes:
        limit: items of a page.
    """

    def __init__(self, request: Request, caller: Caller, cursor: str | None, limit: int) -> None:
        self.limit = limit
        self._secret: bytes = request.app.state.runtime.settings.secret
        filters = sorted(pair for pair in request.query_params.multi_items() if pair[0] not in _NOT_A_FILTER)
        self._bound_to = [caller.workspace_id, caller.mode, request.url.path, filters]
        content = None if cursor is None else self._decode(cursor)
        self._is_refused = cursor is not None and content is None
        self._instant_ms, self._position = content or _FIRST_PAGE

    def read_instant(self) -> datetime:
        """Return the instant of the first page, for relative times; the next cursor then holds it."""
        if self._instant_ms is None:
            self._instant_ms = clock.now_ms()
        return clock.from_ms(self._instant_ms)

    def read_cursor(self, kind: type[_Position]) -> _Position | None:
        """Return the position after which the page begins; None for the first page.

        A route calls it after all its parameters are valid.

        Args:
            kind: type of the position, such as `str` or `tuple[int, str]`.

        Raises:
            InvalidCursor: if the cursor is not of this list, of this key and of these filters.
        """
        if self._is_refused:
            raise InvalidCursor
        return None if self._position is None else msgspec.convert(self._position, kind)

    def make_page(self, fetched: FetchedPage[Item, Any]) -> Page[Item]:
        """Return the members of the answer for a page that was read, with the cursor of the next one."""
        cursor = None if fetched.position is None else self._encode_cursor(fetched.position)
        return Page(data=fetched.items, next_cursor=cursor, has_more=cursor is not None)

    def make_answer(self, fetched: FetchedPage[Any, Any]) -> Response:
        """Return the answer for a page that was read, as JSON; a route calls it in its worker thread.

        In the event loop a page of 4 MiB would delay all requests of the process. The items are serialized
        one by one, since each call keeps the interpreter's lock.
        """
        return self.make_json_answer(fetched.convert(_serialize_list_item))

    def make_json_answer(self, fetched: FetchedPage[bytes, Any]) -> Response:
        """Return the answer for a page of items that are JSON already."""
        tail = self.make_page(fetched._replace(items=[])).model_dump_json(exclude={"data"}).encode()
        data = b",".join(fetched.items)
        return Response(b'{"data":[' + data + b"]," + tail[1:], media_type="application/json")

    def _decode(self, cursor: str) -> tuple[int | None, Any] | None:
        """Return instant and position of a cursor; None if this list did not return it."""
        try:
            raw = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        except (binascii.Error, ValueError):
            return None
        mac, content = raw[:_MAC_BYTES], raw[_MAC_BYTES:]
        if _encode_cursor_base64(raw) != cursor:  # other letters can encode the same bytes
            return None
        if not hmac.compare_digest(mac, self._compute_cursor_mac(content)):
            return None
        instant_ms, position = orjson.loads(content)
        return instant_ms, position

    def _encode_cursor(self, position: Any) -> str:
        content = canonical_json([self._instant_ms, position])
        return _encode_cursor_base64(self._compute_cursor_mac(content) + content)

    def _compute_cursor_mac(self, content: bytes) -> bytes:
        bound = canonical_json(self._bound_to) + b"\0" + content
        return compute_keyed_digest(self._secret, "cursor", bound)[:_MAC_BYTES]


def _serialize_list_item(item: BaseModel) -> bytes:
    return item.model_dump_json(by_alias=True).encode()


def _encode_cursor_base64(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


async def get_pager(
    request: Request, caller: CallerDep, cursor: _Cursor = None, limit: Limit = limits.LIST_DEFAULT
) -> Pager:
    """Return the pager of a list request; the route reads the cursor after all parameters are valid."""
    return Pager(request, caller, cursor, limit)


@dataclass(frozen=True)
class TimeRange:
    """`since` (inclusive) and `until` (exclusive), resolved once."""

    since: datetime | None
    until: datetime | None


_Time = Annotated[str | None, Query(description="ISO 8601, or a duration such as `30d`, `1h`.")]
_OtherTime = Annotated[
    str | None, Query(description="As the parameter without `against_`, of the other side.")
]


async def get_time_range(since: _Time = None, until: _Time = None) -> TimeRange:
    """Return the range that a query names.

    Raises:
        InvalidTime: if a bound is no time.
        InvalidRange: if `since` is later than `until`.
    """
    return _resolve_time_range(low="since", since=since, high="until", until=until, now=clock.now())


async def get_list_time_range(
    pager: Annotated[Pager, Depends(get_pager)], since: _Time = None, until: _Time = None
) -> TimeRange:
    """Return the range that a list request names, the same on every page.

    Raises:
        InvalidTime: if a bound is no time.
        InvalidRange: if `since` is later than `until`.
    """
    return _resolve_time_range(low="since", since=since, high="until", until=until, now=pager.read_instant())


async def get_other_time_range(
    against_since: _OtherTime = None, against_until: _OtherTime = None
) -> TimeRange:
    """Return the range of the other side of a comparison.

    Raises:
        InvalidTime: if a bound is no time.
        InvalidRange: if `against_since` is later than `against_until`.
    """
    return _resolve_time_range(
        low="against_since", since=against_since, high="against_until", until=against_until, now=clock.now()
    )


def _resolve_time_range(
    *, low: str, since: str | None, high: str, until: str | None, now: datetime
) -> TimeRange:
    first = None if since is None else _resolve_time_bound(since, now=now, name=low)
    last = None if until is None else _resolve_time_bound(until, now=now, name=high)
    if first is not None and last is not None and first > last:
        raise InvalidRange(low, high)
    return TimeRange(first, last)


def _resolve_time_bound(text: str, *, now: datetime, name: str) -> datetime:
    try:
        return clock.resolve_time(text, now=now, name=name)
    except InvalidTime as error:
        if " " not in text:
            raise
        raise InvalidTime(name, f"{error} In an address, write + as %2B.") from error


PagerDep = Annotated[Pager, Depends(get_pager)]
TimeRangeDep = Annotated[TimeRange, Depends(get_time_range)]
ListTimeRangeDep = Annotated[TimeRange, Depends(get_list_time_range)]
OtherTimeRangeDep = Annotated[TimeRange, Depends(get_other_time_range)]
