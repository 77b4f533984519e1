"""Hostile addresses; run by tests/net/test_outbound.py, in a network that has only loopback. Contract §6."""

import asyncio

import pytest

from recorder.errors import InvalidUrl, UrlNotAllowed
from recorder.net.addresses import AllowList
from recorder.net.outbound_client import OutboundClient
from recorder.net.outbound_guard import AddressGuard
from tests.support.isolated_calls import PUBLIC, Dialer, Resolver, call

PUBLIC_6 = "2606:2800:220:1::1"
#: (case of the corpus, host, what registration says of `https://<host>/`); none of them is ever dialled.
HOSTILE: list[tuple[int, str, type[Exception]]] = [
    *(
        (59, host, UrlNotAllowed)
        for host in (
            "127.0.0.1",
            "127.255.255.254",
            "0.0.0.0",
            "10.0.0.1",
            "172.16.0.1",
            "172.31.255.255",
            "192.168.1.1",
            "100.64.0.1",
            "198.18.0.1",
            "192.0.0.8",
            "192.88.99.1",
            "192.0.2.1",
            "224.0.0.1",
            "239.255.255.250",
            "240.0.0.1",
            "255.255.255.255",
            "localhost",
            "sub.localhost",
            "LOCALHOST",
        )
    ),
    *(
        (60, host, UrlNotAllowed)
        for host in (
            "2130706433",
            "0x7f000001",
            "0x7f.0x0.0x0.0x1",
            "0177.0.0.1",
            "017700000001",
            "127.1",
            "127.0.1",
            "0",
            "0x0",
            "①②⑦.⓪.⓪.①",
            "127。0。0。1",
            "１２７.0.0.1",
            "127.0.0.1.",
            "localhost.",
            "ⓛocalhost",
            "2852039166",
            "0xa9fea9fe",
            "0251.0376.0251.0376",
        )
    ),
    *(
        (61, f"[{host}]", UrlNotAllowed)
        for host in (
            "::1",
            "::",
            "0:0:0:0:0:0:0:1",
            "::ffff:127.0.0.1",
            "::ffff:7f00:1",
            "::ffff:169.254.169.254",
            "::127.0.0.1",
            "::ffff:0:127.0.0.1",
            "64:ff9b::7f00:1",
            "64:ff9b:1::1",
            "2002:7f00:1::",
            "2001::1",
            "2001:db8::1",
            "100::1",
            "fc00::1",
            "fe80::1",
            "fe80::1%25eth0",
            "fec0::1",
            "3fff::1",
            "5f00::1",
            "ff02::1",
        )
    ),
    *(
        (62, host, UrlNotAllowed)
        for host in (
            "169.254.169.254",
            "[fd00:ec2::254]",
            "100.100.100.200",
            "168.63.129.16",
            "metadata.internal.example",
        )
    ),
    *(
        (60, host, InvalidUrl)
        for host in (
            "256.256.256.256",
            "1.2.3.4.5",
            "0x",
            "08.1",
            "127.0.0.1%00",
            "a..b",
            "-a.example",
            "[::1",
        )
    ),
]


@pytest.mark.parametrize(("case", "host", "refusal"), HOSTILE)
def test_a_hostile_host_is_refused_at_registration_and_never_dialled(
    case: int, host: str, refusal: type[Exception]
) -> None:
    resolve, dialer = Resolver(["169.254.169.254"]), Dialer()
    for scheme in ("https", "http"):
        with pytest.raises(refusal):
            asyncio.run(AddressGuard(AllowList.parse(()), resolve).check(f"{scheme}://{host}/hooks"))
        exchange = call(f"{scheme}://{host}/hooks", resolve=resolve, dial=dialer)
        assert (exchange.error, exchange.status) == ("blocked_address", None)
    assert dialer.dialled == []


def test_the_corpus_is_no_smaller_than_it_was() -> None:
    assert len(HOSTILE) >= 70


@pytest.mark.parametrize("host", [PUBLIC, f"[{PUBLIC_6}]", "hooks.example"])
def test_a_public_host_is_dialled_at_the_address_that_was_checked(host: str) -> None:
    dialer = Dialer()
    asyncio.run(AddressGuard(AllowList.parse(()), Resolver([PUBLIC])).check(f"https://{host}:8443/"))
    assert call(f"https://{host}:8443/", dial=dialer).error == "connection"
    assert dialer.dialled == [(PUBLIC_6 if ":" in host else PUBLIC, 8443)]


def test_a_name_that_turns_to_a_private_address_is_blocked_at_the_call() -> None:
    resolve, dialer = Resolver([PUBLIC], ["127.0.0.1"]), Dialer()
    asyncio.run(AddressGuard(AllowList.parse(()), resolve).check("https://rebinding.example/"))
    assert call("https://rebinding.example/", resolve=resolve, dial=dialer).error == "blocked_address"
    assert dialer.dialled == []


def test_a_name_is_resolved_once_for_a_call() -> None:
    resolve, dialer = Resolver([PUBLIC], ["127.0.0.1"]), Dialer()
    call("https://rebinding.example/", resolve=resolve, dial=dialer)
    assert (resolve.asked, dialer.dialled) == (["rebinding.example"], [(PUBLIC, 443)])


@pytest.mark.parametrize("bad", ["127.0.0.1", "10.0.0.1", "::1", "fe80::1%1", "64:ff9b::a9fe:a9fe"])
def test_one_bad_address_among_good_ones_blocks_them_all(bad: str) -> None:
    dialer = Dialer()
    exchange = call("https://mixed.example/", resolve=Resolver([PUBLIC, bad, PUBLIC_6]), dial=dialer)
    assert (exchange.error, dialer.dialled) == ("blocked_address", [])


def test_http_is_for_what_the_operator_lists_alone() -> None:
    dialer = Dialer()
    assert call("http://hooks.example/", dial=dialer).error == "blocked_address"
    assert call("http://hooks.example/", allowed=("hooks.example",), dial=dialer).error == "connection"
    assert call(f"http://{PUBLIC}/", allowed=("93.184.216.0/24",), dial=dialer).error == "connection"
    assert dialer.dialled == [(PUBLIC, 80), (PUBLIC, 80)]


def test_a_name_that_does_not_resolve_is_told() -> None:
    dialer = Dialer()
    assert call("https://nowhere.example/", resolve=Resolver([]), dial=dialer).error == "dns"
    assert dialer.dialled == []


def test_the_resolver_of_this_machine_knows_loopback_and_nothing_else_here() -> None:
    client = OutboundClient(AddressGuard(AllowList.parse(("loopback",))))
    assert asyncio.run(client.post("https://hooks.example/", {}, b"")).error == "dns"
