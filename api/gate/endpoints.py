"""Every address of the interface in one table: who may call it, and which limit it draws on. Contract §1.

The gate, `GET /v1/limits` and the tests read this table; a test holds it against the routes.
"""

from dataclasses import dataclass
from functools import lru_cache

from recorder import limits
from recorder.access.keys import Level
from recorder.access.rate_tiers import Surface


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One method of one address."""

    method: str
    path: str
    scope: Level
    surface: Surface
    body_bytes: int = limits.BODY_BYTES
    #: Whether a signature in the query may stand in for a key.
    opens_by_signature: bool = False
    #: Whether it answers as long as its client stays: counted as an open stream.
    is_stream: bool = False
    #: Whether it changes nothing although it is a POST: it asks by a body.
    only_reads: bool = False


_SESSION = "/v1/sessions/{session_id}"
_MEMORY = "/v1/memory"
_EXPORT = "/v1/exports/{export_id}"
_WEBHOOK = "/v1/webhooks/{webhook_id}"
_DELIVERY = f"{_WEBHOOK}/deliveries/{{delivery_id}}"

ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint("POST", "/v1/sessions", "write", "create_session"),
    Endpoint("GET", "/v1/sessions", "read", "reads"),
    Endpoint("POST", "/v1/sessions:batch_stop", "write", "other"),
    Endpoint("GET", _SESSION, "read", "reads"),
    Endpoint("DELETE", _SESSION, "write", "other"),
    Endpoint("POST", f"{_SESSION}/start", "write", "other"),
    Endpoint("POST", f"{_SESSION}/stop", "write", "other"),
    Endpoint("POST", f"{_SESSION}/events", "write", "append_events", limits.EVENTS_REQUEST_BYTES),
    Endpoint("GET", f"{_SESSION}/events", "read", "reads"),
    Endpoint("GET", f"{_SESSION}/events/stream", "read", "reads", is_stream=True),
    Endpoint("GET", f"{_SESSION}/events/ws", "read", "reads", is_stream=True),
    Endpoint("POST", f"{_SESSION}/frames", "write", "append_frames", limits.FRAMES_REQUEST_BYTES),
    Endpoint("GET", f"{_SESSION}/frames", "read", "reads"),
    Endpoint("GET", f"{_SESSION}/frames/{{frame_id}}", "read", "reads"),
    Endpoint("GET", f"{_SESSION}/frames/{{frame_id}}/image", "read", "reads"),
    Endpoint("POST", f"{_SESSION}/tags", "write", "other"),
    Endpoint("GET", f"{_SESSION}/tags", "read", "reads"),
    Endpoint("GET", f"{_MEMORY}/paths", "read", "other"),
    Endpoint("GET", f"{_MEMORY}/outliers", "read", "other"),
    Endpoint("POST", f"{_MEMORY}/similar", "read", "other", only_reads=True),
    Endpoint("GET", f"{_MEMORY}/recovery_points", "read", "other"),
    Endpoint("GET", f"{_MEMORY}/graph", "read", "other"),
    Endpoint("GET", f"{_MEMORY}/diff", "read", "other"),
    Endpoint("POST", "/v1/exports", "write", "exports"),
    Endpoint("GET", "/v1/exports", "read", "other"),
    Endpoint("GET", _EXPORT, "read", "other"),
    Endpoint("POST", f"{_EXPORT}/cancel", "write", "other"),
    Endpoint("GET", f"{_EXPORT}/diff", "read", "other"),
    Endpoint("GET", f"{_EXPORT}/manifest", "read", "other", opens_by_signature=True),
    Endpoint("GET", f"{_EXPORT}/files/{{path:path}}", "read", "reads", opens_by_signature=True),
    Endpoint("GET", "/v1/workflows", "read", "other"),
    Endpoint("GET", "/v1/workflows/{workflow}", "read", "other"),
    Endpoint("PATCH", "/v1/workflows/{workflow}", "write", "other"),
    Endpoint("POST", "/v1/webhooks", "admin", "other"),
    Endpoint("GET", "/v1/webhooks", "write", "other"),
    Endpoint("GET", _WEBHOOK, "write", "other"),
    Endpoint("PATCH", _WEBHOOK, "admin", "other"),
    Endpoint("DELETE", _WEBHOOK, "admin", "other"),
    Endpoint("POST", f"{_WEBHOOK}/secret", "admin", "other"),
    Endpoint("POST", f"{_WEBHOOK}/test", "admin", "other"),
    Endpoint("GET", f"{_WEBHOOK}/deliveries", "admin", "other"),
    Endpoint("GET", _DELIVERY, "admin", "other"),
    Endpoint("POST", f"{_DELIVERY}/redeliver", "admin", "other"),
    Endpoint("GET", "/v1/event_types", "read", "other"),
    Endpoint("POST", "/v1/keys", "admin", "other"),
    Endpoint("GET", "/v1/keys", "admin", "other"),
    Endpoint("DELETE", "/v1/keys/{key_id}", "admin", "other"),
    Endpoint("GET", "/v1/workspaces/current", "admin", "other"),
    Endpoint("PATCH", "/v1/workspaces/current", "admin", "other"),
    Endpoint("GET", "/v1/limits", "read", "other"),
    Endpoint("GET", "/v1/quota", "read", "other"),
    Endpoint("GET", "/v1/audit", "admin", "other"),
)


class _Node:
    """One segment of the addresses: what follows it, and what ends here."""

    __slots__ = ("ends", "named", "parameter", "rest")

    def __init__(self) -> None:
        self.named: dict[str, _Node] = {}
        self.parameter: _Node | None = None
        self.ends: dict[str, Endpoint] = {}
        #: What takes all segments that are left.
        self.rest: dict[str, Endpoint] = {}


def _tree(endpoints: tuple[Endpoint, ...]) -> _Node:
    root = _Node()
    for endpoint in endpoints:
        node = root
        for segment in endpoint.path.split("/")[1:]:
            if segment.endswith(":path}"):
                node.rest[endpoint.method] = endpoint
                break
            if segment.startswith("{"):
                node.parameter = node.parameter or _Node()
                node = node.parameter
            else:
                node = node.named.setdefault(segment, _Node())
        else:
            node.ends[endpoint.method] = endpoint
    return root


_ROOT = _tree(ENDPOINTS)
#: Longer paths are those of nobody's client, and are not remembered.
_USUAL_CHARACTERS = 128


def find_endpoint(method: str, path: str) -> Endpoint | None:
    """The endpoint of a request; None where no route has this method and path."""
    # A session's batches all come to one path, which is then found in a fifth of the time.
    return _found_before(method, path) if len(path) <= _USUAL_CHARACTERS else _find(method, path)


def is_address(path: str) -> bool:
    """Whether any route has exactly this path, whatever its methods.

    The framework's router is laxer: its patterns also take a path with a line feed behind it. So only what is
    an address here may reach it, else a route would run without the checks that this table asks for.
    """
    return bool(_ends(path))


def allowed_methods(path: str) -> list[str]:
    """Return the methods that an address takes, sorted; HEAD wherever GET."""
    found = {method for method, one in _ends(path).items() if not one.path.endswith("/ws")}
    # Beside the interface there are pages and probes alone.
    found = found or {"GET"}
    return sorted(found | {"HEAD"} if "GET" in found else found)


def _find(method: str, path: str) -> Endpoint | None:
    return _ends(path).get(method)


def _ends(path: str) -> dict[str, Endpoint]:
    """The endpoints of a path, by method."""
    node: _Node = _ROOT
    for segment in path.split("/")[1:]:
        if node.rest:
            return node.rest
        following = node.named.get(segment) or (node.parameter if segment else None)
        if following is None:
            return {}
        node = following
    return node.ends


_found_before = lru_cache(maxsize=4096)(_find)
