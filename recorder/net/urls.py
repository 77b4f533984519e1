"""Addresses that can be called: read once, so that what was checked is what is dialled. Contract §6."""

import re
from dataclasses import dataclass
from ipaddress import IPv6Address
from urllib.parse import quote

import idna

from recorder.errors import InvalidUrl
from recorder.net.addresses import Address, read_address

URL_CHARACTERS = 2_048
_PORTS = {"http": 80, "https": 443}
_HOST_CHARACTERS = 253

_PARTS = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<authority>[^/?#]*)(?P<rest>[^#]*)")
_AUTHORITY = re.compile(r"(?P<host>\[[0-9A-Za-z:.%_~-]+\]|[^\[\]:@]+)(?::(?P<port>[0-9]{1,5}))?")
_LABEL = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)")
# A name whose last label is a number would be read as an address by one library and as a name by another.
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
# What may stand in a path or query as it is (RFC 3986), and `%` of what is escaped already.
_LITERAL = "/?:@!$&'()*+,;=-._~%"


@dataclass(frozen=True)
class Target:
    """Where a request goes."""

    scheme: str
    #: In lower case ASCII, without brackets; an address in its usual form.
    host: str
    port: int
    #: Path and query, as they stand in the request line.
    path: str
    #: What the host is where it is no name.
    address: Address | None

    @property
    def host_header(self) -> str:
        """The `Host` header: the port stands in it where it is not the scheme's own."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"


def read_url(url: str) -> Target:
    """The target that a URL names.

    Raises:
        InvalidUrl: if it is not http or https, names a user or a fragment, or cannot be read in one way only.
    """
    if len(url) > URL_CHARACTERS or not url.isprintable() or " " in url or "\\" in url:
        raise InvalidUrl(f"url takes at most {URL_CHARACTERS} printable characters, without spaces.")
    parts = _PARTS.fullmatch(url)
    if parts is None:
        raise InvalidUrl("url takes an address such as https://example.com/hooks, without a fragment.")
    scheme = parts["scheme"].lower()
    if scheme not in _PORTS:
        raise InvalidUrl("url begins with https://.")
    if "@" in parts["authority"]:
        raise InvalidUrl("url names no user; a secret can stand in the path.")
    authority = _AUTHORITY.fullmatch(parts["authority"])
    if authority is None:
        raise InvalidUrl("url names a host, and perhaps a port.")
    port = int(authority["port"] or _PORTS[scheme])
    if not 0 < port < 65_536:
        raise InvalidUrl("The port of url lies between 1 and 65535.")
    host, address = _read_host(authority["host"])
    return Target(scheme, host, port, _path(parts["rest"]), address)


def _read_host(text: str) -> tuple[str, Address | None]:
    """The host in its one form, and the address that it is, if any."""
    if text.startswith("["):
        address = read_address(text[1:-1])
        if address is None or ":" not in text:
            raise InvalidUrl("The host of url is no IPv6 address.")
        return _form(text[1:-1]), address
    host = _ascii(text).removesuffix(".")
    labels = host.split(".")
    if _NUMBER.fullmatch(labels[-1]):
        address = read_address(host)
        if address is None:
            raise InvalidUrl("The host of url is no IPv4 address.")
        return str(address), address
    if len(host) > _HOST_CHARACTERS or not all(_LABEL.fullmatch(label) for label in labels):
        raise InvalidUrl("The host of url is no name that could be resolved.")
    return host, None


def _ascii(text: str) -> str:
    """A host in lower case ASCII: other alphabets as punycode, look-alikes (`①`, `。`) as what they mean."""
    if text.isascii():
        return text.lower()
    try:
        return idna.encode(text, uts46=True).decode("ascii").lower()
    except idna.IDNAError as error:
        raise InvalidUrl("The host of url is no name that could be resolved.") from error


def _form(text: str) -> str:
    return str(IPv6Address(text.partition("%")[0]))


def _path(rest: str) -> str:
    path = rest if rest.startswith("/") else f"/{rest}"
    return quote(path, safe=_LITERAL)
