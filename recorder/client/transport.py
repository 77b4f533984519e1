"""Requests of the client: connections, retries and pages. Contract §1 (idempotency)."""

import secrets
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import httpx
import orjson

from recorder import ids, limits
from recorder.client.encoding import encode_json
from recorder.client.errors import (
    TEMPORARY_STATUSES,
    UNKNOWN_CODE,
    ApiError,
    ClientError,
    Unreachable,
)
from recorder.client.service_address import (
    check_key,
    is_loopback_service_host,
    parse_service_address,
    read_address_and_key,
)
from recorder.retries import retry

_WAIT_FIRST_S = 0.2
_WAIT_MAX_S = 10.0
_JITTER_S = 0.5
# Below the 5 s after which the server closes an idle connection: a request never meets that closing.
_KEEP_ALIVE_S = 2.0
_CONNECT_TIMEOUT_S = 5.0
# A key of the smallest tier has so many requests under way; streams have a limit of their own.
_MAX_REQUESTS = 32
# A service that never answered is most often not running, or elsewhere: the caller learns it within 5 s.
_FIRST_ANSWER_S = 3.0
#: Nothing was stored, so every request may be repeated.
_NOTHING_STORED = (429, 503)
#: Answers of a gateway: the service may have carried out the request.
_GATEWAY = (502, 504)

Params = Mapping[str, str | int | float | list[str] | None]


@dataclass(frozen=True)
class TransportCall:
    """Request, byte for byte the same on every attempt."""

    method: str
    path: str
    content: bytes | None = None
    content_type: str = "application/json"
    #: Its Idempotency-Key: the service carries the request out once, however often it is sent.
    key: str | None = None
    params: Params | None = None
    #: Media type of the answer, where it is not the usual one.
    accept: str | None = None
    #: Whether it may be sent twice (reads, state changes, requests with a key).
    repeatable: bool = False


