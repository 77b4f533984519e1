"""Host names that requests to servers of this deployment may have in `Host`. Contract §1.

A page of another site can let its own name resolve to this machine (DNS rebinding); its browser then sends
requests that count as same-origin. Such a request still carries the foreign name in its `Host` header.
"""

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Final
from urllib.parse import urlsplit

from recorder.settings import Settings

#: Names that no page of another site can own.
LOOPBACK_NAMES: Final = ("localhost", "127.0.0.1", "[::1]")

_HOST_HEADER = re.compile(rb"(\[[0-9a-f:.]{2,45}\]|[a-z0-9_.-]{1,253})(:[0-9]{1,5})?", re.IGNORECASE)
#: A client may choose the port and the case of a name freely: bounds the cache.
_CACHED = 1_000


def with_listening_host(settings: Settings, host: str) -> Settings:
    """Return the settings of a server that listens on this address: it may be addressed by it.

    The wildcard addresses add no name.
    """
    if host in ("0.0.0.0", "::", ""):  # noqa: S104
        return settings
    return replace(
        settings, allowed_hosts=tuple(dict.fromkeys((*settings.allowed_hosts, bracketed_host(host))))
    )


def bracketed_host(host: str) -> str:
    """Return a host as URLs write it: IPv6 in brackets."""
    return f"[{host}]" if ":" in host else host


class AllowedHosts:
    """Names that a request's `Host` header may hold: `name` with any port, `name:port` with that port."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = frozenset(name.lower().encode() for name in names)
        self._accepted: set[bytes] = set()

    @classmethod
    def from_settings(cls, settings: Settings) -> "AllowedHosts":
        """Return loopback names, the public URL's host, and what `RECORDER_ALLOWED_HOSTS` lists."""
        public = urlsplit(settings.public_url).hostname
        names = [*LOOPBACK_NAMES, *settings.allowed_hosts]
        return cls([*names, bracketed_host(public)] if public else names)

    def allows(self, headers: Iterable[tuple[bytes, bytes]]) -> bool:
        """Return whether these headers (names in lower case) hold exactly one `Host`, and an allowed one."""
        sent = [value for name, value in headers if name == b"host"]
        return len(sent) == 1 and (sent[0] in self._accepted or self._is_allowed_host(sent[0]))

    def _is_allowed_host(self, value: bytes) -> bool:
        host = _HOST_HEADER.fullmatch(value)
        if host is None or not (host[1].lower() in self._names or value.lower() in self._names):
            return False
        if len(self._accepted) < _CACHED:
            self._accepted.add(value)
        return True
