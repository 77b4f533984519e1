"""Idempotency keys: a request that is sent twice is carried out once, and answered alike. Contract §1.

The first statement of the request's transaction claims the key and the last one stores the answer: key,
answer and the changes of the request are committed together or not at all.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Self

import orjson
from sqlalchemy import Connection, delete, event, func, select, text, tuple_
from sqlmodel import Session as DbSession
from sqlmodel import SQLModel, col

from recorder import clock, limits
from recorder.access.keys import Caller
from recorder.errors import IdempotencyInProgress, IdempotencyKeyReused
from recorder.hashing import canonical_json, compute_keyed_digest, compute_sha256
from recorder.models.operations import IdempotencyRow
from recorder.models.session import SessionRow
from recorder.storage.upsert import insert_or_update
from recorder.tenant import Tenant
from recorder.webhooks.deleted_subjects import make_deleted_resource_condition

_ANSWERS = SQLModel.metadata.tables[str(IdempotencyRow.__tablename__)]
_IDENTITY = tuple(_ANSWERS.primary_key.columns)
#: Expired answers that are deleted with each new one; with fewer, expired answers would accumulate.
_PURGED_BY_EACH = 10
#: The request whose stored answers show several sessions, so that `resource_id` names none of them.
_BATCH_STOP = ("POST", "/v1/sessions:batch_stop")
#: Such answers that one transaction deletes.
_BATCH_STOPS_AT_ONCE = 500


@dataclass(frozen=True, slots=True)
class IdempotencyKey:
    """Identity of a request: tenant, method, path and key, with a digest of its body."""

    tenant: Tenant
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
        """Return the key of a request; bodies are the same if their JSON values are."""
        at_address = canonical_json([concrete_path, key])
        return cls(
            caller.tenant,
            method,
            path,
            compute_keyed_digest(secret, "idempotency-key", at_address).hex(),
            compute_keyed_digest(secret, "idempotency-body", canonical_json(body)),
        )

    @property
    def identity(self) -> tuple[str, str, str, str, str]:
        """Primary key of the stored answer."""
        return self.tenant.workspace_id, self.tenant.mode, self.method, self.path, self.key

    @property
    def lock_number(self) -> int:
        """Number of the PostgreSQL advisory lock for this key."""
        return int.from_bytes(bytes.fromhex(compute_sha256(self.identity))[:8], signed=True)


def is_idempotency_key(text: str) -> bool:
    """Return whether a text may be a key: 1 to 255 visible ASCII characters."""
    visible = all("!" <= letter <= "~" for letter in text)
    return 1 <= len(text) <= limits.BATCH_KEY_CHARACTERS and visible


class AnswerKept(Exception):
    """Signal that the request was answered before: the stored answer is sent again."""

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__("answered before")
        self.status = status
        self.body = body


class RunningIdempotencyKeys:
    """Set of the keys whose first request still runs in this process."""

    def __init__(self) -> None:
        self._running: set[tuple[str, ...]] = set()
        self._lock = threading.Lock()

    @contextmanager
    def hold_key(self, key: IdempotencyKey) -> Iterator[None]:
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


def claim_idempotency_key_lazily(
    db: DbSession, key: IdempotencyKey, *, on_kept: Callable[[], None] | None = None
) -> None:
    """Claim the key when the transaction executes its first statement.

    A session event does it, not a call: a request that validation refuses must claim nothing, and only the
    first statement of the operation shows that its validation has ended. That statement raises the errors.

    Args:
        db: the transaction of the request.
        key: the key of the request.
        on_kept: called if the request was carried out before; None raises the kept answer.

    Raises:
        AnswerKept: if the request was carried out before.
        IdempotencyKeyReused: if the key came with another body then.
        IdempotencyInProgress: if another process carries the request out now.
    """

    def claim(_: DbSession, __: Any, connection: Connection) -> None:
        try:
            _claim_idempotency_key(connection, key)
        except AnswerKept:
            if on_kept is None:
                raise
            on_kept()

    event.listen(db, "after_begin", claim, once=True)


def store_keyed_answer(
    db: DbSession, key: IdempotencyKey, *, status: int, body: bytes, resource_id: str | None
) -> None:
    """Store the answer to a request, for repetitions within 24 hours.

    Args:
        db: the transaction of the request.
        key: the key of the request.
        status: HTTP status of the answer.
        body: body of the answer, without secrets.
        resource_id: session, replay, recovery or event that the body shows; its deletion deletes the answer.
    """
    now = clock.now()
    answer = {
        "body_digest": key.body_digest,
        "status": status,
        "answer": body,
        "resource_id": resource_id,
        "created_at": now,
    }
    identity = dict(zip((column.key for column in _IDENTITY), key.identity, strict=True))
    is_expired = _ANSWERS.c.created_at <= _compute_oldest_answer_time(now)
    insert_or_update(db, IdempotencyRow, {**identity, **answer}, update=answer, where=is_expired)
    delete_expired_keyed_answers(db, limit=_PURGED_BY_EACH)


def count_expired_keyed_answers(db: DbSession, workspace_id: str, *, at: datetime) -> tuple[int, int]:
    """Return number and bytes of a workspace's answers that are older than 24 hours at an instant."""
    expired = (
        _ANSWERS.c.workspace_id == workspace_id,
        _ANSWERS.c.created_at <= _compute_oldest_answer_time(at),
    )
    counts = select(func.count(), func.coalesce(func.sum(func.length(_ANSWERS.c.answer)), 0)).where(*expired)
    count, size_bytes = db.connection().execute(counts).one()
    return count, int(size_bytes)


