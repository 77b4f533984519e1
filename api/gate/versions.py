"""Releases of the interface that clients may name, and deprecated routes. Spec §9, contract §1."""

from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from email.utils import format_datetime
from typing import Final

from recorder import __version__
from recorder.errors import UnsupportedVersion

#: Values of the header `Service-Version`: every release of spec §9. It changes nothing yet.
RELEASES: Final = ("2025.12.0", "2026.1.0", "2026.2.0", "2026.3.0", "2026.4.0", "2026.4.1", "2026.5.0")
#: Days between the announcement of a deprecation and the end of the route.
NOTICE_DAYS: Final = 90

_ACCEPTED = frozenset(release.encode() for release in RELEASES)
#: The release of this service, in every answer.
VERSION_HEADER: Final = (b"service-version", __version__.encode())


@dataclass(frozen=True, slots=True)
class Deprecation:
    """Announcement that a route will end, with a link to its successor."""

    #: The day of the announcement.
    since: date
    #: The first day on which the route may be gone.
    sunset: date
    #: Address of a page that describes the replacement.
    link: str

    def __post_init__(self) -> None:
        if self.sunset - self.since < timedelta(days=NOTICE_DAYS):
            raise ValueError(
                f"A deprecated route must stay for at least {NOTICE_DAYS} days; set a later sunset."
            )

    def headers(self) -> list[tuple[bytes, bytes]]:
        """Return `Deprecation` (RFC 9745), `Sunset` (RFC 8594) and the link that explains them."""
        since = int(datetime.combine(self.since, time(), UTC).timestamp())
        sunset = format_datetime(datetime.combine(self.sunset, time(), UTC), usegmt=True)
        return [
            (b"deprecation", f"@{since}".encode()),
            (b"sunset", sunset.encode()),
            (b"link", f'<{self.link}>; rel="deprecation"; type="text/html"'.encode()),
        ]


#: Deprecated routes by method and path, as `api.gate.endpoints` writes them. An entry adds the headers to all
#: answers, and the notice to OpenAPI.
DEPRECATIONS: dict[tuple[str, str], Deprecation] = {}


def check_interface_release(release: bytes) -> None:
    """Check that a release that a request names exists.

    Raises:
        UnsupportedVersion: if it does not.
    """
    if release not in _ACCEPTED:
        raise UnsupportedVersion(__version__)
