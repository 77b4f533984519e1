"""Digests of a dataset's rows, independent of the file format. Spec §4.3 (determinism).

Sealing computes the events' digest once per session; exports combine the sessions; `verify` computes
both again from the files alone.
"""

import hashlib
from collections.abc import Iterable
from itertools import islice
from typing import Literal, NamedTuple

import orjson
import polars as pl

RowKind = Literal["events", "frames", "samples"]

_LINES_AT_ONCE = 100_000
#: With the largest payloads 64 MiB.
_HASHED_AT_ONCE = 1_024


class EventKey(NamedTuple):
    """The members of an event row that its session's digest covers, in this order."""

    event_id: str
    t_ms: int
    ts_us: int  # microseconds since 1970
    type: str
    frame_id: str | None
    payload: str  # canonical JSON text, as stored


class SessionRows(NamedTuple):
    """Number and digest of the rows of one kind that a session adds to a row set."""

    kind: RowKind
    session_id: str
    n_rows: int
    digest: str


class EventsDigest:
    """SHA-256 of one session's events (`rows_sha256`), computed portion by portion."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        #: Number of rows so far.
        self.n_rows = 0

    def update(self, rows: Iterable[EventKey | tuple[str, int, int, str, str | None, str]]) -> None:
        """Add the next rows, in `(t_ms, event_id)` order."""
        lines = [orjson.dumps([*row]) for row in rows]
        if not lines:
            return
        if self.n_rows:
            self._hash.update(b"\n")
        self.n_rows += len(lines)
        self._hash.update(b"\n".join(lines))

    def hexdigest(self) -> str:
        """Return the digest of all rows so far."""
        return self._hash.hexdigest()


def compute_events_digest(rows: Iterable[EventKey | tuple[str, int, int, str, str | None, str]]) -> str:
    """Return the hex SHA-256 of one session's events (`rows_sha256`).

    Args:
        rows: in `(t_ms, event_id)` order, members as in `EventKey`; each becomes one JSON array, and the
            arrays are joined by newlines.
    """
    return digest_events(rows).hexdigest()


def digest_events(rows: Iterable[EventKey | tuple[str, int, int, str, str | None, str]]) -> EventsDigest:
    """Return the digest and the number of one session's events; only some of them are in memory at once."""
    digest = EventsDigest()
    remaining = iter(rows)
    while part := list(islice(remaining, _HASHED_AT_ONCE)):
        digest.update(part)
    return digest


def compute_frames_digest(rows: Iterable[tuple[str, str]]) -> str:
    """Return the hex SHA-256 of one session's selected frames.

    Args:
        rows: `(frame_id, sha256)` in `(t_ms, frame_id)` order; each becomes `frame_id<TAB>sha256`, joined by
            newlines.
    """
    return hashlib.sha256(
        "\n".join([f"{frame_id}\t{sha256}" for frame_id, sha256 in rows]).encode()
    ).hexdigest()


def compute_samples_digest(rows: Iterable[tuple[str, str, Iterable[str]]]) -> str:
    """Return the hex SHA-256 of one session's samples: selected frames with the events bound to them.

    Args:
        rows: `(frame_id, sha256, event_ids)` in `(t_ms, frame_id)` order, each one's events in `(t_ms,
            event_id)` order; each becomes `frame_id<TAB>sha256<TAB>event_id,event_id`, joined by newlines.
    """
    lines = [f"{frame_id}\t{sha256}\t{','.join(event_ids)}" for frame_id, sha256, event_ids in rows]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def row_set_sha256(sessions: pl.DataFrame) -> str:
    """Return the hex SHA-256 of a whole row set.

    Its lines are `kind<TAB>session_id<TAB>n_rows<TAB>digest`, each ended by a newline, ordered by kind and
    session. A session without rows of a kind has no line for it, so that the figure can be computed from
    the files, where such a session does not appear.

    Args:
        sessions: columns of `SessionRows`, any order; a session may occur once for each kind.
    """
    line = pl.concat_str([*SessionRows._fields], separator="\t") + "\n"
    digest = hashlib.sha256()
    for part in sessions.filter(pl.col("n_rows") > 0).sort("kind", "session_id").iter_slices(_LINES_AT_ONCE):
        digest.update(part.select(line.str.join("")).item().encode())
    return digest.hexdigest()
