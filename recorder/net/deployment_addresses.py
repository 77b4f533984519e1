"""Addresses and ports of this deployment, which calls of tenants must not reach: from settings and `/proc`.

A process belongs to the deployment if its environment names the deployment's Dagster folder: `recorder up`
gives that variable to every child, and children pass it on. Systems other than Linux have no such list; there
only the addresses from the settings are known.
"""

import asyncio
import os
import re
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, IPv6Network
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from recorder.net.addresses import IPAddress, parse_resolved_address, read_ip_address
from recorder.settings import Settings, find_dagster_folder, list_store_address_settings

_PROC = Path("/proc")
_LISTEN = "0A"


def listening_ports(dagster_dir: Path) -> frozenset[int]:
    """Return the ports that processes of the deployment with this Dagster folder listen on."""
    ports_by_inode = dict(_read_listeners())
    if not ports_by_inode:
        return frozenset()
    marker = b"RECORDER_DAGSTER_DIR=" + os.fsencode(dagster_dir)
    ports: set[int] = set()
    for process in _find_own_processes(marker):
        ports.update(
            ports_by_inode[inode] for inode in _read_socket_inodes(process) if inode in ports_by_inode
        )
    return frozenset(ports)


def _read_listeners() -> Iterator[tuple[str, int]]:
    """Yield inode and port of every socket of this network that listens."""
    for name in ("tcp", "tcp6"):
        try:
            lines = (_PROC / "net" / name).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            columns = line.split()
            if columns[3] == _LISTEN:
                yield columns[9], int(columns[1].rpartition(":")[2], 16)


def _find_own_processes(marker: bytes) -> Iterator[Path]:
    """Yield the folders of processes that were started with this variable."""
    for folder in _PROC.iterdir():
        if not folder.name.isdigit():
            continue
        try:
            variables = (folder / "environ").read_bytes()
        except OSError:  # it has ended, or belongs to another user
            continue
        if marker in variables.split(b"\0"):
            yield folder


def _read_socket_inodes(process: Path) -> Iterator[str]:
    try:
        descriptors = list((process / "fd").iterdir())
    except OSError:
        return
    for descriptor in descriptors:
        try:
            target = str(descriptor.readlink())
        except OSError:
            continue
        if target.startswith("socket:["):
            yield target[8:-1]


#: Returns the addresses of a host, as text; none where it does not resolve.
Resolve = Callable[[str], Awaitable[list[str]]]

_LOOK_UP_S = 2.0
# Cached for so long: reading all of /proc takes milliseconds, and a name look-up a round trip.
_PORTS_KEPT_S = 1.0
_NAMES_KEPT_S = 30.0
_LOCAL_NAMES = ("localhost", "")
_DEFAULT_PORTS = {
    "http": 80,
    "https": 443,
    "redis": 6379,
    "rediss": 6379,
    "valkey": 6379,
    "postgresql": 5432,
    "postgres": 5432,
    "ftp": 21,
    "sftp": 22,
    "ssh": 22,
    "smb": 445,
    "hdfs": 8020,
    "webhdfs": 9870,
    "tcp": 8786,
    "tls": 8786,
    "dask": 8786,
}
_HOST_PORT = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.%]+)\]|(?P<host>[^\[\]:/@\s]+)):(?P<port>[0-9]{1,5})")
# Networks whose addresses carry an IPv4 address in these bits.
_CARRIERS: tuple[tuple[IPv6Network, int], ...] = (
    (IPv6Network("64:ff9b::/96"), 0),
    (IPv6Network("::/96"), 0),
    (IPv6Network("2002::/16"), 80),
)


@dataclass(frozen=True)
class HostPort:
    """One host and port of the deployment."""

    host: str
    port: int


