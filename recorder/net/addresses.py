"""Addresses that the service may call: public ones and those that the operator lists. Contract §6."""

import re
import socket
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from urllib.parse import quote

import idna

from recorder.errors import Invalid, InvalidUrl

IPAddress = IPv4Address | IPv6Address
IPNetwork = IPv4Network | IPv6Network

_LOOPBACK = "loopback"
_HOST_AND_PORT = re.compile(r"(?:\[(?P<v6>[^\]]*)\]|(?P<host>[^\[\]:/]+)):(?P<port>[0-9]{1,5})")
_HOST = re.compile(r"[^\[\]:/@\s]+")
_LOOPBACKS: tuple[IPNetwork, ...] = (IPv4Network("127.0.0.0/8"), IPv6Network("::1/128"))
#: All of IPv6 that is assigned to the public; most networks that carry IPv4 addresses are outside.
_PUBLIC_IPV6 = IPv6Network("2000::/3")
# Where `ipaddress` and the public differ: `is_global` calls some of these global, by the version of Python.
_NOT_PUBLIC: tuple[IPNetwork, ...] = (
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
    """A setting of addresses beyond the public ones holds something that is no host, address or network."""

    def __init__(self, setting: str) -> None:
        super().__init__(
            f"{setting} takes `loopback`, hosts, addresses, each with a port if you like "
            "(127.0.0.1:9000), and networks such as 10.1.0.0/16 (without bits after the prefix), "
            "separated by commas."
        )


@dataclass(frozen=True)
class AllowList:
    """Hosts and addresses that the operator allows beyond the public ones."""

    hosts: frozenset[str]
    networks: tuple[IPNetwork, ...]
    #: Hosts and addresses that are listed with one port, in the form that a target has.
    host_ports: frozenset[tuple[str, int]] = frozenset()

    @classmethod
    def parse(cls, words: tuple[str, ...], *, setting: str = "RECORDER_ALLOWED_OUTBOUND") -> "AllowList":
        """Return the list of a setting: `loopback`, hosts, addresses, networks, `host:port`.

        Raises:
            InvalidAllowList: if a word is none of these.
        """
        hosts: set[str] = set()
        networks: list[IPNetwork] = []
        host_ports: set[tuple[str, int]] = set()
        for word in words:
            if word == _LOOPBACK:
                networks += _LOOPBACKS
            elif parts := _HOST_AND_PORT.fullmatch(word):
                host_ports.add(_read_listed_host_port(parts, setting))
            elif "/" in word or read_ip_address(word) is not None:
                networks.append(_read_listed_network(word, setting))
            elif _HOST.fullmatch(word):
                hosts.add(word.lower().rstrip("."))
            else:
                raise InvalidAllowList(setting)
        return cls(frozenset(hosts), tuple(networks), frozenset(host_ports))

    def contains(self, host: str, port: int, address: IPAddress) -> bool:
        """Return whether the operator lists this host, this address, or a network with this address."""
        if host in self.hosts or any(address in network for network in self.networks):
            return True
        return self.contains_host_port(host, port, address)

    def contains_name(self, host: str, port: int) -> bool:
        """Return whether the operator lists this host, whatever it resolves to."""
        return host in self.hosts or (host, port) in self.host_ports

    def contains_host_port(self, host: str, port: int, address: IPAddress) -> bool:
        """Return whether the operator listed exactly this host, or this address, with this port."""
        return (host, port) in self.host_ports or (str(address), port) in self.host_ports


def read_ip_address(text: str) -> IPAddress | None:
    """Return the address that a host denotes, in any form that a resolver accepts; None for a name.

    Decimal, octal, hexadecimal and short forms of IPv4 (`2130706433`, `0177.1`, `0x7f.1`) are addresses;
    IPv4 inside IPv6 is unwrapped, a zone (`%eth0`) dropped.
    """
    if ":" in text:
        try:
            return _unwrap_ipv4_mapped_address(IPv6Address(text.partition("%")[0]))
        except ValueError:
            return None
    try:
        return IPv4Address(socket.inet_aton(text))
    except (OSError, ValueError):  # ValueError: NUL
        return None


def is_public_address(address: IPAddress) -> bool:
    """Return whether this is a unicast address of the public internet."""
    if not address.is_global or address.is_multicast:
        return False
    if address.version == 6 and address not in _PUBLIC_IPV6:
        return False
    return not any(address in network for network in _NOT_PUBLIC)


def _read_listed_host_port(parts: re.Match[str], setting: str) -> tuple[str, int]:
    host, port = parts["v6"] or parts["host"], int(parts["port"])
    address = read_ip_address(host)
    if not 0 < port < 65_536 or (parts["v6"] and address is None):
        raise InvalidAllowList(setting)
    return str(address) if address is not None else host.lower().rstrip("."), port


def _unwrap_ipv4_mapped_address(address: IPv6Address) -> IPAddress:
    return address.ipv4_mapped or address


def _read_listed_network(word: str, setting: str) -> IPNetwork:
    try:
        return ip_network(word)
    except ValueError as error:
        raise InvalidAllowList(setting) from error


def parse_resolved_address(text: str) -> IPAddress:
    """Return an address of a resolver, without zone and with IPv4 unwrapped.

    Raises:
        ValueError: if it is none.
    """
    address = ip_address(text.partition("%")[0])
    return _unwrap_ipv4_mapped_address(address) if address.version == 6 else address


URL_CHARACTERS = 2_048
#: Default port of each scheme.
WEB_PORTS = {"http": 80, "https": 443}
_HOST_CHARACTERS = 253

_PARTS = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<authority>[^/?#]*)(?P<rest>[^#]*)")
_AUTHORITY = re.compile(r"(?P<host>\[[0-9A-Za-z:.%_~-]+\]|[^\[\]:@]+)(?::(?P<port>[0-9]{1,5}))?")
_LABEL = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)")
# A name whose last label is a number would be read as an address by one library and as a name by another.
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
# Characters that a path or query may hold unescaped (RFC 3986), and `%` of existing escapes.
_LITERAL = "/?:@!$&'()*+,;=-._~%"


@dataclass(frozen=True)
class CalledAddress:
    """Target of a request."""

    scheme: str
    #: In lower case ASCII, without brackets; an address in its usual form.
    host: str
    port: int
    #: Path and query as in the request line.
    path: str
    #: Address of the host; None where the host is a name.
    address: IPAddress | None

    @property
    def host_header(self) -> str:
        """Value of the `Host` header, with the port where it is not the default of the scheme."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == WEB_PORTS[self.scheme] else f"{host}:{self.port}"


def parse_called_address(url: str) -> CalledAddress:
    """Return the target of a URL.

    Raises:
        InvalidUrl: if it is not http or https, names a user or a fragment, or cannot be read in one way only.
    """
    if len(url) > URL_CHARACTERS or not url.isprintable() or " " in url or "\\" in url:
        raise InvalidUrl(f"url takes at most {URL_CHARACTERS} printable characters, without spaces.")
    parts = _PARTS.fullmatch(url)
    if parts is None:
        raise InvalidUrl("url takes an address such as https://example.com/hooks, without a fragment.")
    scheme = parts["scheme"].lower()
    if scheme not in WEB_PORTS:
        raise InvalidUrl("url begins with https://.")
    if "@" in parts["authority"]:
        raise InvalidUrl("url names no user; put a secret into the path.")
    authority = _AUTHORITY.fullmatch(parts["authority"])
    if authority is None:
        raise InvalidUrl("url takes a host, and perhaps a port.")
    port = int(authority["port"] or WEB_PORTS[scheme])
    if not 0 < port < 65_536:
        raise InvalidUrl("The port of url takes a number from 1 to 65535.")
    host, address = _read_called_host(authority["host"])
    return CalledAddress(scheme, host, port, _quote_path(parts["rest"]), address)


def _read_called_host(text: str) -> tuple[str, IPAddress | None]:
    """Return the normalized host, and its address where it is no name."""
    if text.startswith("["):
        address = read_ip_address(text[1:-1])
        if address is None or ":" not in text:
            raise InvalidUrl("The host of url is no IPv6 address.")
        return _normalize_ipv6(text[1:-1]), address
    host = _encode_ascii_host(text).removesuffix(".")
    labels = host.split(".")
    if _NUMBER.fullmatch(labels[-1]):
        address = read_ip_address(host)
        if address is None:
            raise InvalidUrl("The host of url is no IPv4 address.")
        return str(address), address
    if len(host) > _HOST_CHARACTERS or not all(_LABEL.fullmatch(label) for label in labels):
        raise InvalidUrl("The host of url is no name that could be resolved.")
    return host, None


def _encode_ascii_host(text: str) -> str:
    """Return a host in lower case ASCII: punycode for other alphabets, compatible characters (`①`) mapped."""
    if text.isascii():
        return text.lower()
    try:
        return idna.encode(text, uts46=True).decode("ascii").lower()
    except idna.IDNAError as error:
        raise InvalidUrl("The host of url is no name that could be resolved.") from error


def _normalize_ipv6(text: str) -> str:
    return str(IPv6Address(text.partition("%")[0]))


def _quote_path(rest: str) -> str:
    """Return the path and query of an address with characters quoted that a URL must not contain."""
    path = rest if rest.startswith("/") else f"/{rest}"
    return quote(path, safe=_LITERAL)
