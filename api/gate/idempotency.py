"""Requests with an idempotency key: header read, key claimed, stored answer sent. Contract §1."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import orjson
from fastapi import FastAPI, Request, Response
from sqlmodel import Session as DbSession

from api.errors import make_problem_response
from recorder import limits
from recorder.access.idempotency_keys import (
    AnswerKept,
    IdempotencyKey,
    RunningIdempotencyKeys,
    claim_idempotency_key_lazily,
    is_idempotency_key,
    store_keyed_answer,
)
from recorder.errors import Conflict, IdempotencyInProgress, NotFound, ValidationFailed
from recorder.ids import is_id
from recorder.storage.database import Database

_HEADER = "Idempotency-Key"
_FIELD = "idempotency_key"
_REPLAYED = "Idempotent-Replayed"
#: Prefixes of the ids of what purges remove: sessions, replays, recoveries, events for webhooks.
_PURGED = ("ses", "rpl", "rcv", "evt")


@dataclass
class IdempotentRequest:
    """A request with an Idempotency-Key while its route runs."""

    key: IdempotencyKey
    running: RunningIdempotencyKeys
    request_id: str
    #: The session that the path names.
    session_id: str | None
    #: Members of the answer that are shown once.
    secrets: frozenset[str] = frozenset()
    #: Set once it is built, while the transaction is still open.
    response: Response | None = None
    #: Whether a request that only reads was carried out before.
    is_repeated: bool = False

    @contextmanager
    def transaction(self, database: Database, *, only_reads: bool = False) -> Iterator[DbSession]:
        """Yield the request's transaction, which also claims the key and keeps the answer.

        A request that only reads holds no lock while it reads, and of its answer nothing is kept: it may be
        large, and shows sessions that are purged later. It is carried out again when it is repeated.

        Args:
            database: the deployment's database.
            only_reads: whether the request changes nothing.

        Raises:
            IdempotencyInProgress: if the first request with this key still runs.
        """
        with self.running.hold_key(self.key):
            if only_reads:
                with database.transaction(write=False) as db:
                    claim_idempotency_key_lazily(db, self.key, on_kept=self._mark_as_repeated)
                    yield db
                self._keep_key_of_read(database)
                return
            try:
                with database.transaction(write=True) as db:
                    claim_idempotency_key_lazily(db, self.key)
                    yield db
                    if self.response is not None:
                        self._store_answer(db, self.response)
            except IdempotencyInProgress:
                raise
            except (NotFound, Conflict) as error:
                # The transaction was rolled back. An answer that another process stored since then is kept.
                with database.transaction(write=True) as db:
                    claim_idempotency_key_lazily(db, self.key)
                    self._store_answer(db, make_problem_response(error, self.request_id))
                raise

    def claim_at_first_statement(self, db: DbSession) -> None:
        """Prepare a transaction whose first statement raises the stored answer if there is one.

        Raises:
            AnswerKept, IdempotencyKeyReused, IdempotencyInProgress: from that statement.
        """
        claim_idempotency_key_lazily(db, self.key)

    def _mark_as_repeated(self) -> None:
        """Note that the key was used before, so that the kept answer is sent."""
        self.is_repeated = True

    def _keep_key_of_read(self, database: Database) -> None:
        """Store the key of a request that only reads, or mark the answer to a repeated one."""
        if self.response is None:
            return
        if self.is_repeated:
            self.response.headers[_REPLAYED] = "true"
            return
        with database.transaction(write=True) as db:
            store_keyed_answer(db, self.key, status=self.response.status_code, body=b"", resource_id=None)

    def _store_answer(self, db: DbSession, response: Response) -> None:
        answer = orjson.loads(response.body) if response.body else None
        store_keyed_answer(
            db,
            self.key,
            status=response.status_code,
            body=_remove_idempotent_secrets(self.secrets, answer, bytes(response.body)),
            resource_id=next(filter(_is_purgeable_id_in_answer, self._list_resource_ids(answer)), None),
        )

    def _list_resource_ids(self, answer: Any) -> Iterator[Any]:
        """Yield possible ids of what the answer shows: a purge finds the kept copy by one of them."""
        yield self.session_id
        yield _get_idempotent_answer_member(answer, "id")  # of a session, replay or recovery
        yield _get_idempotent_answer_member(answer, "session_id")
        yield _get_idempotent_answer_member(answer, "event_id")  # of a delivery, which shows the whole event


def read_idempotent_request(
    request: Request, body: Any, *, path: str, has_field: bool, secrets: frozenset[str]
) -> IdempotentRequest | None:
    """Return the request with the key that its header or its body names; None if neither does.

    Args:
        request: the request.
        body: its JSON value; None and {} are the same.
        path: the route's template.
        has_field: whether the body may name the key too.
        secrets: members of the answer that are shown once.

    Raises:
        ValidationFailed: if the key is malformed, or header and body differ.
    """
    fields = dict(body or {})
    # Another type is refused with the other members of the body.
    named = fields.pop(_FIELD, None) if has_field else None
    text = _read_idempotency_key(request, named if isinstance(named, str) else None)
    if text is None:
        return None
    state = request.app.state
    key = IdempotencyKey.of(
        request.state.caller,
        text,
        fields,
        method=request.method,
        path=path,
        concrete_path=request.scope["path"],
        secret=state.runtime.settings.secret,
    )
    session_id = request.path_params.get("session_id")
    return IdempotentRequest(key, state.running_keys, request.state.request_id, session_id, secrets)


def install_idempotency_handler(app: FastAPI) -> None:
    """Register the handler that sends stored answers again."""
    app.state.running_keys = RunningIdempotencyKeys()

    @app.exception_handler(AnswerKept)
    async def send_kept_answer(_: Request, answer: AnswerKept) -> Response:
        media_type = "application/json" if answer.status < 400 else "application/problem+json"
        headers = {_REPLAYED: "true"}
        return Response(answer.body, answer.status, headers, media_type if answer.body else None)


def read_idempotency_header(request: Request) -> str | None:
    """Return the value of the header `Idempotency-Key`; None where none was sent.

    Raises:
        ValidationFailed: if the header is sent more than once, with different values.
    """
    sent = request.headers.getlist(_HEADER)
    if len(set(sent)) > 1:
        message = f"{_HEADER} is sent more than once, with different values; send one of them."
        raise ValidationFailed.of(_HEADER, "invalid_value", message=message, where="header")
    return sent[0] if sent else None


def _read_idempotency_key(request: Request, named: str | None) -> str | None:
    sent = read_idempotency_header(request)
    for key, pointer, where in [(sent, _HEADER, "header"), (named, f"/{_FIELD}", "body")]:
        if key is not None and not is_idempotency_key(key):
            message = f"An idempotency key takes 1 to {limits.BATCH_KEY_CHARACTERS} visible ASCII characters."
            raise ValidationFailed.of(pointer, "invalid_string", message=message, where=where)
    if sent is not None and named is not None and sent != named:
        message = f"{_HEADER} and {_FIELD} differ; send one of them."
        raise ValidationFailed.of(f"/{_FIELD}", "invalid_value", message=message)
    return sent if named is None else named


def _remove_idempotent_secrets(secrets: frozenset[str], answer: Any, body: bytes) -> bytes:
    if not secrets or not isinstance(answer, dict):
        return body
    return orjson.dumps({name: None if name in secrets else value for name, value in answer.items()})


def _get_idempotent_answer_member(answer: Any, name: str) -> Any:
    return answer.get(name) if isinstance(answer, dict) else None


def _is_purgeable_id_in_answer(text: Any) -> bool:
    """Return whether a text is the id of what purges remove: a path may hold any text."""
    return isinstance(text, str) and any(is_id(text, prefix) for prefix in _PURGED)
