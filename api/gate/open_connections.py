"""Open connections of each client address and of all, which have limits: descriptors are few. Contract §1.

The address is the peer's, so all clients of a proxy share one; trusted proxies have no limit of their own.
If all addresses together have as many as the process may, a newcomer takes the place of the connection that
has waited longest for a request, so that a flood of idle connections keeps no client out.
"""

import logging
import resource
import time
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from ipaddress import ip_address, ip_network
from typing import Final, Protocol

from api.gate.held_bytes import HeldBytes
from api.gate.lingering_close import LingeringConnections
from api.gate.rate_limiter import find_client_network
from api.gate.unread_answers import UnreadAnswer
from recorder import limits
from recorder.errors import NoFreeConnection, TooManyConnections
from recorder.models.limits import ConnectionLimits

#: Name of the counts in the state that the application's lifespan passes to the server's protocols.
CONNECTIONS: Final = "open_connections"
#: Descriptors that the process asks for; the hard limit of some systems has no bound.
_DESCRIPTORS = 65_536
#: So many waiting connections are tried for one newcomer: some may have an answer that is not read yet.
_TRIED = 16
#: The log says at most this often that connections are closed for newcomers.
_LOG_EVERY_S = 60.0

log = logging.getLogger(__name__)


class WaitingConnection(Protocol):
    """A connection on which the client has to send the next request."""

    def make_room(self) -> bool:
        """Close the connection and end its count; return whether that could be done."""

    def count_surplus_bytes(self) -> int:
        """Return the bytes of the head that is arriving."""

    def end_head(self) -> None:
        """End a request whose head is arriving."""


class OpenConnections:
    """Counts of open connections, in one process; used from its event loop.

    Attributes:
        heads: heads that are arriving, by the network of their client.
        answers: answers that were written and not read yet.
        lingering: connections that are closed once their client has ended.
    """

    def __init__(
        self,
        per_address: int,
        per_process: int,
        *,
        trusted_proxies: Sequence[str] = (),
        head_bytes: int = limits.ARRIVING_HEADS_BYTES,
        answer_bytes: int = limits.UNREAD_ANSWERS_BYTES,
    ) -> None:
        """Create the counts without connections.

        Args:
            per_address: the most of one client address; of IPv6 its first 64 bits are one address.
            per_process: the most of all addresses, of trusted proxies too.
            trusted_proxies: networks that may have more than `per_address`.
            head_bytes: the most of all heads that are arriving.
            answer_bytes: the most of all answers that are not read yet.
        """
        self.heads = HeldBytes[WaitingConnection](
            head_bytes,
            measure=lambda connection: connection.count_surplus_bytes(),
            end=lambda connection: connection.end_head(),
        )
        self.answers = HeldBytes[UnreadAnswer](
            answer_bytes, measure=lambda answer: answer.count_bytes(), end=lambda answer: answer.reset()
        )
        self.lingering = LingeringConnections(min(limits.LINGERING_CONNECTIONS, per_process // 8))
        self.per_address = per_address
        self.per_process = per_process
        self._proxies = [ip_network(network) for network in trusted_proxies]
        self._counts: dict[str, int] = {}
        self._total = 0
        #: The connection that has waited longest is the first.
        self._waiting: OrderedDict[WaitingConnection, None] = OrderedDict()
        self._logged_at = -_LOG_EVERY_S

    @property
    def limits(self) -> ConnectionLimits:
        """The limits in force, as clients read them."""
        return ConnectionLimits(per_address=self.per_address, per_process=self.per_process)

    def open(self, address: str) -> None:
        """Count a connection until `close`; where all are taken, close one that waits.

        Raises:
            TooManyConnections: if the address has as many as it may; the connection is not counted.
            NoFreeConnection: if the process has as many as it may, and none that waits can be closed.
        """
        has_most = self._counts.get(find_client_network(address), 0) >= self.per_address
        if has_most and not self._is_trusted_proxy(address):
            raise TooManyConnections(self.per_address)
        if self._total >= self.per_process:
            self._make_room()
        self.add(address)

    def add(self, address: str) -> None:
        """Count a connection that was admitted before, until `close`."""
        network = find_client_network(address)
        self._counts[network] = self._counts.get(network, 0) + 1
        self._total += 1

    def close(self, address: str) -> None:
        """Count a connection no longer."""
        network = find_client_network(address)
        self._total -= 1
        left = self._counts[network] - 1
        if left:
            self._counts[network] = left
        else:
            del self._counts[network]

    def add_waiting(self, connection: WaitingConnection) -> None:
        """Add a connection that waits for a request, unless it was added before."""
        self._waiting[connection] = None

    def remove_waiting(self, connection: WaitingConnection) -> None:
        """Remove a connection from those that wait, if it is one of them."""
        self._waiting.pop(connection, None)
        self.heads.drop(connection)

    def _make_room(self) -> None:
        """Close the connection that has waited longest.

        Raises:
            NoFreeConnection: if none of those that have waited longest can be closed.
        """
        self._log_all_connections_open()
        for _ in range(min(_TRIED, len(self._waiting))):
            connection, _ = self._waiting.popitem(last=False)
            if connection.make_room():
                return
            self._waiting[connection] = None
        raise NoFreeConnection(self.per_process)

    def _log_all_connections_open(self) -> None:
        now = time.monotonic()
        if now - self._logged_at >= _LOG_EVERY_S:
            self._logged_at = now
            log.warning(
                "all %d connections are open; those that wait longest for a request are closed for new ones",
                self.per_process,
            )

    def _is_trusted_proxy(self, address: str) -> bool:
        if not self._proxies:
            return False
        with suppress(ValueError):
            peer = ip_address(address)
            return any(peer in network for network in self._proxies)
        return False


def raise_descriptor_limit() -> int:
    """Raise the number of descriptors that this process may open as far as allowed; return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < most:
        with suppress(ValueError, OSError):  # a system may allow fewer than its limit says
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
            return most
    return most if soft == resource.RLIM_INFINITY else soft