class Transport:
    """HTTP connections that send calls with the key, and repeat calls that may be repeated.

    A call that is not repeatable is sent again only if nothing can have been stored: the connection was
    refused, or the answer was 429 or 503.
    """

    def __init__(
        self,
        base_url: str,
        key: str,
        *,
        timeout_s: float,
        patience_s: float,
        first_answer_s: float = _FIRST_ANSWER_S,
    ) -> None:
        """Open no connection before the first request.

        Args:
            base_url: address of the service.
            key: API key.
            timeout_s: seconds for each attempt.
            patience_s: seconds for all attempts of a request.
            first_answer_s: seconds for all attempts of a request while the service never answered.
        """
        url = parse_service_address(base_url)
        check_key(key)
        self.base_url = str(url).rstrip("/")
        #: Pause before a broken stream is opened again; it doubles while nothing arrives.
        self.reconnect_pause_s = 0.2
        self._patience_s = patience_s
        self._first_answer_s = first_answer_s
        self._has_answered = False
        self._free_requests = threading.BoundedSemaphore(_MAX_REQUESTS)
        self._http = httpx.Client(
            base_url=self.base_url,
            headers={"Authorization": f"Bearer {key}", "Accept": "application/json"},
            timeout=httpx.Timeout(timeout_s, connect=_CONNECT_TIMEOUT_S),
            limits=httpx.Limits(keepalive_expiry=_KEEP_ALIVE_S),
            # A proxy of the environment cannot reach this machine's own loopback.
            trust_env=not is_loopback_service_host(url.host),
        )

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def send(self, call: TransportCall) -> httpx.Response:
        """Return the answer; a call that may be repeated is sent again until the patience ends.

        Raises:
            ApiError: if the service refuses, or still asks to wait when the patience ends.
            Unreachable: if there is no answer.
        """
        began = time.monotonic()
        for attempt in retry(
            lambda error: self._decide_retry(error, call, waited_s=time.monotonic() - began),
            attempts=None,
            first_s=_WAIT_FIRST_S,
            longest_s=_WAIT_MAX_S,
            jitter_s=_JITTER_S,
            timeout_s=self._patience_s,
        ):
            with attempt:
                return self._send_once(call)
        raise AssertionError("the last attempt returns or raises")

    def json(self, call: TransportCall) -> Any:
        """Return the JSON of the answer; None if it has no body.

        Raises:
            Unreachable: if another server than the service answers at this address.
        """
        response = self.send(call)
        if not response.content:
            return None
        try:
            return orjson.loads(response.content)
        except orjson.JSONDecodeError as error:
            what = f"answers {call.path} without JSON"
            raise Unreachable(self.base_url, what, may_be_done=False) from error

    @contextmanager
    def streamed(
        self, path: str, params: dict[str, str], headers: dict[str, str], *, silence_s: float
    ) -> Iterator[httpx.Response]:
        """Send a GET request once, and read its answer while it arrives.

        Args:
            path: path of the request.
            params: query parameters.
            headers: headers besides the key.
            silence_s: seconds after which a silent connection counts as broken.

        Raises:
            ApiError: if the service refuses.
            Unreachable: if there is no answer, or if the connection breaks inside the block.
        """
        timeout = httpx.Timeout(silence_s, connect=_CONNECT_TIMEOUT_S)
        with (
            self._translate_errors(),
            self._http.stream("GET", path, params=params, headers=headers, timeout=timeout) as response,
        ):
            self._has_answered = True
            if not response.is_success:
                response.read()
                raise make_response_error(response)
            yield response

    def _send_once(self, call: TransportCall) -> httpx.Response:
        headers = {"Content-Type": call.content_type} if call.content is not None else {}
        if call.key is not None:
            headers["Idempotency-Key"] = call.key
        if call.accept is not None:
            headers["Accept"] = call.accept
        params = {name: value for name, value in (call.params or {}).items() if value is not None}
        with self._free_requests, self._translate_errors():
            response = self._http.request(
                call.method, call.path, content=call.content, headers=headers, params=params
            )
        self._has_answered = True
        if response.is_success:
            return response
        raise make_response_error(response)

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        """Raise `Unreachable` for the errors of a connection."""
        try:
            yield
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as error:
            what, advice = _describe_no_connection(error)
            raise Unreachable(self.base_url, what, may_be_done=False, advice=advice) from error
        except httpx.TransportError as error:
            what = f"the connection broke ({type(error).__name__})"
            raise Unreachable(self.base_url, what, may_be_done=True) from error

    def _decide_retry(self, error: Exception, call: TransportCall, *, waited_s: float) -> bool | float:
        """Return whether to repeat the call, or the seconds to wait before, with jitter for many clients."""
        if not self._has_answered and waited_s > self._first_answer_s:
            return False
        if not isinstance(error, ClientError) or not _may_retry_request(error, call):
            return False
        wait_s = error.retry_after_s if isinstance(error, ApiError) else None
        if wait_s is None:
            return True
        return wait_s + secrets.randbelow(1000) / 1000 * _JITTER_S if wait_s <= self._patience_s else False


def _describe_no_connection(error: Exception) -> tuple[str, str | None]:
    """Return why there is no connection, and what to do if TLS failed although a server answers."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            what = f"its certificate was refused ({cause.verify_message})"
            return what, "Use the name in the certificate, or let this machine accept its issuer."
        if isinstance(cause, ssl.SSLError):
            return "TLS failed", "If the service has no TLS, its address begins with http://."
        cause = cause.__cause__ or cause.__context__
    return "no connection", None


def make_response_error(response: httpx.Response) -> ApiError:
    """Return the error of a problem document, or of any answer with an error status."""
    try:
        body = orjson.loads(response.content)
    except orjson.JSONDecodeError:
        body = None
    problem = body if isinstance(body, dict) else {}
    errors = problem.get("errors")
    return ApiError(
        response.status_code,
        str(problem.get("code", UNKNOWN_CODE)),
        str(problem.get("detail") or _describe_foreign_answer(response)),
        request_id=problem.get("request_id") or response.headers.get("X-Request-Id"),
        errors=[item for item in errors if isinstance(item, dict)] if isinstance(errors, list) else None,
        retry_after_s=_parse_retry_after(response.headers.get("Retry-After")),
    )


def _describe_foreign_answer(response: httpx.Response) -> str:
    """Return the detail of an answer that the service did not write, such as a proxy's."""
    reason = f"{response.reason_phrase or 'No detail was given'}."
    if response.status_code in (*TEMPORARY_STATUSES, 413):  # proxies of the service send these too
        return reason
    return f"{reason} Another program than the service answered; check the address."


