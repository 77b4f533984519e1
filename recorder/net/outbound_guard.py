"""Guard for calls to addresses that tenants choose. Contract §6; docs/decisions/0015."""

import asyncio
import socket
import threading
from collections.abc import Iterable
from contextlib import suppress
from ipaddress import IPv4Address, IPv6Address

import httpcore

from recorder.errors import UrlNotAllowed
from recorder.net.addresses import (
    AllowList,
    CalledAddress,
    IPAddress,
    is_public_address,
    parse_called_address,
    parse_resolved_address,
)
from recorder.net.bounded_stream import BoundedStream
from recorder.net.deployment_addresses import OwnAddresses, Resolve, is_own_machine_address
from recorder.settings import Settings

#: Longest name look-up of a registration; every call checks the address again.
_LOOK_UP_S = 3.0
_LOCALHOST = (IPv4Address("127.0.0.1"), IPv6Address("::1"))
# Longest connection attempt, except for the last address, which may use the time that is left.
_CONNECT_S = 3.0


class BlockedAddress(Exception):
    """The target has an address that may not be called; nothing was dialled."""


class OwnAddress(BlockedAddress):
    """The target is this deployment itself, or a service that it uses."""


class UnresolvedName(Exception):
    """The host has no address."""


class AddressGuard:
    """Check of targets, at registration and again right before each connection."""

    def __init__(
        self,
        allowed: AllowList,
        resolve: Resolve | None = None,
        *,
        own_addresses: OwnAddresses | None = None,
        takes_http: bool = False,
    ) -> None:
        """Create a guard.

        Args:
            allowed: addresses that the operator lists beyond the public ones.
            resolve: function that looks up names; by default this machine's resolver.
            own_addresses: addresses that are refused even if they are listed; by default none.
            takes_http: allow public addresses without TLS too.
        """
        self._allowed = allowed
        self._resolve = resolve or resolve_outbound_host
        self._own_addresses = own_addresses or OwnAddresses(())
        self._takes_http = takes_http

    @classmethod
    def of(cls, settings: Settings) -> "AddressGuard":
        """Return the guard of the deployment with these settings.

        Raises:
            InvalidAllowList: if the setting of addresses beyond the public ones cannot be read.
        """
        allowed = AllowList.parse(settings.allowed_outbound)
        return cls(allowed, own_addresses=OwnAddresses.of(settings, resolve_outbound_host))

    @classmethod
    def of_browser(cls, settings: Settings) -> "AddressGuard":
        """Return the guard of live replays, which may open public pages without TLS too.

        Raises:
            InvalidAllowList: if the setting of addresses beyond the public ones cannot be read.
        """
        allowed = AllowList.parse(settings.browser.outbound, setting="RECORDER_LIVE_OUTBOUND")
        return cls(allowed, own_addresses=OwnAddresses.of(settings, resolve_outbound_host), takes_http=True)

    async def check(self, url: str) -> None:
        """Check that a URL can and may be called.

        A name that does not resolve now passes: it may resolve later, and every call checks it.

        Raises:
            InvalidUrl: if the URL cannot be read.
            UrlNotAllowed: if the URL is not https, or leads to an address that is not public.
        """
        target = parse_called_address(url)
        try:
            async with asyncio.timeout(_LOOK_UP_S):
                await self.resolve_allowed_addresses(target)
        except OwnAddress as error:
            raise UrlNotAllowed(_OWN_ADDRESS_REFUSED) from error
        except BlockedAddress as error:
            raise UrlNotAllowed(_explain_outbound_refusal(target)) from error
        except (UnresolvedName, TimeoutError) as error:
            if target.scheme == "http" and not self._allowed.contains_name(target.host, target.port):
                raise UrlNotAllowed(_explain_outbound_refusal(target)) from error

    async def resolve_allowed_addresses(self, target: CalledAddress) -> list[IPAddress]:
        """Return the addresses to dial for a target; its name is resolved once.

        Raises:
            BlockedAddress: if any of its addresses may not be called.
            OwnAddress: if any of them, or the name, belongs to this deployment.
            UnresolvedName: if the name has none.
        """
        if await self._own_addresses.contains_target(target.host, target.port, ()):
            raise OwnAddress
        addresses = [target.address] if target.address is not None else await self._resolve_host(target.host)
        if not addresses:
            raise UnresolvedName
        if not all(self._may_call_address(target, address) for address in addresses):
            raise BlockedAddress
        if await self._own_addresses.contains_target(target.host, target.port, addresses):
            raise OwnAddress
        return addresses

    def may_keep_answer(self, target: CalledAddress, address: IPAddress) -> bool:
        """Return whether a tenant may read the answer of this address.

        Services of this machine often trust every local caller, so the answers of its own addresses are
        kept only for a `host:port` that the operator lists.
        """
        return not is_own_machine_address(address) or self._allowed.contains_host_port(
            target.host, target.port, address
        )

    async def _resolve_host(self, host: str) -> list[IPAddress]:
        # RFC 6761: a name server does not decide about these names.
        if host == "localhost" or host.endswith(".localhost"):
            return list(_LOCALHOST)
        if host.endswith(".invalid"):
            return []
        return list(dict.fromkeys(map(parse_resolved_address, await self._resolve(host))))

    def _may_call_address(self, target: CalledAddress, address: IPAddress) -> bool:
        if self._allowed.contains(target.host, target.port, address):
            return True
        if self._takes_http and is_own_machine_address(address):
            return False  # a page could read services of this machine that trust its own addresses
        return (target.scheme == "https" or self._takes_http) and is_public_address(address)