def delete_expired_keyed_answers(
    db: DbSession, *, limit: int, at: datetime | None = None, workspace_id: str | None = None
) -> int:
    """Delete the stored answers of Idempotency-Keys after their 24 hours; return their number.

    Args:
        db: a write transaction.
        limit: most answers to delete.
        at: instant at which they are that old; None is now.
        workspace_id: workspace of the answers; None is any.
    """
    expired = select(*_IDENTITY).where(
        _ANSWERS.c.created_at <= _compute_oldest_answer_time(at or clock.now())
    )
    if workspace_id is not None:
        expired = expired.where(_ANSWERS.c.workspace_id == workspace_id)
    # Rows that another transaction deletes are skipped, so that no transaction waits for another.
    expired = expired.limit(limit).with_for_update(skip_locked=True)
    deleted = db.connection().execute(delete(_ANSWERS).where(tuple_(*_IDENTITY).in_(expired)))
    return deleted.rowcount


def delete_some_batch_stop_answers(db: DbSession, tenant: Tenant) -> bool:
    """Delete stored answers to batch stops of a tenant; return whether some may be left.

    Such an answer shows up to 500 sessions, so that no column names them. The transaction changes nothing
    else: it locks the answers in one order, and waits for none of the requests that hold one.

    Args:
        db: a write transaction.
        tenant: workspace and mode.
    """
    values = (tenant.workspace_id, tenant.mode, *_BATCH_STOP)
    conditions = (column == value for column, value in zip(_IDENTITY, values, strict=False))
    some = select(*_IDENTITY).where(*conditions).order_by(*_IDENTITY).limit(_BATCH_STOPS_AT_ONCE)
    statement = delete(_ANSWERS).where(tuple_(*_IDENTITY).in_(some.with_for_update()))
    return db.connection().execute(statement).rowcount >= _BATCH_STOPS_AT_ONCE


def _claim_idempotency_key(connection: Connection, key: IdempotencyKey) -> None:
    if connection.dialect.name == "postgresql":  # SQLite's write lock does the same.
        lock = text("SELECT pg_try_advisory_xact_lock(:number)")
        if not connection.scalar(lock, {"number": key.lock_number}):
            raise IdempotencyInProgress
    is_deleted = make_deleted_resource_condition(_ANSWERS.c.resource_id).label("is_deleted")
    columns = select(_ANSWERS.c.body_digest, _ANSWERS.c.status, _ANSWERS.c.answer, is_deleted)
    stored = connection.execute(
        columns.where(
            tuple_(*_IDENTITY) == key.identity,
            _ANSWERS.c.created_at > _compute_oldest_answer_time(clock.now()),
        )
    ).one_or_none()
    if stored is None:
        return
    if stored.is_deleted or _shows_deleted_sessions(connection, key, stored.answer):
        # The key is free, as after a purge. A transaction that only reads precedes one that claims it too.
        if connection.get_execution_options().get("recorder_write"):
            connection.execute(delete(_ANSWERS).where(tuple_(*_IDENTITY) == key.identity))
        return
    if bytes(stored.body_digest) != key.body_digest:
        raise IdempotencyKeyReused
    raise AnswerKept(stored.status, bytes(stored.answer))


def _shows_deleted_sessions(connection: Connection, key: IdempotencyKey, answer: bytes) -> bool:
    """Return whether the answer to a batch stop shows a session that was deleted later."""
    if (key.method, key.path) != _BATCH_STOP:
        return False
    ids = {item["id"] for item in orjson.loads(answer)["data"] if item["result"] != "error"}
    visible = select(func.count()).where(col(SessionRow.id).in_(ids), col(SessionRow.deleted_at).is_(None))
    return connection.scalar(visible) != len(ids)


def _compute_oldest_answer_time(now: datetime) -> datetime:
    return now - timedelta(hours=limits.IDEMPOTENCY_HOURS)
