"""The class of every route: strict queries and strict JSON, before FastAPI looks at them. Contract §1."""

from collections.abc import Callable, Coroutine
from typing import Any

import anyio.to_thread
import orjson
from fastapi import Request, Response
from fastapi.routing import APIRoute
from starlette.requests import HTTPConnection

from api.body_checks import check_json_file
from api.body_workers import LARGE_BYTES, BodyWorkers, body_file
from api.idempotency import KeyedRequest, read_keyed_request
from api.query_rules import QueryRules, broken_parameters
from recorder import limits, strict_json
from recorder.errors import UnsupportedMediaType, ValidationFailed
from recorder.media_types import JSON, require_type
from recorder.models.wire import members_shown_once

_WITH_BODY = ("POST", "PUT", "PATCH")
# What takes longer to parse than other requests should wait for.
_LARGE_BYTES = 64 * 1024


class StrictRoute(APIRoute):
    """Refuses unknown or repeated query parameters and bodies that are not strict; keeps keyed answers."""

    #: Routes that keep the Idempotency-Key themselves.
    keeps_batch_keys = False

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """FastAPI's handler, behind the checks."""
        handle = super().get_route_handler()
        rules = QueryRules.of(self._query_parameters())
        has_body = self.body_field is not None

        async def checked(request: Request) -> Response:
            check_query(request, rules)
            if request.method not in _WITH_BODY or self.keeps_batch_keys:
                return await handle(request)
            refuse_encoding(request)
            body = await _read_json(request, has_body)
            if request.method != "POST":
                return await handle(request)
            request.state.keyed = keyed = self._keyed_request(request, body)
            response = await handle(request)
            if keyed is not None:
                # The transaction is still open: a dependency of function scope ends after this one returns.
                keyed.response = response
            return response

        return checked

    def _keyed_request(self, request: Request, body: Any) -> KeyedRequest | None:
        model = None if self.body_field is None else self.body_field.field_info.annotation
        return read_keyed_request(
            request,
            body,
            path=self.path_format,
            has_field="idempotency_key" in getattr(model, "model_fields", {}),
            secrets=members_shown_once(self.response_model),
        )

    def _query_parameters(self) -> list[Any]:
        found = list(self.dependant.query_params)
        waiting = list(self.dependant.dependencies)
        while waiting:
            dependant = waiting.pop()
            found.extend(dependant.query_params)
            waiting.extend(dependant.dependencies)
        return found


class BatchRoute(StrictRoute):
    """Routes that read their body themselves and keep batch ids: events and frames."""

    keeps_batch_keys = True


def check_query(request: HTTPConnection, rules: QueryRules) -> None:
    """Refuse broken encoding, unknown and repeated query parameters, and numbers in another form than digits.

    Raises:
        ValidationFailed: if there is one.
    """
    query: bytes = request.scope["query_string"]
    problems = broken_parameters(query) or rules.problems(request.query_params.multi_items())
    if problems:
        raise ValidationFailed(problems)


def refuse_encoding(request: Request) -> None:
    """Refuse a compressed body.

    Raises:
        UnsupportedMediaType: if it is one.
    """
    if request.headers.get("content-encoding", "identity") != "identity":
        raise UnsupportedMediaType("the body as it is, not compressed")


async def _read_json(request: Request, has_body: bool) -> dict[str, Any] | None:
    """Parse the body strictly and leave the value where FastAPI takes it from; None where it takes none."""
    body = await request.body()
    if not has_body:
        if body.strip() not in (b"", b"{}"):
            text = "This address takes no body, or {}."
            raise ValidationFailed.of("", "unexpected_body", message=text)
        return None
    require_type(request.headers.get("content-type"), JSON, needed="the body as application/json")
    if len(body) > _LARGE_BYTES:
        if body.count(b",") > limits.BODY_COMMAS:
            text = f"A body holds at most {limits.BODY_COMMAS} values here; send fewer at once."
            raise ValidationFailed.of("", "too_large", message=text)
        value = await _parse_large(request, body)
    else:
        value = strict_json.parse(body)
    if not isinstance(value, dict):
        raise ValidationFailed.of("", "invalid_value", message="The body is a JSON object.")
    request._json = value
    return value


async def _parse_large(request: Request, body: bytes) -> Any:
    """Parse a body that takes longer than other requests should wait for."""
    caller = request.state.caller
    if len(body) <= LARGE_BYTES or caller is None:
        return await anyio.to_thread.run_sync(strict_json.parse, body)
    workers: BodyWorkers = request.app.state.body_workers
    with body_file() as file:
        await anyio.to_thread.run_sync(file.write, body)
        await workers.check(caller.workspace_id, check_json_file, file)
    # What the strict reader takes reads the same here, in a tenth of the time.
    return orjson.loads(body)
