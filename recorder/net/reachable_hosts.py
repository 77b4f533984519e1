"""Hosts that live replays may reach: `name` with the ports 80 and 443, or `name:port`. Contract §8."""

from collections.abc import Iterable

from recorder.net.addresses import RequestTarget

#: Ports of an entry without one.
DEFAULT_PORTS = (80, 443)


class ReachableHosts:
    """Set of hosts with ports."""

    def __init__(self, entries: Iterable[str]) -> None:
        self._members = frozenset(member for entry in entries for member in _list_members(entry))

    def hold(self, target: RequestTarget) -> bool:
        """Return whether a target is one of the hosts, on one of its ports."""
        return (target.host, target.port) in self._members

    def match_domain(self, domain: str) -> bool:
        """Return whether a browser sends the cookies of a domain to one of the hosts.

        Args:
            domain: a host; with a dot before it also those below it.
        """
        name = domain.lower()
        if not name.startswith("."):
            return any(host == name for host, _ in self._members)
        return any(f".{host}".endswith(name) for host, _ in self._members)

    def include(self, entry: str) -> bool:
        """Return whether all that an entry names is in the set."""
        return self._members.issuperset(_list_members(entry))


def _list_members(entry: str) -> list[tuple[str, int]]:
    name, _, port = entry.lower().partition(":")
    return [(name, int(port))] if port else [(name, number) for number in DEFAULT_PORTS]
