"""Dependencies of routes: runtime, caller, transaction, pages of lists, time ranges. Contract §1."""

import base64
import binascii
import hmac
from collections.abc import Callable, Iterator
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
from recorder.runtime import Runtime

_MAC_BYTES = 16
_NOT_A_FILTER = ("cursor", "limit")


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
    address, request_id = client_address(request.scope), request.state.request_id
    return Origin(caller.workspace_id, "key", caller.key_id, request_id, address, caller.mode)


def get_db(request: Request, runtime: Annotated[Runtime, Depends(get_runtime)]) -> Iterator[DbSession]:
    """Yield the transaction of the request, which is committed before the answer is sent."""
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
CallerDep = Annotated[Caller, Depends(get_caller)]
OriginDep = Annotated[Origin, Depends(get_origin)]
# Function scope: with the default one the commit would come after the client has its answer.
# Bounded: on SQLite writers wait for each other in worker threads (40 in all), and the one that may write
# needs one more thread to continue.
Db = Annotated[DbSession, Depends(get_db, scope="function", max_concurrency=20)]

Limit = Annotated[int, Query(ge=1, le=limits.LIST_MAX, description="Items a page.")]
_Cursor = Annotated[str | None, Query(description="`next_cursor` of the page before.")]


class Pager:
    """Cursors of one list request: opaque, signed, bound to workspace, mode, address and filters.

    Attributes:
        limit: items of a page.
    """

    def __init__(self, request: Request, caller: Caller, cursor: str | None, limit: int) -> None:
        self.limit = limit
        self._cursor = cursor
        self._secret: bytes = request.app.state.runtime.settings.secret
        filters = sorted(pair for pair in request.query_params.multi_items() if pair[0] not in _NOT_A_FILTER)
        self._bound_to = [caller.workspace_id, caller.mode, request.url.path, filters]

    def read_position(self) -> list[Any] | None:
        """Return the position after which the page begins; None for the first page.

        Raises:
            InvalidCursor: if the cursor is not of this list, of this key and of these filters.
        """
        cursor = self._cursor
        if cursor is None:
            return None
        try:
            raw = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        except (binascii.Error, ValueError) as error:
            raise InvalidCursor from error
        mac, position = raw[:_MAC_BYTES], raw[_MAC_BYTES:]
        if _encode_base64(raw) != cursor:  # other letters can encode the same bytes
            raise InvalidCursor
        if not hmac.compare_digest(mac, self._compute_mac(position)):
            raise InvalidCursor
        value: list[Any] = orjson.loads(position)
        return value

    def read_last_id(self) -> str | None:
        """Return the last id of the page before, in lists that are ordered by id; None for the first page.

        Raises:
            InvalidCursor: as `read_position` does.
        """
        position = self.read_position()
        return position[0] if position else None

    def make_page(self, items: list[Item], next_position: list[Any] | None) -> Page[Item]:
        """Return a page; `next_position` is that of its last item, or None on the last page."""
        cursor = None
        if next_position is not None:
            raw = canonical_json(next_position)
            cursor = _encode_base64(self._compute_mac(raw) + raw)
        return Page(data=items, next_cursor=cursor, has_more=cursor is not None)

    def cut_page(self, items: list[Item], key: Callable[[Item], list[Any]]) -> Page[Item]:
        """Return a page of a list that was read with a limit of one more item.

        Args:
            items: at most `limit + 1`.
            key: returns the position of an item.
        """
        page = items[: self.limit]
        return self.make_page(page, key(page[-1]) if len(items) > self.limit else None)

    def _compute_mac(self, position: bytes) -> bytes:
        bound = canonical_json(self._bound_to) + b"\0" + position
        return keyed_digest(self._secret, "cursor", bound)[:_MAC_BYTES]


def _encode_base64(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


async def get_pager(
    request: Request, caller: CallerDep, cursor: _Cursor = None, limit: Limit = limits.LIST_DEFAULT
) -> Pager:
    """Return the pager of a list request; the route reads the cursor after all parameters are valid."""
    return Pager(request, caller, cursor, limit)


@dataclass(frozen=True)
class TimeRange:
    """`since` (inclusive) and `until` (exclusive), resolved once.

    Later pages of a list keep the times that its first page resolved; their cursor holds them.
    """

    since: datetime | None
    until: datetime | None

    @classmethod
    def from_ms(cls, since: int | None, until: int | None) -> "TimeRange":
        """Return the range that a cursor holds."""
        return cls(
            None if since is None else clock.from_ms(since), None if until is None else clock.from_ms(until)
        )

    def to_ms(self) -> list[int | None]:
        """Return the range as milliseconds, for a cursor."""
        return [None if time is None else clock.to_ms(time) for time in (self.since, self.until)]


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
    return _resolve_range("since", since, "until", until)


async def get_other_time_range(
    against_since: _OtherTime = None, against_until: _OtherTime = None
) -> TimeRange:
    """Return the range of the other side of a comparison.

    Raises:
        InvalidTime: if a bound is no time.
        InvalidRange: if `against_since` is later than `against_until`.
    """
    return _resolve_range("against_since", against_since, "against_until", against_until)


def _resolve_range(low: str, since: str | None, high: str, until: str | None) -> TimeRange:
    now = clock.now()
    first = None if since is None else clock.resolve_time(since, now=now, name=low)
    last = None if until is None else clock.resolve_time(until, now=now, name=high)
    if first is not None and last is not None and first > last:
        raise InvalidRange(low, high)
    return TimeRange(first, last)


PagerDep = Annotated[Pager, Depends(get_pager)]
TimeRangeDep = Annotated[TimeRange, Depends(get_time_range)]
OtherTimeRangeDep = Annotated[TimeRange, Depends(get_other_time_range)]
