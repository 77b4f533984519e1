"""Journal of a capture: events in their order, each with the signals of what it caused.

The last step is held until the next one begins, since its effects are seen only afterwards.
"""

import re
import time
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from typing import Any
from urllib.parse import unquote_plus, urlsplit, urlunsplit

from recorder import limits
from recorder.capture.secret_digests import SecretDigest, hide_digested_secrets

_SECRET_PARAMETER = re.compile(
    r"((?:^|[&?;])[^=&;]*(?:passw|passphrase|passcode|pwd|secret|token|otp|api[_-]?key|signature|code|pin)[^=&;]*=)[^&]*",
    re.IGNORECASE,
)
#: A parameter of a query, or of a fragment, with the character before it.
_PARAMETER = re.compile(r"(^|[&?;])([^&?;]*)")
_MAX_SIGNALS = 20
_MAX_SECRET_NAMES = 100
#: Documents whose secrets are looked for.
_MAX_DOCUMENTS = 5
#: Requests this long after a step are no longer counted as its effect.
_REQUEST_MS = 2_000
_CLOCK_SLACK_MS = 60_000


class CaptureJournal:
    """Events of all pages of one capture."""

    def __init__(self, add_event: Callable[[dict[str, Any]], None]) -> None:
        self._add_event = add_event
        self._began = time.monotonic()
        self._began_ms = time.time() * 1000
        #: The last step, and the effects of it that are events themselves.
        self._held: list[dict[str, Any]] = []
        self._last_ms = 0
        #: Names of secret fields: a form may send them as parameters of an address.
        self._secret_names: set[str] = set()
        #: Digests of the values of secret fields by document.
        self._secrets: dict[str, tuple[SecretDigest, ...]] = {}

    @property
    def now_ms(self) -> int:
        """Milliseconds since the capture began."""
        return int((time.monotonic() - self._began) * 1000)

    def convert_time(self, time_ms: int) -> int:
        """Return a time of the browser's clock in milliseconds since the capture began.

        A browser on another machine may have another clock; then it is the present time.
        """
        t_ms = int(time_ms - self._began_ms)
        now_ms = self.now_ms
        return max(0, t_ms) if now_ms - _CLOCK_SLACK_MS <= t_ms <= now_ms else now_ms

    def add_step(self, event: dict[str, Any]) -> None:
        """Record a step; the one before it is complete with this."""
        self.send_held_step()
        event["t_ms"] = self._last_ms = min(limits.T_MS_MAX, max(self._last_ms, event["t_ms"]))
        self._held = [event]

    def join_double_click(self, app: dict[str, Any]) -> bool:
        """Make the held click a double click; return False if the step before was none, or led to an event.

        Args:
            app: the page whose last click was the first one of the double click.
        """
        held = self._held[0] if len(self._held) == 1 else None
        if held is None or held["type"] != "click" or held["app"] != app:
            return False
        held["type"] = "dblclick"
        return True

    def add_effect(self, event: dict[str, Any], signal: dict[str, Any] | None) -> None:
        """Record an event that the held step caused and announces by a signal.

        Args:
            event: the event; without a signal, or with no step to announce it, it is a step itself.
            signal: of the step that caused it.
        """
        if signal is None or not self._held:
            self.add_step(event)
            return
        self.add_signal(signal)
        event["t_ms"] = self._last_ms = max(self._last_ms, event["t_ms"])
        self._held.append(event)

    def add_signal(self, signal: dict[str, Any]) -> None:
        """Add what the held step caused to its signals."""
        if not self._held:
            return
        signals = self._held[0].setdefault("signals", [])
        if len(signals) < _MAX_SIGNALS:
            signals.append(signal)

    def add_request(self, method: str, url: str) -> None:
        """Add a request by which the held step may have changed something."""
        if self._held and self.now_ms - self._held[0]["t_ms"] <= _REQUEST_MS and not self.is_sign_in:
            self.add_signal({"type": "request", "method": method, "url": url})

    @property
    def is_sign_in(self) -> bool:
        """True if the held step sends a form with one password: it signs in, and changes nothing."""
        return bool(self._held and self._held[0].get("data", {}).get("signs_in"))

    def add_secret_name(self, name: str) -> None:
        """Remove the values of parameters of this name from addresses from now on."""
        if len(self._secret_names) < _MAX_SECRET_NAMES:
            self._secret_names.add(name)

    def keep_secrets(self, document: str, digests: tuple[SecretDigest, ...]) -> None:
        """Remove the values of a document's secret fields from addresses and dialogs from now on."""
        self._secrets[document] = digests
        if len(self._secrets) > _MAX_DOCUMENTS:
            del self._secrets[next(iter(self._secrets))]

    def redact(self, url: str) -> str:
        """Return an address without secrets."""
        return self._hide_secrets(redact_journal_url(url, self._secret_names), in_address=True)

    def _hide_secrets(self, text: str, *, in_address: bool = False) -> str:
        digests = {digest for kept in self._secrets.values() for digest in kept}
        return hide_digested_secrets(text, digests, in_address=in_address)

    def _hide_event_secrets(self, event: dict[str, Any]) -> None:
        """Remove secrets from the members of an event that the browser, not the page script, gave."""
        for holder in (event, event.get("data", {}), *event.get("signals", ())):
            if isinstance(holder.get("url"), str):
                holder["url"] = self.redact(holder["url"])
            for name in holder.keys() & {"filename", "message"}:
                holder[name] = self._hide_secrets(str(holder[name]))

    def name_page(self, url: str, title: str) -> None:
        """Add the title to navigations to this address that have none yet."""
        for event in self._held:
            if event["type"] == "navigate" and event.get("url") == url:
                event.setdefault("title", title)

    def send_held_step(self) -> None:
        """Send the held step with its effects."""
        held, self._held = self._held, []
        for event in held:
            # The value of a field may have become known after an address that holds it.
            self._hide_event_secrets(event)
            self._add_event(event)


def redact_journal_url(url: str, names: AbstractSet[str] = frozenset()) -> str:
    """Return an address without credentials and without the values of parameters named like secrets.

    Args:
        url: any address.
        names: further names of parameters.
    """
    try:
        parts = urlsplit(url[:2_000])
    except ValueError:
        return ""
    if parts.scheme == "data":
        return "data:"
    netloc = parts.netloc.rpartition("@")[2]
    query, fragment = (
        _redact_named_parameters(_SECRET_PARAMETER.sub(r"\1•••", text), names)
        for text in (parts.query, parts.fragment)
    )
    return urlunsplit((parts.scheme, netloc, parts.path, query, fragment))


def _redact_named_parameters(text: str, names: AbstractSet[str]) -> str:
    """Return a query, or a fragment such as `/route?name=value`, without the values of some parameters."""
    shown = []
    is_hidden = False
    for separator, part in _PARAMETER.findall(text) if names else ():
        if is_hidden and separator in ("?", ";"):
            continue  # it may be a part of the hidden value
        name, sign, _ = part.partition("=")
        # A route may stand before the first name of a fragment.
        is_hidden = bool(sign) and not names.isdisjoint(map(unquote_plus, (name, name.rpartition("/")[2])))
        shown.append(f"{separator}{name}=•••" if is_hidden else separator + part)
    return "".join(shown) if names else text
