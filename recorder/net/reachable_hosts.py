"""Hosts that live replays may reach: `name` with the ports 80 and 443, or `name:port`. Contract §8."""

from collections.abc import Iterable, Mapping, Sequence

from recorder.net.addresses import CalledAddress

#: Ports of an entry without one.
DEFAULT_PORTS = (80, 443)


class ReachableHosts:
    """Set of hosts with ports, some of them with the only methods that they take."""

    def __init__(self, entries: Iterable[str], methods: Mapping[str, Sequence[str]] | None = None) -> None:
        """Set the hosts.

        Args:
            entries: the hosts.
            methods: methods by host; where several entries name a port, those that all of them list.
        """
        self._members = frozenset(member for entry in entries for member in _list_reachable_host_ports(entry))
        self._methods: dict[tuple[str, int], frozenset[str]] = {}
        for entry, names in (methods or {}).items():
            for member in _list_reachable_host_ports(entry):
                self._methods[member] = self._methods.get(member, frozenset(names)).intersection(names)

    @property
    def limits_methods(self) -> bool:
        """Return whether some hosts take some methods only."""
        return bool(self._methods)

    def contains_target(self, target: CalledAddress) -> bool:
        """Return whether a target is one of the hosts, on one of its ports."""
        return (target.host, target.port) in self._members

    def list_methods(self, target: CalledAddress) -> frozenset[str] | None:
        """Return the only methods that a target takes; None if it takes every one."""
        return self._methods.get((target.host, target.port))

    def match_domain(self, domain: str) -> bool:
        """Return whether a browser sends the cookies of a domain to one of the hosts.

        Args:
            domain: a host; with a dot before it also those below it.
        """
        name = domain.lower()
        if not name.startswith("."):
            return any(host == name for host, _ in self._members)
        return any(f".{host}".endswith(name) for host, _ in self._members)

    def contains_entry(self, entry: str) -> bool:
        """Return whether all that an entry names is in the set."""
        return self._members.issuperset(_list_reachable_host_ports(entry))


def _list_reachable_host_ports(entry: str) -> list[tuple[str, int]]:
    name, _, port = entry.lower().partition(":")
    return [(name, int(port))] if port else [(name, number) for number in DEFAULT_PORTS]
