"""Ids: a prefix and a ULID in lower-case base32, rising within a process. Contract §1 (ids)."""

import re
import secrets
import threading
import time
from datetime import datetime
from functools import lru_cache

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
        "bak",
        "ano",
        "req",
        "wsp",
    ]
)
_ULID = re.compile(r"[0-7][0-9a-hjkmnp-tv-z]{25}", re.ASCII)
_CLIENT_ID = re.compile(r"(evt|frm)_[0-9A-Za-z]{1,40}", re.ASCII)

_lock = threading.Lock()
_last = 0


def reserve_ulid_values(count: int) -> int:
    """Return the first of `count` consecutive ULID values; later calls return higher ones.

    A batch of events takes its ids as one range, so that only the first need be stored.
    """
    global _last
    fresh = (time.time_ns() // 1_000_000 << _RANDOM_BITS) | secrets.randbits(_RANDOM_BITS - 1)
    with _lock:
        # If the clock stops or goes back, the range follows the last one.
        first = max(fresh, _last + 1)
        _last = first + count - 1
    return first


def encode_ulid(value: int) -> str:
    """Return the 26 characters of a 128-bit ULID value."""
    return f"{_encode_high(value >> 20)}{_PAIRS[value >> 10 & 1023]}{_PAIRS[value & 1023]}"


@lru_cache(maxsize=1_024)
def _encode_high(value: int) -> str:
    """Return the first 22 characters, which the ids of a batch share."""
    return "".join([_PAIRS[value >> shift & 1023] for shift in range(100, -1, -10)])


def decode_ulid(ulid: str) -> int:
    """Return the 128-bit value of 26 ULID characters."""
    value = 0
    for letter in ulid:
        value = value << 5 | _VALUE[letter]
    return value


def new_id(prefix: str) -> str:
    """Return a new id such as `ses_01k…`."""
    return f"{prefix}_{encode_ulid(reserve_ulid_values(1))}"


class IdCounter:
    """Fast source of ids of one prefix: a random part is drawn once and then counted.

    Ids rise like those of `new_id`, but are predictable: use it for ids that need not be secret, such as
    those of requests, in one thread. An id takes 0.2 µs, a tenth of `new_id`.
    """

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._ms = 0
        self._next_ms_ns = 0
        self._count = 0
        self._drawn = encode_ulid(secrets.randbits(_RANDOM_BITS))[10:-4]
        self._head = ""

    def next(self) -> str:
        """Return the next id."""
        self._count = count = (self._count + 1) & 0xFFFFF
        now_ns = time.time_ns()
        # The last four letters count; when they wrap, the time advances by at least one.
        if now_ns >= self._next_ms_ns or not count:
            self._advance_clock(now_ns)
        return f"{self._head}{_PAIRS[count >> 10]}{_PAIRS[count & 1023]}"

    def _advance_clock(self, now_ns: int) -> None:
        self._ms = max(now_ns // 1_000_000, self._ms + 1)
        self._next_ms_ns = (self._ms + 1) * 1_000_000
        self._head = f"{self._prefix}_{encode_ulid(self._ms << _RANDOM_BITS)[:10]}{self._drawn}"


def id_range(first_id: str, count: int) -> list[str]:
    """Return the `count` ids that begin at `first_id` and follow each other."""
    prefix, _, ulid = first_id.partition("_")
    value = decode_ulid(ulid)
    ids: list[str] = []
    while len(ids) < count:
        # Ids that share all but their last two letters are made together, in a twentieth of the time.
        head, low = f"{prefix}_{encode_ulid(value)[:-2]}", value & 1023
        run = _PAIRS[low : low + count - len(ids)]
        ids += [head + pair for pair in run]
        value += len(run)
    return ids


def new_timed_id(prefix: str) -> tuple[str, datetime]:
    """Return a new id and its instant: ordering by id is then ordering by (that instant, id)."""
    value = reserve_ulid_values(1)
    return f"{prefix}_{encode_ulid(value)}", from_ms(value >> _RANDOM_BITS)


def first_id_at(prefix: str, moment: datetime) -> str:
    """Return the lowest id of an instant, to select ids by time."""
    return f"{prefix}_{encode_ulid(max(0, to_ms(moment)) << _RANDOM_BITS)}"


def read_time_of_id(any_id: str) -> datetime:
    """Return the instant at which an id was made."""
    return from_ms(decode_ulid(any_id.partition("_")[2]) >> _RANDOM_BITS)


def last_id_of_instant(any_id: str) -> str:
    """Return the highest id of the instant at which an id was made."""
    prefix, _, ulid = any_id.partition("_")
    return f"{prefix}_{ulid[:10]}{_ALPHABET[-1] * 16}"


def is_id(text: str, prefix: str) -> bool:
    """Return whether this is a well-formed id of the service with `prefix`."""
    return text.startswith(prefix + "_") and _ULID.fullmatch(text, len(prefix) + 1) is not None


def is_client_id(text: str, prefix: str) -> bool:
    """Return whether a client may use this id for an event (`evt`) or frame (`frm`). Contract §3."""
    return text.startswith(prefix) and _CLIENT_ID.fullmatch(text) is not None
