"""Releases that a client may name, and what is deprecated: the one place for both. Spec §9, contract §1."""

from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from email.utils import format_datetime
from typing import Any, Final

from api.gate.endpoints import Endpoint
from recorder import __version__
from recorder.errors import UnsupportedVersion

#: What a request may name in `Service-Version`: every release of spec §9. It changes nothing yet.
RELEASES: Final = ("2025.12.0", "2026.1.0", "2026.2.0", "2026.3.0", "2026.4.0", "2026.4.1", "2026.5.0")
#: Days between the announcement that something ends and its end.
NOTICE_DAYS: Final = 90

_ACCEPTED = frozenset(release.encode() for release in RELEASES)
_REQUEST_HEADER: Final[dict[str, Any]] = {
    "name": "Service-Version",
    "in": "header",
    "required": False,
    "schema": {"type": "string", "enum": list(RELEASES)},
    "description": "The release that the request is written for; it changes nothing yet.",
}
#: The release that answers, on every answer.
VERSION_HEADER: Final = (b"service-version", __version__.encode())


@dataclass(frozen=True, slots=True)
class Deprecation:
    """That a route ends, and where its successor is described."""

    #: The day of the announcement.
    since: date
    #: The first day on which the route may be gone.
    sunset: date
    #: Address of a page that tells what to use instead.
    link: str

    def __post_init__(self) -> None:
        if self.sunset - self.since < timedelta(days=NOTICE_DAYS):
            raise ValueError(f"what is deprecated stays for {NOTICE_DAYS} days at least")

    def headers(self) -> list[tuple[bytes, bytes]]:
        """`Deprecation` (RFC 9745), `Sunset` (RFC 8594) and the link that explains them."""
        since = int(datetime.combine(self.since, time(), UTC).timestamp())
        sunset = format_datetime(datetime.combine(self.sunset, time(), UTC), usegmt=True)
        return [
            (b"deprecation", f"@{since}".encode()),
            (b"sunset", sunset.encode()),
            (b"link", f'<{self.link}>; rel="deprecation"; type="text/html"'.encode()),
        ]


#: Deprecated routes by method and path, as `api.gate.endpoints` writes them. An entry here is all it takes:
#: the answers carry the headers, and OpenAPI says so too.
DEPRECATIONS: dict[tuple[str, str], Deprecation] = {}


def deprecation_headers(endpoint: Endpoint) -> list[tuple[bytes, bytes]]:
    """What every answer of a deprecated endpoint carries; of others nothing."""
    found = DEPRECATIONS.get((endpoint.method, endpoint.path))
    return [] if found is None else found.headers()


def describe(document: dict[str, Any]) -> None:
    """Let OpenAPI show the request header, and which operations end when."""
    ending = {(method, path.replace(":path}", "}")): found for (method, path), found in DEPRECATIONS.items()}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            if path.startswith("/v1/"):
                operation.setdefault("parameters", []).append(_REQUEST_HEADER)
            found = ending.get((method.upper(), path))
            if found is not None:
                operation["deprecated"] = True
                operation["x-sunset"] = found.sunset.isoformat()


def check_version(asked: bytes) -> None:
    """Let a request that names a release of ours pass.

    Raises:
        UnsupportedVersion: if it names anything else.
    """
    if asked not in _ACCEPTED:
        raise UnsupportedVersion(__version__)
