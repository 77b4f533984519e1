"""Route classes that check query parameters and JSON bodies strictly, and keep keyed answers. Contract §1."""

import re
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from typing import Any, get_args, get_origin
from urllib.parse import unquote_to_bytes

import anyio.to_thread
import orjson
from fastapi import Request, Response
from fastapi.routing import APIRoute
from starlette.requests import HTTPConnection

from api.bodies.body_costs import is_costly_route_body
from api.bodies.worker_checks import check_json_body_file, make_too_many_values_error
from api.bodies.worker_pool import BodyWorkers, open_body_file_for_workers
from api.gate.idempotency import IdempotentRequest, read_idempotent_request
from recorder import limits, strict_json
from recorder.errors import Problem, UnsupportedMediaType, ValidationFailed
from recorder.media_types import JSON, require_media_type
from recorder.models.wire import secret_wire_members, shorten_wire_name

_BROKEN_ESCAPE = re.compile(rb"%(?![0-9A-Fa-f]{2})")

# Pydantic reads ` 5`, `+5`, `5.0`, `1_0` and digits of every script as numbers too.
_FORMS: dict[type, tuple[re.Pattern[str], str]] = {
    int: (re.compile(r"-?[0-9]{1,18}"), "takes a whole number of at most 18 digits."),
    float: (
        re.compile(r"-?[0-9]{1,18}(\.[0-9]{1,18})?([eE][+-]?[0-9]{1,2})?"),
        "takes a number such as 0.05.",
    ),
}


@dataclass(frozen=True)
class StrictQueryRules:
    """Query parameters of a route: the names, the repeatable ones, and the numbers."""

    names: frozenset[str] = frozenset()
    repeated: frozenset[str] = frozenset()
    numbers: dict[str, type] = field(default_factory=dict)

    @classmethod
    def of(cls, parameters: Iterable[Any]) -> "StrictQueryRules":
        """Return the rules that FastAPI's description of the parameters implies; lists are repeatable."""
        types = {parameter.alias: parameter.field_info.annotation for parameter in parameters}
        return cls(
            frozenset(types),
            frozenset(name for name, kind in types.items() if get_origin(kind) is list),
            {
                name: number
                for name, kind in types.items()
                if (number := _find_query_number_type(kind)) is not None
            },
        )

    def list_problems(self, sent: list[tuple[str, str]]) -> list[Problem]:
        """Return the problems of a query: unknown or repeated names, and numbers in another form."""
        problems = []
        for name, count in Counter(name for name, _ in sent).items():
            if name not in self.names:
                text = f"Unknown parameter. {self._describe_allowed_parameters()}"
                problems.append(Problem("query", shorten_wire_name(name), "unknown_parameter", text))
            elif count > 1 and name not in self.repeated:
                problems.append(Problem("query", name, "repeated_parameter", f"{name} may be sent once."))
        return [*problems, *self._find_wrong_numbers(sent)]

    def _describe_allowed_parameters(self) -> str:
        return f"Allowed here: {', '.join(sorted(self.names))}." if self.names else "This address takes none."

    def _find_wrong_numbers(self, sent: list[tuple[str, str]]) -> list[Problem]:
        problems = {}
        for name, value in sent:
            if name in self.numbers:
                form, text = _FORMS[self.numbers[name]]
                if not form.fullmatch(value):
                    problems[name] = Problem("query", name, "invalid_value", f"{name} {text}")
        return list(problems.values())


def find_broken_query_encoding(query: bytes) -> list[Problem]:
    """Return a problem for each parameter whose percent-encoding is broken or does not encode UTF-8."""
    if b"%" not in query and query.isascii():
        return []
    problems = []
    for parameter in query.split(b"&"):
        if not is_percent_encoded(parameter):
            name = parameter.partition(b"=")[0]
            shown = shorten_wire_name(unquote_to_bytes(name).decode()) if is_percent_encoded(name) else ""
            text = "Send UTF-8, and %XX for each byte that is not a visible ASCII character."
            problems.append(Problem("query", shown, "invalid_encoding", text))
    return problems


def is_percent_encoded(text: bytes) -> bool:
    """Return whether a part of a URL is ASCII with complete percent escapes, and decodes to UTF-8."""
    if not text.isascii() or _BROKEN_ESCAPE.search(text):
        return False
    try:
        unquote_to_bytes(text).decode()
    except UnicodeDecodeError:
        return False
    return True


#: For routes without query parameters.
NO_QUERY = StrictQueryRules()


def _find_query_number_type(kind: Any) -> type | None:
    """Return the number type of an annotation; for `int | None` it is `int`."""
    kinds = get_args(kind) or (kind,)
    return next((number for number in _FORMS if number in kinds), None)


_JSON_SPACES = b" \t\r\n"
_WITH_BODY = ("POST", "PUT", "PATCH")