class GuardedBackend(httpcore.AsyncNetworkBackend):
    """Network backend that dials only addresses that the guard allows; Host and SNI stay those of the URL."""

    def __init__(
        self, guard: AddressGuard, target: CalledAddress, dial: httpcore.AsyncNetworkBackend
    ) -> None:
        self._guard = guard
        self._target = target
        self._dial = dial
        #: Address of the connection; None until one was made.
        self.dialled: IPAddress | None = None

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109  (the interface is httpcore's)
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Connect to the first checked address that answers; of its answer a bounded part is read.

        Raises:
            BlockedAddress, UnresolvedName: before anything is dialled.
            httpcore.ConnectError, httpcore.ConnectTimeout: if none answers.
        """
        *others, last = await self._guard.resolve_allowed_addresses(self._target)
        for address in others:
            with suppress(httpcore.ConnectError, httpcore.ConnectTimeout):
                stream = await self._dial.connect_tcp(str(address), port, timeout=_CONNECT_S)
                self.dialled = address
                return BoundedStream(stream)
        stream = await self._dial.connect_tcp(str(last), port, timeout=timeout)
        self.dialled = last
        return BoundedStream(stream)


# A thread that waits for a silent name server lives as long as the resolver waits, 30 s with three servers.
# The webhooks of one workspace make 128 calls at once, of 10 s each: their look-ups must leave threads to
# others, whose calls would fail.
_look_ups = threading.BoundedSemaphore(1_024)


async def resolve_outbound_host(host: str) -> list[str]:
    """Return the addresses of a host by this machine's resolver; none if it has none or is overloaded.

    Each look-up has a thread: it cannot be cancelled, and one that hangs must delay neither the others nor
    the end of the process.
    """
    loop = asyncio.get_running_loop()
    result: asyncio.Future[list[str]] = loop.create_future()

    def set_result(addresses: list[str]) -> None:
        if not result.done():
            result.set_result(addresses)

    def look_up() -> None:
        try:
            addresses = _query_resolver(host)
        finally:
            _look_ups.release()
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(set_result, addresses)

    if not _look_ups.acquire(blocking=False):
        return []
    threading.Thread(target=look_up, name="resolve", daemon=True).start()
    return await result


def _query_resolver(host: str) -> list[str]:
    try:
        answers = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []
    return [str(answer[4][0]) for answer in answers]


_OWN_ADDRESS_REFUSED = (
    "url leads to an address that this service uses itself; give the address of your own receiver."
)


def _explain_outbound_refusal(target: CalledAddress) -> str:
    if target.scheme == "http":
        return "url takes https; http is for addresses that the operator lists."
    return "url leads to an address that is not public; the operator may list it."
