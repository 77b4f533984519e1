"""The one door for calls to addresses that somebody else chose. Contract §6; docs/decisions/0015."""

import asyncio
import socket
import threading
from collections.abc import Iterable
from contextlib import suppress
from ipaddress import IPv4Address, IPv6Address

import httpcore

from recorder.errors import UrlNotAllowed
from recorder.net.addresses import Address, AllowList, Target, is_public, parse_resolved, read_url
from recorder.net.own_addresses import OwnAddresses, Resolve, is_local
from recorder.settings import Settings

#: How long a registration waits for the name; a slower one is checked at each call anyway.
_LOOK_UP_S = 3.0
_LOCALHOST = (IPv4Address("127.0.0.1"), IPv6Address("::1"))
# Of several addresses the first may be a dead end; the last one may take all the time that is left.
_CONNECT_S = 3.0


class BlockedAddress(Exception):
    """A call that would have left the public internet; nothing was dialled."""


class OwnAddress(BlockedAddress):
    """A call that would have reached this deployment itself, or what it works with."""


class UnresolvedName(Exception):
    """A host without an address."""


class Guard:
    """Says which targets may be called, and checks every address again right before it is dialled."""

    def __init__(
        self, allowed: AllowList, resolve: Resolve | None = None, *, own: OwnAddresses | None = None
    ) -> None:
        """Take the rules.

        Args:
            allowed: what the operator lists beyond public addresses.
            resolve: looks up names; by default this machine's resolver.
            own: what is refused whatever is listed; by default nothing.
        """
        self._allowed = allowed
        self._resolve = resolve or resolve_host
        self._own = own or OwnAddresses(())

    @classmethod
    def of(cls, settings: Settings) -> "Guard":
        """Return the guard of the deployment with these settings.

        Raises:
            InvalidAllowList: if the setting of addresses beyond the public ones cannot be read.
        """
        allowed = AllowList.parse(settings.allowed_outbound)
        return cls(allowed, own=OwnAddresses.of(settings, resolve_host))

    async def check(self, url: str) -> None:
        """Refuse a URL that could not be called, or may not be.

        A name that does not resolve now passes: it may do so later, and is checked at every call.

        Raises:
            InvalidUrl: if it cannot be read.
            UrlNotAllowed: if it is not https, or leads to an address that is not public.
        """
        target = read_url(url)
        try:
            async with asyncio.timeout(_LOOK_UP_S):
                await self.addresses(target)
        except OwnAddress as error:
            raise UrlNotAllowed(_OWN) from error
        except BlockedAddress as error:
            raise UrlNotAllowed(_why(target)) from error
        except (UnresolvedName, TimeoutError) as error:
            if target.scheme == "http" and not self._allowed.lists_name(target.host, target.port):
                raise UrlNotAllowed(_why(target)) from error

    async def addresses(self, target: Target) -> list[Address]:
        """Where to dial for a target; its name is resolved once.

        Raises:
            BlockedAddress: if any of its addresses may not be called.
            OwnAddress: if any of them, or the name, is this deployment's own.
            UnresolvedName: if it has none.
        """
        if await self._own.hold(target.host, target.port, ()):
            raise OwnAddress
        found = [target.address] if target.address is not None else await self._look_up(target.host)
        if not found:
            raise UnresolvedName
        if not all(self._may_call(target, address) for address in found):
            raise BlockedAddress
        if await self._own.hold(target.host, target.port, found):
            raise OwnAddress
        return found

    def may_keep_answer(self, target: Target, address: Address) -> bool:
        """Return whether a tenant may read what came back from this address.

        Services of this machine often trust whoever reaches them, so the answers of its own addresses are
        kept only for a `host:port` that the operator lists.
        """
        return not is_local(address) or self._allowed.lists_place(target.host, target.port, address)

    async def _look_up(self, host: str) -> list[Address]:
        # RFC 6761: what these names stand for is not for a name server to say.
        if host == "localhost" or host.endswith(".localhost"):
            return list(_LOCALHOST)
        if host.endswith(".invalid"):
            return []
        return list(dict.fromkeys(map(parse_resolved, await self._resolve(host))))

    def _may_call(self, target: Target, address: Address) -> bool:
        if self._allowed.lists(target.host, target.port, address):
            return True
        return target.scheme == "https" and is_public(address)


class GuardedBackend(httpcore.AsyncNetworkBackend):
    """Dials what the guard lets through; Host and SNI stay those of the URL. Other sockets it has none."""

    def __init__(self, guard: Guard, target: Target, dial: httpcore.AsyncNetworkBackend) -> None:
        self._guard = guard
        self._target = target
        self._dial = dial
        #: Address of the connection; None until one was made.
        self.dialled: Address | None = None

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109  (the interface is httpcore's)
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """A connection to the first checked address that answers.

        Raises:
            BlockedAddress, UnresolvedName: before anything is dialled.
            httpcore.ConnectError, httpcore.ConnectTimeout: if none answers.
        """
        *others, last = await self._guard.addresses(self._target)
        for address in others:
            with suppress(httpcore.ConnectError, httpcore.ConnectTimeout):
                stream = await self._dial.connect_tcp(str(address), port, timeout=_CONNECT_S)
                self.dialled = address
                return stream
        stream = await self._dial.connect_tcp(str(last), port, timeout=timeout)
        self.dialled = last
        return stream


# A thread that asks a silent name server stays for as long as the resolver does.
_look_ups = threading.BoundedSemaphore(64)


async def resolve_host(host: str) -> list[str]:
    """The addresses that this machine's resolver gives for a host; none where it gives none, or is overrun.

    A thread for each look-up: it cannot be cancelled, and one that hangs must hold up neither the others
    nor the end of the process.
    """
    loop = asyncio.get_running_loop()
    found: asyncio.Future[list[str]] = loop.create_future()

    def tell(addresses: list[str]) -> None:
        if not found.done():
            found.set_result(addresses)

    def look_up() -> None:
        try:
            addresses = _ask_resolver(host)
        finally:
            _look_ups.release()
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(tell, addresses)

    if not _look_ups.acquire(blocking=False):
        return []
    threading.Thread(target=look_up, name="resolve", daemon=True).start()
    return await found


def _ask_resolver(host: str) -> list[str]:
    try:
        answers = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []
    return [str(answer[4][0]) for answer in answers]


_OWN = "url leads to an address that this service uses itself; give the address of your own receiver."


def _why(target: Target) -> str:
    if target.scheme == "http":
        return "url takes https; http is for addresses that the operator lists."
    return "url leads to an address that is not public; the operator may list it."
