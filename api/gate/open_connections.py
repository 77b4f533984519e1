"""Open connections of each client address, which have a limit: a process has few descriptors. Contract §1.

The address is the peer's, so all clients of a proxy share one; trusted proxies are not limited.
"""

import resource
from collections.abc import Sequence
from contextlib import suppress
from ipaddress import ip_address, ip_network
from typing import Final

from api.gate.rate_limits import network_of
from recorder.errors import TooManyConnections
from recorder.models.limits import ConnectionLimits

#: Name of the counts in the state that the application's lifespan passes to the server's protocols.
CONNECTIONS: Final = "open_connections"
#: Descriptors that the process asks for; the hard limit of some systems has no bound.
_DESCRIPTORS = 65_536


class OpenConnections:
    """Counts of open connections, in one process; used from its event loop."""

    def __init__(self, per_address: int, *, trusted_proxies: Sequence[str] = ()) -> None:
        """Create the counts without connections.

        Args:
            per_address: the most of one client address; of IPv6 its first 64 bits are one address.
            trusted_proxies: networks without a limit.
        """
        self.per_address = per_address
        self._proxies = [ip_network(network) for network in trusted_proxies]
        self._counts: dict[str, int] = {}

    @property
    def limits(self) -> ConnectionLimits:
        """The limits in force, as clients read them."""
        return ConnectionLimits(per_address=self.per_address)

    def open(self, address: str) -> None:
        """Count a connection until `close`.

        Raises:
            TooManyConnections: if the address has as many as it may; the connection is not counted.
        """
        if self._counts.get(network_of(address), 0) >= self.per_address and not self._is_trusted(address):
            raise TooManyConnections(self.per_address)
        self.add(address)

    def add(self, address: str) -> None:
        """Count a connection that was admitted before, until `close`."""
        network = network_of(address)
        self._counts[network] = self._counts.get(network, 0) + 1

    def close(self, address: str) -> None:
        """Count a connection no longer."""
        network = network_of(address)
        left = self._counts[network] - 1
        if left:
            self._counts[network] = left
        else:
            del self._counts[network]

    def _is_trusted(self, address: str) -> bool:
        if not self._proxies:
            return False
        with suppress(ValueError):
            peer = ip_address(address)
            return any(peer in network for network in self._proxies)
        return False


def claim_descriptors() -> int:
    """Raise the number of descriptors that this process may open as far as allowed; return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < most:
        with suppress(ValueError, OSError):  # a system may allow fewer than its limit says
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
            return most
    return most if soft == resource.RLIM_INFINITY else soft