def _may_retry_request(error: ClientError, call: TransportCall) -> bool:
    if isinstance(error, Unreachable):
        return call.repeatable or not error.may_be_done
    if not isinstance(error, ApiError) or error.code == "quota_exceeded":
        return False
    if error.status in _NOTHING_STORED:
        return True
    return call.repeatable and (error.status in _GATEWAY or error.code == "idempotency_in_progress")


def _parse_retry_after(header: str | None) -> float | None:
    """Return `Retry-After` in seconds; the service does not use its date form."""
    return float(header) if header is not None and header.isdecimal() else None


Json = dict[str, Any]

_TIMEOUT_S = 60.0
_PATIENCE_S = 60.0
_POLL_FIRST_S = 0.2
POLL_MAX_S = 2.0


class Requests:
    """Base of the client: requests by kind, and pages."""

    def __init__(
        self,
        base_url: str | None = None,
        key: str | None = None,
        *,
        timeout_s: float = _TIMEOUT_S,
        patience_s: float = _PATIENCE_S,
    ) -> None:
        """Connect to a service with an API key.

        Args:
            base_url: its address; by default `RECORDER_URL`, else http://127.0.0.1:8700.
            key: an API key, by default `RECORDER_KEY`; it is sent with every request and never shown.
            timeout_s: seconds to wait for one answer.
            patience_s: seconds over which a request is repeated before its error is raised.
        """
        self._patience_s = patience_s
        base_url, key = read_address_and_key(base_url, key)
        self._transport = Transport(base_url, key, timeout_s=timeout_s, patience_s=patience_s)

    def __repr__(self) -> str:
        return f"Client({self._transport.base_url!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._transport.close()

    def _get(self, path: str, params: Params | None = None) -> Json:
        answer: Json = self._transport.json(TransportCall("GET", path, params=params, repeatable=True))
        return answer

    def _create(self, path: str, body: Json) -> Json:
        """Send a POST that creates an object once, under an Idempotency-Key, however often it is repeated."""
        key = f"cre_{ids.encode_ulid(ids.reserve_ulid_values(1))}"
        answer: Json = self._transport.json(
            TransportCall("POST", path, content=encode_json(body), key=key, repeatable=True)
        )
        return answer

    def _create_without_retry(self, path: str, body: Json) -> Json:
        """Send a POST whose answer shows a secret; it is not repeated, since that could create another."""
        answer: Json = self._transport.json(TransportCall("POST", path, content=encode_json(body)))
        return answer

    def _post(self, path: str, body: Json | None = None) -> Json:
        """Send a POST that changes a state; it may be repeated."""
        content = None if body is None else encode_json(body)
        answer: Json = self._transport.json(TransportCall("POST", path, content=content, repeatable=True))
        return answer

    def _patch(self, path: str, settings: Json) -> Json:
        """Send a PATCH; it may be repeated."""
        answer: Json = self._transport.json(
            TransportCall("PATCH", path, content=encode_json(settings), repeatable=True)
        )
        return answer

    def _iterate_pages(self, path: str, params: Params | None = None) -> Iterator[Json]:
        """Return an iterator over all items of a list.

        Raises:
            TypeError: if the caller names a limit, which would be that of a page.
        """
        if params is not None and "limit" in params:
            raise TypeError(
                "This method yields everything and takes no limit; use itertools.islice to end it."
            )
        return self._read_pages(path, {**(params or {}), "limit": limits.LIST_MAX})

    def _read_pages(self, path: str, query: dict[str, Any]) -> Iterator[Json]:
        while True:
            page = self._get(path, query)
            yield from page["data"]
            if not page["has_more"]:
                return
            query["cursor"] = page["next_cursor"]


def poll_request_until_status(
    read: Callable[[], Json],
    wanted: tuple[str, ...],
    deadline: float,
    *,
    longest_pause_s: float = POLL_MAX_S,
) -> Json | None:
    """Call `read` until its status is a wanted one; return None when the deadline passes first."""
    wait_s = _POLL_FIRST_S
    while True:
        answer = read()
        if answer["status"] in wanted:
            return answer
        if time.monotonic() + wait_s > deadline:
            return None
        time.sleep(wait_s)
        wait_s = min(wait_s * 1.5, longest_pause_s)
