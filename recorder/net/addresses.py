"""Which addresses the service may call: public ones, and those that the operator lists. Contract §6."""

import re
import socket
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from recorder.errors import Invalid

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

_LOOPBACK = "loopback"
_PLACE = re.compile(r"(?:\[(?P<v6>[^\]]*)\]|(?P<host>[^\[\]:/]+)):(?P<port>[0-9]{1,5})")
_LOOPBACKS: tuple[Network, ...] = (IPv4Network("127.0.0.0/8"), IPv6Network("::1/128"))
#: All of IPv6 that is handed out to the public; what carries IPv4 inside lies mostly outside.
_PUBLIC_IPV6 = IPv6Network("2000::/3")
# Where `ipaddress` and the public differ: `is_global` calls some of these global, by the version of Python.
_NOT_PUBLIC: tuple[Network, ...] = (
    IPv4Network("100.64.0.0/10"),  # carrier-grade NAT, where some clouds keep their metadata
    IPv4Network("168.63.129.16/32"),  # a cloud's host agent at an address that looks public
    IPv4Network("192.0.0.0/24"),  # protocol assignments
    IPv4Network("192.88.99.0/24"),  # relays of 6to4
    IPv4Network("240.0.0.0/4"),  # reserved, and broadcast
    IPv6Network("2001::/23"),  # protocol assignments, Teredo (an IPv4 address inside) among them
    IPv6Network("2001:db8::/32"),  # documentation
    IPv6Network("2002::/16"),  # 6to4: an IPv4 address inside
    IPv6Network("3fff::/20"),  # documentation
)


class InvalidAllowList(Invalid):
    """`RECORDER_ALLOWED_OUTBOUND` holds something that is no host, address or network."""

    def __init__(self) -> None:
        super().__init__(
            "RECORDER_ALLOWED_OUTBOUND takes `loopback`, hosts, addresses, each with a port if you like "
            "(127.0.0.1:9000), and networks such as 10.1.0.0/16 (without bits behind the prefix), "
            "separated by commas."
        )


@dataclass(frozen=True)
class AllowList:
    """What the operator lets the service call beyond public addresses."""

    hosts: frozenset[str]
    networks: tuple[Network, ...]
    #: Hosts and addresses that are listed with one port, in the form that a target has.
    places: frozenset[tuple[str, int]] = frozenset()

    @classmethod
    def parse(cls, words: tuple[str, ...]) -> "AllowList":
        """The list that a setting holds: `loopback`, hosts, addresses, networks, `host:port`.

        Raises:
            InvalidAllowList: if a word is none of these.
        """
        hosts: set[str] = set()
        networks: list[Network] = []
        places: set[tuple[str, int]] = set()
        for word in words:
            if word == _LOOPBACK:
                networks += _LOOPBACKS
            elif place := _PLACE.fullmatch(word):
                places.add(_read_place(place))
            elif "/" in word or read_address(word) is not None:
                networks.append(_network(word))
            else:
                hosts.add(word.lower().rstrip("."))
        return cls(frozenset(hosts), tuple(networks), frozenset(places))

    def lists(self, host: str, port: int, address: Address) -> bool:
        """Whether the operator named this host, or an address or network that holds this address."""
        if host in self.hosts or any(address in network for network in self.networks):
            return True
        return self.lists_place(host, port, address)

    def lists_name(self, host: str, port: int) -> bool:
        """Return whether the operator named this host, whatever it resolves to."""
        return host in self.hosts or (host, port) in self.places

    def lists_place(self, host: str, port: int, address: Address) -> bool:
        """Return whether the operator listed exactly this host, or this address, with this port."""
        return (host, port) in self.places or (str(address), port) in self.places


def read_address(text: str) -> Address | None:
    """The address that a host stands for, in any form that a resolver would take; None for a name.

    Decimal, octal, hexadecimal and short forms of IPv4 (`2130706433`, `0177.1`, `0x7f.1`) are addresses;
    IPv4 inside IPv6 is unwrapped, a zone (`%eth0`) dropped.
    """
    if ":" in text:
        try:
            return _unwrapped(IPv6Address(text.partition("%")[0]))
        except ValueError:
            return None
    try:
        return IPv4Address(socket.inet_aton(text))
    except (OSError, ValueError):  # ValueError: NUL
        return None


def is_public(address: Address) -> bool:
    """Whether this is an address of the public internet, that one host answers to."""
    if not address.is_global or address.is_multicast:
        return False
    if address.version == 6 and address not in _PUBLIC_IPV6:
        return False
    return not any(address in network for network in _NOT_PUBLIC)


def _read_place(parts: re.Match[str]) -> tuple[str, int]:
    host, port = parts["v6"] or parts["host"], int(parts["port"])
    address = read_address(host)
    if not 0 < port < 65_536 or (parts["v6"] and address is None):
        raise InvalidAllowList
    return str(address) if address is not None else host.lower().rstrip("."), port


def _unwrapped(address: IPv6Address) -> Address:
    return address.ipv4_mapped or address


def _network(word: str) -> Network:
    try:
        return ip_network(word)
    except ValueError as error:
        raise InvalidAllowList from error


def parse_resolved(text: str) -> Address:
    """An address as a resolver gives it, a zone dropped and IPv4 unwrapped.

    Raises:
        ValueError: if it is none.
    """
    address = ip_address(text.partition("%")[0])
    return _unwrapped(address) if address.version == 6 else address
