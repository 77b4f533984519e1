"""Answers kept under an Idempotency-Key: a request that is sent twice is carried out once. Contract §1.

The key is claimed by the first statement of the request's transaction and its answer is stored by the last:
both are there, with what the request made, or neither is.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Self

from sqlalchemy import Connection, delete, event, select, text, tuple_
from sqlmodel import Session as DbSession
from sqlmodel import SQLModel

from recorder import clock, limits
from recorder.access.keys import Caller
from recorder.digest import canonical_json, keyed_digest, sha256_of
from recorder.errors import IdempotencyInProgress, IdempotencyKeyReused
from recorder.models.operations import IdempotencyRow
from recorder.storage.upsert import insert_or_update

_ANSWERS = SQLModel.metadata.tables[str(IdempotencyRow.__tablename__)]
_IDENTITY = tuple(_ANSWERS.primary_key.columns)
#: Expired answers that each new one takes along: fewer than these would let them pile up.
_PURGED_BY_EACH = 10


@dataclass(frozen=True, slots=True)
class RequestKey:
    """What tells a repeated request from another one, and whether its body is the same."""

    workspace_id: str
    mode: str
    method: str
    #: The address as the documentation writes it, with `{session_id}`.
    path: str
    #: Keyed digest of the concrete path and the Idempotency-Key.
    key: str
    body_digest: bytes

    @classmethod
    def of(
        cls, caller: Caller, key: str, body: Any, *, method: str, path: str, concrete_path: str, secret: bytes
    ) -> Self:
        """The key of a request; bodies are the same if their JSON values are."""
        at_address = canonical_json([concrete_path, key])
        return cls(
            caller.workspace_id,
            caller.mode,
            method,
            path,
            keyed_digest(secret, "idempotency-key", at_address).hex(),
            keyed_digest(secret, "idempotency-body", canonical_json(body)),
        )

    @property
    def identity(self) -> tuple[str, str, str, str, str]:
        """The primary key of its row."""
        return self.workspace_id, self.mode, self.method, self.path, self.key

    @property
    def lock_number(self) -> int:
        """The number under which PostgreSQL locks it."""
        return int.from_bytes(bytes.fromhex(sha256_of(self.identity))[:8], signed=True)


def is_idempotency_key(text: str) -> bool:
    """Whether a text may be a key: 1 to 255 visible ASCII characters."""
    visible = all("!" <= letter <= "~" for letter in text)
    return 1 <= len(text) <= limits.BATCH_KEY_CHARACTERS and visible


class AnswerKept(Exception):
    """The request was answered before; not an error, but the end of what it would do."""

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__("answered before")
        self.status = status
        self.body = body


class RunningKeys:
    """The keys whose first request still runs in this process."""

    def __init__(self) -> None:
        self._running: set[tuple[str, ...]] = set()
        self._lock = threading.Lock()

    @contextmanager
    def only(self, key: RequestKey) -> Iterator[None]:
        """Hold a key while its request runs.

        Raises:
            IdempotencyInProgress: if another request holds it.
        """
        with self._lock:
            if key.identity in self._running:
                raise IdempotencyInProgress
            self._running.add(key.identity)
        try:
            yield
        finally:
            with self._lock:
                self._running.discard(key.identity)


def claim_at_first_statement(db: DbSession, key: RequestKey) -> None:
    """Let the transaction's first statement find out whether the request may be carried out.

    What an operation refuses before it asks the database is validation, and that comes first. Then one of
    these is raised out of the operation:

    Raises:
        AnswerKept: if it was carried out before.
        IdempotencyKeyReused: if the key came with another body then.
        IdempotencyInProgress: if another process carries it out right now.
    """

    def claim(_: DbSession, __: Any, connection: Connection) -> None:
        _claim(connection, key)

    event.listen(db, "after_begin", claim, once=True)


def keep_answer(db: DbSession, key: RequestKey, *, status: int, body: bytes, session_id: str | None) -> None:
    """Store what a request was answered, for the repetitions of the next 24 hours.

    Args:
        body: without secrets.
        session_id: the session that it shows.
    """
    now = clock.now()
    answer = {
        "body_digest": key.body_digest,
        "status": status,
        "answer": body,
        "resource_id": session_id,
        "created_at": now,
    }
    identity = dict(zip((column.key for column in _IDENTITY), key.identity, strict=True))
    is_expired = _ANSWERS.c.created_at <= _oldest(now)
    insert_or_update(db, IdempotencyRow, {**identity, **answer}, update=answer, where=is_expired)
    purge_expired(db, limit=_PURGED_BY_EACH)


def purge_expired(db: DbSession, *, limit: int) -> int:
    """Forget answers older than 24 hours; returns how many."""
    expired = select(*_IDENTITY).where(_ANSWERS.c.created_at <= _oldest(clock.now()))
    # Rows that another transaction purges are left to it: nobody waits for anybody.
    expired = expired.limit(limit).with_for_update(skip_locked=True)
    gone = db.connection().execute(delete(_ANSWERS).where(tuple_(*_IDENTITY).in_(expired)))
    return gone.rowcount


def _claim(connection: Connection, key: RequestKey) -> None:
    if connection.dialect.name == "postgresql":  # SQLite's write lock does the same.
        lock = text("SELECT pg_try_advisory_xact_lock(:number)")
        if not connection.scalar(lock, {"number": key.lock_number}):
            raise IdempotencyInProgress
    columns = select(_ANSWERS.c.body_digest, _ANSWERS.c.status, _ANSWERS.c.answer)
    found = connection.execute(
        columns.where(tuple_(*_IDENTITY) == key.identity, _ANSWERS.c.created_at > _oldest(clock.now()))
    ).one_or_none()
    if found is None:
        return
    if bytes(found.body_digest) != key.body_digest:
        raise IdempotencyKeyReused
    raise AnswerKept(found.status, bytes(found.answer))


def _oldest(now: datetime) -> datetime:
    return now - timedelta(hours=limits.IDEMPOTENCY_HOURS)
