"""The class of every route: strict queries and strict JSON, before FastAPI looks at them. Contract §1."""

from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute

from recorder import strict_json
from recorder.errors import NotSupportedYet, Problem, UnsupportedMediaType, ValidationFailed

_JSON = "application/json"


class StrictRoute(APIRoute):
    """Refuses unknown and repeated query parameters, bodies that are not strict JSON, keys it cannot keep."""

    #: Routes that keep the Idempotency-Key themselves.
    keeps_batch_keys = False

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """FastAPI's handler, behind the checks."""
        handle = super().get_route_handler()
        allowed = {parameter.alias for parameter in self._query_parameters()}
        has_body = self.body_field is not None

        async def checked(request: Request) -> Response:
            check_query(request, allowed)
            if request.method == "POST":
                refuse_encoding(request)
                if not self.keeps_batch_keys:
                    _refuse_idempotency_key(request)
                    await _read_json(request, has_body)
            return await handle(request)

        return checked

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


def check_query(request: Request, allowed: set[str]) -> None:
    """Refuse unknown and repeated query parameters.

    Raises:
        ValidationFailed: if there is one.
    """
    problems = []
    for name, count in Counter(name for name, _ in request.query_params.multi_items()).items():
        if name not in allowed:
            # The name is the caller's text, so the message does not repeat it.
            text = "An unknown query parameter was sent; see /docs for those of this address."
            problems.append(Problem("query", "", "unknown_parameter", text))
        elif count > 1 and name != "workflow":
            problems.append(Problem("query", name, "repeated_parameter", f"{name} may be sent once."))
    if problems:
        raise ValidationFailed(problems)


def _refuse_idempotency_key(request: Request) -> None:
    if "idempotency-key" in request.headers:
        raise NotSupportedYet("Idempotency-Key", "The Idempotency-Key header on this address", where="header")


def refuse_encoding(request: Request) -> None:
    """Refuse a compressed body.

    Raises:
        UnsupportedMediaType: if it is one.
    """
    if request.headers.get("content-encoding", "identity") != "identity":
        raise UnsupportedMediaType("the body as it is, not compressed")


async def _read_json(request: Request, has_body: bool) -> None:
    """Parse the body strictly and leave the value where FastAPI takes it from."""
    body = await request.body()
    if not has_body:
        if body.strip() not in (b"", b"{}"):
            text = "This address takes no body, or {}."
            raise ValidationFailed.of("", "unexpected_body", text)
        return
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type != _JSON:
        raise UnsupportedMediaType("the body as application/json")
    value = strict_json.parse(body)
    if not isinstance(value, dict):
        raise ValidationFailed.of("", "invalid_value", "The body is a JSON object.")
    request._json = value
