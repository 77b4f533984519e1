"""Cursors: opaque, signed, bound to workspace, mode, address and filters. Contract §1 (lists)."""

import base64
import binascii
import hmac
from typing import Any

import orjson
from fastapi import Request

from recorder.access.keys import Caller
from recorder.digest import canonical_json, keyed_digest
from recorder.errors import InvalidCursor
from recorder.models.wire import Item, Page

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