class OwnAddresses:
    """Set of the addresses that this deployment listens on or speaks to."""

    def __init__(
        self,
        endpoints: Iterable[HostPort],
        *,
        find_ports: Callable[[], frozenset[int]] = frozenset,
        resolve: Resolve | None = None,
        ports_kept_s: float = _PORTS_KEPT_S,
    ) -> None:
        """Create a set.

        Args:
            endpoints: hosts and ports from the settings.
            find_ports: returns the ports that the deployment's processes listen on now.
            resolve: function that looks up the names of endpoints.
            ports_kept_s: time for which the ports are not found again.
        """
        self._endpoints = tuple(dict.fromkeys(endpoints))
        self._find_ports = find_ports
        self._resolve = resolve
        self._ports_kept_s = ports_kept_s
        self._ports: frozenset[int] = frozenset()
        self._ports_until = float("-inf")
        self._lock = threading.Lock()
        self._names: dict[str, tuple[frozenset[IPAddress], float]] = {}

    @classmethod
    def of(cls, settings: Settings, resolve: Resolve) -> "OwnAddresses":
        """Return the addresses of the deployment with these settings."""
        folder = find_dagster_folder(settings)
        return cls(list_own_endpoints(settings), find_ports=lambda: listening_ports(folder), resolve=resolve)

    async def contains_target(self, host: str, port: int, addresses: Sequence[IPAddress]) -> bool:
        """Return whether a target is this deployment's own, by its name or by any of its addresses."""
        on_port = [endpoint for endpoint in self._endpoints if endpoint.port == port]
        if any(endpoint.host == host for endpoint in on_port):
            return True
        spellings = {spelling for address in addresses for spelling in _list_own_address_spellings(address)}
        if any(is_own_machine_address(address) for address in spellings):
            if any(_is_own_machine_name(endpoint.host) for endpoint in on_port):
                return True
            if port in await self._read_ports():
                return True
        for endpoint in on_port:
            own_addresses = await self._look_up(endpoint.host)
            # The name of this machine may lead to another of its addresses.
            if own_addresses & spellings or (
                any(map(is_own_machine_address, own_addresses))
                and any(map(is_own_machine_address, spellings))
            ):
                return True
        return False

    async def _read_ports(self) -> frozenset[int]:
        """Return the ports on which this deployment listens, read again after a while."""
        if time.monotonic() < self._ports_until:
            return self._ports
        return await asyncio.to_thread(self._renew_ports)

    def _renew_ports(self) -> frozenset[int]:
        with self._lock:  # of many calls that meet here, one reads
            if time.monotonic() >= self._ports_until:
                self._ports = self._find_ports()
                self._ports_until = time.monotonic() + self._ports_kept_s
            return self._ports

    async def _look_up(self, host: str) -> frozenset[IPAddress]:
        """Return the addresses of an endpoint; those of the last look-up while its name does not resolve."""
        address = read_ip_address(host)
        if address is not None:
            return frozenset((address,))
        addresses, until = self._names.get(host, (frozenset(), float("-inf")))
        if time.monotonic() < until or self._resolve is None:
            return addresses
        with suppress(TimeoutError):
            async with asyncio.timeout(_LOOK_UP_S):
                addresses = frozenset(map(parse_resolved_address, await self._resolve(host))) or addresses
        self._names[host] = (addresses, time.monotonic() + _NAMES_KEPT_S)
        return addresses


def is_own_machine_address(address: IPAddress) -> bool:
    """Return whether an address is one of this machine's: only those can be bound."""
    if address.is_loopback or address.is_unspecified:
        return True
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((str(address), 0))
    except OSError:
        return False
    return True


def list_own_endpoints(settings: Settings) -> list[HostPort]:
    """Return every host and port that the settings and the stores' own variables name."""
    urls = [
        settings.public_url,
        settings.database_url,
        settings.redis_url,
        settings.s3_endpoint,
        settings.gcs_endpoint,
        settings.azure_endpoint,
        settings.blob_url,
        settings.lake_url,
        settings.export_url,
        settings.cold_url,
        settings.export_executor,
        *list_store_address_settings(),
    ]
    endpoints = [endpoint for url in urls if url for endpoint in _parse_own_host_ports(url)]
    for word in settings.own_addresses:
        parts = _HOST_PORT.fullmatch(word)
        if parts is not None:
            endpoints.append(HostPort(_normalize_own_host(parts["v6"] or parts["host"]), int(parts["port"])))
    return endpoints


def _parse_own_host_ports(url: str) -> list[HostPort]:
    """Return the hosts and ports of one address; a database may have several."""
    if "://" not in url:  # a folder, or `host:port` as some stores' variables take it
        parts = _HOST_PORT.fullmatch(url)
        return (
            [HostPort(_normalize_own_host(parts["v6"] or parts["host"]), int(parts["port"]))] if parts else []
        )
    scheme, _, rest = url.rpartition("://")
    scheme = scheme.rpartition("::")[2].partition("+")[0].lower()
    default = _DEFAULT_PORTS.get(scheme)
    if default is None:
        return []
    authority = re.split(r"[/?#]", rest, maxsplit=1)[0].rpartition("@")[2]
    hosts = authority.split(",")
    if default == 5432:
        query = parse_qs(urlsplit(f"//{rest}").query)
        hosts += ",".join(query.get("host", [])).split(",") if "host" in query else []
        default = int((query.get("port") or ["5432"])[0].partition(",")[0] or 5432)
    endpoints = []
    for host in hosts:
        parts = _HOST_PORT.fullmatch(host)
        name = (parts["v6"] or parts["host"]) if parts else host.strip("[]")
        # A server on a socket of this machine mostly listens on the same number of a port too.
        is_socket = not name or name.startswith("/") or "%2F" in name.upper()
        endpoints.append(
            HostPort(
                "localhost" if is_socket else _normalize_own_host(name),
                int(parts["port"]) if parts else default,
            )
        )
    return endpoints


def _normalize_own_host(host: str) -> str:
    """Return a host in the form that a target has."""
    address = read_ip_address(host)
    return str(address) if address is not None else host.lower().rstrip(".")


def _is_own_machine_name(host: str) -> bool:
    if host in _LOCAL_NAMES or host.endswith(".localhost"):
        return True
    address = read_ip_address(host)
    return address is not None and is_own_machine_address(address)


def _list_own_address_spellings(address: IPAddress) -> list[IPAddress]:
    """Return an address and the IPv4 address that it carries inside, if any."""
    if isinstance(address, IPv6Address):
        for network, shift in _CARRIERS:
            if address in network:
                return [address, IPv4Address((int(address) >> shift) & 0xFFFFFFFF)]
    return [address]
