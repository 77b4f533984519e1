"""Table of all endpoints with scope, rate limit and body size, and look-up by method and path. Contract §1.

The gate, `GET /v1/limits` and the tests read this table; a test compares it with the routes.
"""

import re
from dataclasses import dataclass
from functools import lru_cache

from recorder import limits
from recorder.access.keys import Level
from recorder.access.rate_tiers import Surface


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A method of a path."""

    method: str
    path: str
    scope: Level
    surface: Surface
    body_bytes: int = limits.BODY_BYTES
    #: Whether a signature in the query may replace a key.
    opens_by_signature: bool = False
    #: Whether the answer lasts as long as its client stays: counted as an open stream.
    is_stream: bool = False
    #: Whether a POST changes nothing: its body holds a query.
    only_reads: bool = False
    #: Whether it reads a page of a list, for which the database has a limited time.
    is_list: bool = False
    #: Surface that requests for the live sandbox draw on besides, once their body is valid.
    live_surface: Surface | None = None


_SESSION = "/v1/sessions/{session_id}"
_MEMORY = "/v1/memory"
_EXPORT = "/v1/exports/{export_id}"
_REPLAY = "/v1/replays/{replay_id}"
_RECOVERY = "/v1/recoveries/{recovery_id}"
_WEBHOOK = "/v1/webhooks/{webhook_id}"
_DELIVERY = f"{_WEBHOOK}/deliveries/{{delivery_id}}"

ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint("POST", "/v1/sessions", "write", "create_session"),
    Endpoint("GET", "/v1/sessions", "read", "reads", is_list=True),
    Endpoint("POST", "/v1/sessions:batch_stop", "write", "other"),
    Endpoint("GET", _SESSION, "read", "reads"),
    Endpoint("DELETE", _SESSION, "write", "other"),
    Endpoint("POST", f"{_SESSION}/start", "write", "other"),
    Endpoint("POST", f"{_SESSION}/stop", "write", "other"),
    Endpoint("POST", f"{_SESSION}/events", "write", "append_events", limits.EVENTS_REQUEST_BYTES),
    Endpoint("GET", f"{_SESSION}/events", "read", "reads", is_list=True),
    Endpoint("GET", f"{_SESSION}/events/stream", "read", "reads", is_stream=True),
    Endpoint("GET", f"{_SESSION}/events/ws", "read", "reads", is_stream=True),
    Endpoint("POST", f"{_SESSION}/frames", "write", "append_frames", limits.FRAMES_REQUEST_BYTES),
    Endpoint("GET", f"{_SESSION}/frames", "read", "reads", is_list=True),
    Endpoint("GET", f"{_SESSION}/frames/{{frame_id}}", "read", "reads"),
    Endpoint("GET", f"{_SESSION}/frames/{{frame_id}}/image", "read", "reads"),
    Endpoint("GET", f"{_SESSION}/frames/{{frame_id}}/dom", "read", "reads"),
    Endpoint("POST", f"{_SESSION}/tags", "write", "other"),
    Endpoint("GET", f"{_SESSION}/tags", "read", "reads", is_list=True),
    Endpoint("GET", f"{_MEMORY}/paths", "read", "other"),
    Endpoint("GET", f"{_MEMORY}/outliers", "read", "other"),
    Endpoint("POST", f"{_MEMORY}/similar", "read", "other", only_reads=True),
    Endpoint("GET", f"{_MEMORY}/recovery_points", "read", "other"),
    Endpoint("GET", f"{_MEMORY}/graph", "read", "other"),
    Endpoint("GET", f"{_MEMORY}/diff", "read", "other"),
    Endpoint("POST", "/v1/exports", "write", "exports"),
    Endpoint("GET", "/v1/exports", "read", "other", is_list=True),
    Endpoint("GET", _EXPORT, "read", "other"),
    Endpoint("POST", f"{_EXPORT}/cancel", "write", "other"),
    Endpoint("GET", f"{_EXPORT}/diff", "read", "other"),
    Endpoint("GET", f"{_EXPORT}/manifest", "read", "other", opens_by_signature=True),
    Endpoint("GET", f"{_EXPORT}/files/{{path:path}}", "read", "reads", opens_by_signature=True),
    Endpoint("POST", "/v1/replays", "write", "other", live_surface="live_replays"),
    Endpoint("GET", "/v1/replays", "read", "other", is_list=True),
    Endpoint("GET", _REPLAY, "read", "other"),
    Endpoint("GET", f"{_REPLAY}/steps", "read", "other", is_list=True),
    Endpoint("POST", f"{_REPLAY}/cancel", "write", "other"),
    Endpoint("POST", f"{_REPLAY}/decision", "write", "other"),
    Endpoint("POST", "/v1/recoveries", "write", "other", live_surface="live_replays"),
    Endpoint("GET", "/v1/recoveries", "read", "other", is_list=True),
    Endpoint("GET", _RECOVERY, "read", "other"),
    Endpoint("POST", f"{_RECOVERY}/cancel", "write", "other"),
    Endpoint("GET", "/v1/workflows", "read", "other", is_list=True),
    Endpoint("GET", "/v1/workflows/{workflow}", "read", "other"),
    Endpoint("PATCH", "/v1/workflows/{workflow}", "write", "other"),
    Endpoint("POST", "/v1/webhooks", "admin", "other"),
    Endpoint("GET", "/v1/webhooks", "write", "other", is_list=True),
    Endpoint("GET", _WEBHOOK, "write", "other"),
    Endpoint("PATCH", _WEBHOOK, "admin", "other"),
    Endpoint("DELETE", _WEBHOOK, "admin", "other"),
    Endpoint("POST", f"{_WEBHOOK}/secret", "admin", "other"),
    Endpoint("POST", f"{_WEBHOOK}/test", "admin", "other"),
    Endpoint("GET", f"{_WEBHOOK}/deliveries", "admin", "other", is_list=True),
    Endpoint("GET", _DELIVERY, "admin", "other"),
    Endpoint("POST", f"{_DELIVERY}/redeliver", "admin", "other"),
    Endpoint("GET", "/v1/event_types", "read", "other"),
    Endpoint("POST", "/v1/keys", "admin", "other"),
    Endpoint("GET", "/v1/keys", "admin", "other", is_list=True),
    Endpoint("DELETE", "/v1/keys/{key_id}", "admin", "other"),
    Endpoint("GET", "/v1/workspaces/current", "admin", "other"),
    Endpoint("PATCH", "/v1/workspaces/current", "admin", "other"),
    Endpoint("GET", "/v1/limits", "read", "other"),
    Endpoint("GET", "/v1/quota", "read", "other"),
    Endpoint("GET", "/v1/audit", "admin", "other", is_list=True),
    Endpoint("POST", "/v1/privacy/erasure", "admin", "other"),
    Endpoint("GET", "/v1/privacy/erasure/{erasure_id}", "admin", "other"),
)


def _compile_endpoint_paths(
    endpoints: tuple[Endpoint, ...],
) -> tuple[re.Pattern[str], list[dict[str, Endpoint]]]:
    """Return a pattern with a group for each path, and the endpoints of each group by method."""
    methods: dict[str, dict[str, Endpoint]] = {}
    for endpoint in endpoints:
        methods.setdefault(endpoint.path, {})[endpoint.method] = endpoint
    templates = (
        re.sub(r"\\{\w+(:path)?\\}", _replace_endpoint_parameter, re.escape(path)) for path in methods
    )
    return re.compile("|".join(f"({template})" for template in templates), re.DOTALL), list(methods.values())


def _replace_endpoint_parameter(match: re.Match[str]) -> str:
    return ".*" if match[1] else "[^/]+"


_PATTERN, _METHODS = _compile_endpoint_paths(ENDPOINTS)
#: Longer paths are rare, and not cached.
_CACHED_CHARACTERS = 128


def find_endpoint(method: str, path: str) -> Endpoint | None:
    """Return the endpoint of a request; None if no route has this method and path."""
    # All batches of a session have one path; the cache finds it in a fifth of the time.
    find = _find_cached if len(path) <= _CACHED_CHARACTERS else _find_endpoint
    return find(method, path)


def has_endpoint(path: str) -> bool:
    """Return whether any route has exactly this path, with any method.

    The framework's router also accepts a path that ends with a line feed. Such a request must not reach it:
    the route would run without the checks of this table.
    """
    return bool(_find_endpoints(path))


def list_endpoint_methods(path: str) -> list[str]:
    """Return the methods that a path takes, sorted; HEAD wherever GET."""
    methods = set(_find_endpoints(path)) or {"GET"}  # a page or a probe outside of /v1
    return sorted(methods | {"HEAD"} if "GET" in methods else methods)


def is_websocket_endpoint(path: str) -> bool:
    """Return whether a path is the address of a WebSocket."""
    return any(endpoint.path.endswith("/ws") for endpoint in _find_endpoints(path).values())


def _find_endpoint(method: str, path: str) -> Endpoint | None:
    """Return the endpoint that serves a method and path; None if the API has none."""
    return _find_endpoints(path).get(method)


def _find_endpoints(path: str) -> dict[str, Endpoint]:
    """Return the endpoints of a path by method."""
    match = _PATTERN.fullmatch(path)
    return {} if match is None or match.lastindex is None else _METHODS[match.lastindex - 1]


_find_cached = lru_cache(maxsize=4096)(_find_endpoint)
