"""Ids: a prefix and a ULID in lower-case base32, rising within a process. Contract §1 (ids)."""

import re
import secrets
import threading
import time
from datetime import datetime

from recorder.clock import from_ms, to_ms

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_VALUE = {letter: value for value, letter in enumerate(_ALPHABET)}
_PAIRS = [a + b for a in _ALPHABET for b in _ALPHABET]
_RANDOM_BITS = 80
PREFIXES = frozenset(
    [
        "ses",
        "evt",
        "frm",
        "tag",
        "key",
        "whk",
        "dlv",
        "exp",
        "nde",
        "pth",
        "rpl",
        "rcv",
        "era",
        "aud",
        "req",
        "wsp",
    ]
)
_ULID = re.compile(r"[0-7][0-9a-hjkmnp-tv-z]{25}", re.ASCII)
_CLIENT_ID = re.compile(r"(evt|frm)_[0-9A-Za-z]{1,40}", re.ASCII)

_lock = threading.Lock()
_last = 0


def reserve(count: int) -> int:
    """The first of `count` consecutive ULID values; later calls return higher ones.

    A batch of events takes its ids as one range, so that only the first need be stored.
    """
    global _last
    fresh = (time.time_ns() // 1_000_000 << _RANDOM_BITS) | secrets.randbits(_RANDOM_BITS - 1)
    with _lock:
        # The clock may stand still or go back: then the range follows the last one.
        first = max(fresh, _last + 1)
        _last = first + count - 1
    return first


def encode(value: int) -> str:
    """The 26 characters of a 128-bit ULID value."""
    return "".join([_PAIRS[(value >> shift) & 1023] for shift in range(120, -1, -10)])


def decode(ulid: str) -> int:
    """The 128-bit value of 26 ULID characters."""
    value = 0
    for letter in ulid:
        value = value << 5 | _VALUE[letter]
    return value


def new_id(prefix: str) -> str:
    """A fresh id such as `ses_01k…`."""
    return f"{prefix}_{encode(reserve(1))}"


def id_range(first_id: str, count: int) -> list[str]:
    """The `count` ids that begin at `first_id` and follow each other."""
    prefix, _, ulid = first_id.partition("_")
    first = decode(ulid)
    return [f"{prefix}_{encode(first + offset)}" for offset in range(count)]


def new_timed_id(prefix: str) -> tuple[str, datetime]:
    """A fresh id and the instant in it: ordering by id is then ordering by (that instant, id)."""
    value = reserve(1)
    return f"{prefix}_{encode(value)}", from_ms(value >> _RANDOM_BITS)


def first_id_at(prefix: str, moment: datetime) -> str:
    """The lowest id of that instant: ids compare with it as their instants with the moment."""
    return f"{prefix}_{encode(max(0, to_ms(moment)) << _RANDOM_BITS)}"


def is_id(text: str, prefix: str) -> bool:
    """Whether this is an id that the service itself could have given for `prefix`."""
    return text.startswith(prefix + "_") and _ULID.fullmatch(text, len(prefix) + 1) is not None


def is_client_id(text: str, prefix: str) -> bool:
    """Whether a client may name an event (`evt`) or a frame (`frm`) so. Contract §3."""
    return text.startswith(prefix) and _CLIENT_ID.fullmatch(text) is not None
