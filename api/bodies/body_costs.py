"""Estimate of the time to read a JSON body: if it is long, a worker process reads the body. Contract §3."""

from typing import Final

from recorder.strict_json import DIGITS_AS_ZEROS

#: A larger JSON body is read in a worker process, whatever it holds. With 256 KB, batches of 235 KB at the
#: permitted rate let another workspace wait 12 times as long as usual, and were no faster themselves.
LARGE_BYTES: Final = 64 * 1024
#: Lists and objects, values, and portions of long numbers that a body read in the event loop may hold. Each
#: takes up to 0.43, 0.15 and 1.5 µs; a batch of 100 events has some hundred, some thousand and none.
_CONTAINERS: Final = 1_000
_VALUES: Final = 5_000
_LONG_NUMBERS: Final = 300
#: Values of a body that pydantic checks: each that is wrong takes up to 20 µs more.
_CHECKED_VALUES: Final = 1_000
#: A smaller body holds too few digits to matter.
_NUMBERS_BYTES: Final = 8_192

_LONG_NUMBER = b"0" * 19


def is_costly_body(body: bytes) -> bool:
    """Return whether a JSON body takes longer to read than other requests should wait."""
    return len(body) > LARGE_BYTES or has_many_values(body)


def is_costly_route_body(body: bytes) -> bool:
    """Return whether a JSON body beside events and frames takes long to read, or to refuse."""
    return body.count(b",") > _CHECKED_VALUES or is_costly_body(body)


def has_many_values(body: bytes) -> bool:
    """Return whether a body takes long to read for its size, such as one of nested empty lists."""
    if body.count(b"[") + body.count(b"{") > _CONTAINERS or body.count(b",") > _VALUES:
        return True
    if len(body) <= _NUMBERS_BYTES:
        return False
    return body.translate(DIGITS_AS_ZEROS).count(_LONG_NUMBER) > _LONG_NUMBERS
