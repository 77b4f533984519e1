"""The Idempotency-Key of a POST: read, held while it runs, its answer kept or given again. Contract §1."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import orjson
from fastapi import FastAPI, Request, Response
from sqlmodel import Session as DbSession

from api.errors import problem, problem_responses
from recorder import limits
from recorder.access.idempotency import (
    AnswerKept,
    RequestKey,
    RunningKeys,
    claim_at_first_statement,
    is_idempotency_key,
    keep_answer,
)
from recorder.errors import Conflict, IdempotencyInProgress, NotFound, ValidationFailed
from recorder.ids import is_id
from recorder.storage.database import Database

_HEADER = "Idempotency-Key"
_FIELD = "idempotency_key"
_REPLAYED = "Idempotent-Replayed"
_PARAMETER = {
    "name": _HEADER,
    "in": "header",
    "required": False,
    "schema": {"type": "string", "pattern": f"^[!-~]{{1,{limits.BATCH_KEY_CHARACTERS}}}$"},
    "description": "A request sent again with the same key and body is carried out once.",
}
_REPLAYED_HEADER = {
    "description": "`true` where the answer is that of an earlier request with this key.",
    "schema": {"type": "string", "const": "true"},
}


@dataclass
class KeyedRequest:
    """A request with an Idempotency-Key, on its way through its route."""

    key: RequestKey
    running: RunningKeys
    request_id: str
    #: What the address names as its session.
    session_id: str | None
    #: Members of the answer that are shown once.
    secrets: frozenset[str] = frozenset()
    #: Set once it is built, while the transaction is still open.
    response: Response | None = None

    @contextmanager
    def transaction(self, database: Database) -> Iterator[DbSession]:
        """The request's transaction, which also takes the key and keeps the answer.

        Raises:
            IdempotencyInProgress: if the first request with this key still runs.
        """
        with self.running.only(self.key):
            try:
                with database.transaction(write=True) as db:
                    claim_at_first_statement(db, self.key)
                    yield db
                    if self.response is not None:
                        self._keep(db, self.response)
            except IdempotencyInProgress:
                raise
            except (NotFound, Conflict) as error:
                # What it began is rolled back. Another process may have answered since: then that stands.
                with database.transaction(write=True) as db:
                    claim_at_first_statement(db, self.key)
                    self._keep(db, problem(error, self.request_id))
                raise

    def look(self, db: DbSession) -> None:
        """Look for a kept answer before the request's own transaction; the first statement finds it.

        Raises:
            AnswerKept, IdempotencyKeyReused, IdempotencyInProgress: out of that statement.
        """
        claim_at_first_statement(db, self.key)

    def _keep(self, db: DbSession, response: Response) -> None:
        answer = orjson.loads(response.body) if response.body else None
        keep_answer(
            db,
            self.key,
            status=response.status_code,
            body=_without(self.secrets, answer, bytes(response.body)),
            session_id=next(filter(None, map(_session_of, self._told_sessions(answer))), None),
        )

    def _told_sessions(self, answer: Any) -> Iterator[Any]:
        """What may name the session that an answer tells of: erasure finds the kept copy by it."""
        yield self.session_id
        yield _member(answer, "id")
        body = _member(_member(answer, "request"), "body")  # of a delivery: the whole event
        if isinstance(body, str):
            yield _member(_member(_member(orjson.loads(body), "data"), "session"), "id")


def read_keyed_request(
    request: Request, body: Any, *, path: str, has_field: bool, secrets: frozenset[str]
) -> KeyedRequest | None:
    """The request with the key that its header or its body names; None where neither does.

    Args:
        body: its JSON value; None and {} are the same.
        path: the route's, with names in the place of ids.
        has_field: whether the body may name the key too.
        secrets: members of the answer that are shown once.

    Raises:
        ValidationFailed: if the key is malformed, or header and body differ.
    """
    fields = dict(body or {})
    # Another type is refused with the other members of the body.
    named = fields.pop(_FIELD, None) if has_field else None
    text = _read_key(request, named if isinstance(named, str) else None)
    if text is None:
        return None
    state = request.app.state
    key = RequestKey.of(
        request.state.caller,
        text,
        fields,
        method=request.method,
        path=path,
        concrete_path=request.scope["path"],
        secret=state.runtime.settings.secret,
    )
    session_id = request.path_params.get("session_id")
    return KeyedRequest(key, state.running_keys, request.state.request_id, session_id, secrets)


def install(app: FastAPI) -> None:
    """Let the application give kept answers again."""
    app.state.running_keys = RunningKeys()

    @app.exception_handler(AnswerKept)
    async def _kept(_: Request, kept: AnswerKept) -> Response:
        media_type = "application/json" if kept.status < 400 else "application/problem+json"
        headers = {_REPLAYED: "true"}
        return Response(kept.body, kept.status, headers, media_type if kept.body else None)


def describe(document: dict[str, Any]) -> None:
    """Tell in OpenAPI that every POST takes a key, and what that may be answered."""
    for methods in document["paths"].values():
        operation = methods.get("post")
        if operation is None:
            continue
        parameters = operation.setdefault("parameters", [])
        if all(parameter["name"] != _HEADER for parameter in parameters):
            parameters.append(_PARAMETER)
        for status, responses in problem_responses(409, 422).items():
            operation["responses"].setdefault(str(status), responses)
        for status, response in operation["responses"].items():
            if status.startswith("2"):
                response.setdefault("headers", {})[_REPLAYED] = _REPLAYED_HEADER


def _read_key(request: Request, named: str | None) -> str | None:
    sent = request.headers.getlist(_HEADER)
    for key, pointer, where in [(key, _HEADER, "header") for key in sent] + [(named, f"/{_FIELD}", "body")]:
        if key is not None and not is_idempotency_key(key):
            message = f"An idempotency key takes 1 to {limits.BATCH_KEY_CHARACTERS} visible ASCII characters."
            raise ValidationFailed.of(pointer, "invalid_string", message=message, where=where)
    keys = {*sent, named} - {None}
    if len(keys) > 1:
        message = f"{_HEADER} and {_FIELD} differ; send one of them."
        raise ValidationFailed.of(f"/{_FIELD}", "invalid_value", message=message)
    return keys.pop() if keys else None


def _without(secrets: frozenset[str], answer: Any, body: bytes) -> bytes:
    if not secrets or not isinstance(answer, dict):
        return body
    return orjson.dumps({name: None if name in secrets else value for name, value in answer.items()})


def _member(answer: Any, name: str) -> Any:
    return answer.get(name) if isinstance(answer, dict) else None


def _session_of(text: Any) -> str | None:
    """The text if it is the id of a session: a path may hold anything."""
    return text if isinstance(text, str) and is_id(text, "ses") else None