class StrictRoute(APIRoute):
    """Route that refuses unknown or repeated query parameters and lax JSON, and keeps keyed answers."""

    #: Whether the route handles the Idempotency-Key itself.
    keeps_batch_keys = False

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return a handler that runs the checks, then FastAPI's handler."""
        handle = super().get_route_handler()
        rules = StrictQueryRules.of(self._list_query_parameters())
        model = self._get_body_model()
        shows_secret = bool(secret_wire_members(self.response_model))

        async def handle_checked(request: Request) -> Response:
            check_query_parameters(request, rules)
            if request.method not in _WITH_BODY or self.keeps_batch_keys:
                return await handle(request)
            refuse_compressed_body(request)
            body = await _read_route_json(request, model)
            if request.method != "POST":
                return await handle(request)
            request.state.keyed = keyed = self._read_keyed_request(request, body)
            response = await handle(request)
            if shows_secret:
                response.headers["Cache-Control"] = "no-store"
            if keyed is not None:
                # The transaction is still open: dependencies of function scope end after this function.
                keyed.response = response
            return response

        return handle_checked

    def _read_keyed_request(self, request: Request, body: Any) -> IdempotentRequest | None:
        model = self._get_body_model()
        return read_idempotent_request(
            request,
            body,
            path=self.path_format,
            has_field="idempotency_key" in getattr(model, "model_fields", {}),
            secrets=secret_wire_members(self.response_model),
        )

    def _get_body_model(self) -> Any:
        """Return the type of the body; None if the route takes none."""
        return None if self.body_field is None else self.body_field.field_info.annotation

    def _list_query_parameters(self) -> list[Any]:
        parameters, dependants = [], [self.dependant]
        while dependants:
            dependant = dependants.pop()
            parameters += dependant.query_params
            dependants += dependant.dependencies
        return parameters


class BatchRoute(StrictRoute):
    """Route of events or frames, which reads its body itself and keeps batch ids."""

    keeps_batch_keys = True


def check_query_parameters(request: HTTPConnection, rules: StrictQueryRules) -> None:
    """Check encoding, names and numbers of the query parameters.

    Raises:
        ValidationFailed: if a parameter is malformed, unknown or repeated, or a number is not in digits.
    """
    query: bytes = request.scope["query_string"]
    problems = find_broken_query_encoding(query) or rules.list_problems(request.query_params.multi_items())
    if problems:
        raise ValidationFailed(problems)


def check_tag_parameter(tag: str | None) -> None:
    """Check the query parameter `tag`.

    Raises:
        ValidationFailed: if no tag can have this name.
    """
    if tag is not None and not tag.isprintable():
        text = "tag takes printable characters."
        raise ValidationFailed.of("tag", "invalid_string", message=text, where="query")


def refuse_compressed_body(request: Request) -> None:
    """Check that a body is not compressed.

    Raises:
        UnsupportedMediaType: if it is.
    """
    encodings = ",".join(request.headers.getlist("content-encoding")).lower().split(",")
    if any(encoding.strip() not in ("", "identity") for encoding in encodings):
        raise UnsupportedMediaType("the body without compression")


async def _read_route_json(request: Request, model: Any) -> dict[str, Any] | None:
    """Parse the body strictly and set it as FastAPI's value; return None if the route takes no body.

    Args:
        request: the request.
        model: the type of the route's body; None if the route takes none.
    """
    body = await request.body()
    if model is None:
        content = body.translate(None, _JSON_SPACES)
        content_type = request.headers.get("content-type")
        if content and content_type is not None:
            require_media_type(content_type, JSON, needed="no body, or {} as application/json")
        if content not in (b"", b"{}"):
            text = "This address takes no body; send none, or {}."
            raise ValidationFailed.of("", "unexpected_body", message=text)
        return None
    require_media_type(request.headers.get("content-type"), JSON, needed="the body as application/json")
    if is_costly_route_body(body):
        if body.count(b",") > limits.BODY_COMMAS:
            raise make_too_many_values_error(f"{limits.BODY_COMMAS} values")
        value = await _parse_costly_json(request, body, model)
    else:
        value = strict_json.parse(body)
    if not isinstance(value, dict):
        raise ValidationFailed.of("", "invalid_value", message="The body must be a JSON object.")
    request._json = value
    return value


async def _parse_costly_json(request: Request, body: bytes, model: Any) -> Any:
    """Parse a body that was checked in a worker process.

    There a wrong body is refused too: to list 15,000 unknown members takes 20 ms.
    """
    caller = request.state.caller
    if caller is None:
        return await anyio.to_thread.run_sync(strict_json.parse, body)
    workers: BodyWorkers = request.app.state.body_workers
    async with open_body_file_for_workers() as file:
        await anyio.to_thread.run_sync(file.write, body)
        await workers.run(caller.workspace_id, check_json_body_file, file, model)
    # The body passed the strict reader; orjson returns the same value in a tenth of the time.
    return orjson.loads(body)
