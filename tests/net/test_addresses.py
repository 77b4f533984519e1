"""Addresses that may be called, and the parsing of URLs; pure. Contract §6."""

import asyncio
from ipaddress import IPv4Address, IPv6Address, ip_address

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from recorder.errors import InvalidUrl, UrlNotAllowed
from recorder.net.addresses import (
    AllowList,
    InvalidAllowList,
    is_public_address,
    parse_called_address,
    read_ip_address,
)
from recorder.net.outbound_guard import AddressGuard

WORDS = ("loopback", "10.1.0.0/16", "192.168.7.9", "fd00:12::/32", "Hooks.Internal.")


@pytest.mark.parametrize(
    ("host", "address", "expected"),
    [
        ("127.0.0.1", "127.0.0.1", True),
        ("127.9.9.9", "127.9.9.9", True),
        ("::1", "::1", True),
        ("10.1.2.3", "10.1.2.3", True),
        ("10.2.2.3", "10.2.2.3", False),
        ("192.168.7.9", "192.168.7.9", True),
        ("192.168.7.8", "192.168.7.8", False),
        ("fd00:12::1", "fd00:12::1", True),
        ("fd00:13::1", "fd00:13::1", False),
        ("hooks.internal", "172.16.0.1", True),
        ("other.internal", "172.16.0.1", False),
        ("sub.hooks.internal", "172.16.0.1", False),
        ("93.184.216.34", "93.184.216.34", False),
    ],
)
def test_an_operator_lists_hosts_addresses_and_networks(host: str, address: str, expected: bool) -> None:
    assert AllowList.parse(WORDS).contains(host, 443, ip_address(address)) is expected


@pytest.mark.parametrize(
    ("word", "host", "port", "expected"),
    [
        ("127.0.0.1:9000", "127.0.0.1", 9000, True),
        ("127.0.0.1:9000", "127.0.0.1", 9001, False),
        ("127.1:9000", "127.0.0.1", 9000, True),
        ("[::1]:9000", "::1", 9000, True),
        ("[::ffff:127.0.0.1]:9000", "127.0.0.1", 9000, True),
    ],
)
def test_an_operator_lists_an_address_with_one_port(word: str, host: str, port: int, expected: bool) -> None:
    assert AllowList.parse((word,)).contains("hooks.example", port, ip_address(host)) is expected


@pytest.mark.parametrize(
    "word",
    [
        "[hooks]:9",
        "127.0.0.1:0",
        "127.0.0.1:65536",
        "10.0.0.1/8",
        "10.0.0.0/33",
        "hooks.internal/8",
        "fd00::/129",
        "10",
        "a b",
        "abc:def",
        "[::1]",
    ],
)
def test_a_word_that_names_no_host_and_no_network_is_refused_at_the_start(word: str) -> None:
    with pytest.raises(InvalidAllowList, match="RECORDER_ALLOWED_OUTBOUND"):
        AllowList.parse((word,))


@example(ip_address("224.0.0.1"))
@example(ip_address("239.255.255.250"))
@example(ip_address("ff0e::1"))
@given(st.ip_addresses())
def test_what_is_public_is_global_and_one_host_s(address: IPv4Address | IPv6Address) -> None:
    if is_public_address(address):
        assert address.is_global
        assert not (address.is_multicast or address.is_private or address.is_reserved)
        assert address.version == 4 or int(address) >> 125 == 1  # 2000::/3, all that is handed out


@pytest.mark.parametrize(
    "text", ["8.8.8.8", "93.184.216.34", "2606:4700::1111", "2a00:1450:4001::1", "1.0.0.1"]
)
def test_public_addresses_are_public(text: str) -> None:
    assert is_public_address(ip_address(text))


@pytest.mark.parametrize(
    "text",
    [
        "100.100.100.200",
        "168.63.129.16",
        "192.0.0.9",
        "192.88.99.1",
        "240.0.0.1",
        "255.255.255.255",
        "2001:0:4136:e378:8000:63bf:3fff:fdd2",
        "2001:4:112::1",
        "2001:db8::1",
        "2002:7f00:1::1",
        "2002:808:808::1",
        "3fff::1",
        "64:ff9b::7f00:1",
    ],
)
def test_addresses_that_lead_elsewhere_are_not_public(text: str) -> None:
    assert not is_public_address(ip_address(text))


def test_names_of_this_machine_are_not_asked_of_a_name_server() -> None:
    requests: list[str] = []

    async def resolve(host: str) -> list[str]:
        requests.append(host)
        return ["93.184.216.34"]

    guard = AddressGuard(AllowList.parse(()), resolve)
    for url in ("https://localhost/", "https://api.localhost/"):
        with pytest.raises(UrlNotAllowed):
            asyncio.run(guard.check(url))
    asyncio.run(guard.check("https://hooks.example/"))
    assert requests == ["hooks.example"]


def test_pages_do_not_read_services_on_a_public_address_of_this_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def resolve(_: str) -> list[str]:
        return ["93.184.216.34"]

    live = AddressGuard(AllowList.parse(()), resolve, takes_http=True)
    listing = AddressGuard(AllowList.parse(("93.184.216.34",)), resolve, takes_http=True)
    asyncio.run(live.check("http://shop.example:9100/"))
    monkeypatch.setattr("recorder.net.outbound_guard.is_own_machine_address", lambda _: True)
    with pytest.raises(UrlNotAllowed):
        asyncio.run(live.check("http://shop.example:9100/"))
    asyncio.run(listing.check("http://shop.example:9100/"))


@given(st.ip_addresses(v=4))
def test_every_spelling_of_an_address_is_the_same_address(address: IPv4Address) -> None:
    number = int(address)
    high, low = divmod(number, 1 << 24)
    spellings = (str(number), hex(number), f"0{number:o}", f"{high}.{low}", f"0x{high:x}.{low}")
    assert {read_ip_address(text) for text in (*spellings, f"::ffff:{address}")} == {address}


@pytest.mark.parametrize(
    ("url", "host", "port", "path"),
    [
        ("https://Example.COM", "example.com", 443, "/"),
        ("HTTPS://example.com:8443/a/b?c=d&e", "example.com", 8443, "/a/b?c=d&e"),
        ("https://example.com?x", "example.com", 443, "/?x"),
        ("https://bücher.example/ä", "xn--bcher-kva.example", 443, "/%C3%A4"),
        ("https://example.com/%2e%2e/a", "example.com", 443, "/%2e%2e/a"),
        ("http://[2606:2800:220:1:0:0:0:1]/", "2606:2800:220:1::1", 80, "/"),
        ("https://a_b.example./", "a_b.example", 443, "/"),
    ],
)
def test_a_url_is_read_into_one_target(url: str, host: str, port: int, path: str) -> None:
    target = parse_called_address(url)
    assert (target.host, target.port, target.path) == (host, port, path)


def test_a_url_with_a_user_is_refused_with_its_reason() -> None:
    with pytest.raises(InvalidUrl, match="names no user"):
        parse_called_address("https://ada:secret@example.com/")


def test_a_backslash_is_refused() -> None:
    with pytest.raises(InvalidUrl, match="printable characters"):
        parse_called_address("https://example.com/a\\b")


@pytest.mark.parametrize("host", ["2130706433", "0x7f.1", "127.1"])
def test_a_host_that_ends_in_a_number_is_an_address(host: str) -> None:
    assert parse_called_address(f"https://{host}/").address == ip_address("127.0.0.1")


@given(st.text(max_size=60))
def test_no_text_breaks_the_reading(text: str) -> None:
    for url in (text, f"https://{text}", f"https://example.com/{text}", f"https://example.com:{text}/"):
        try:
            target = parse_called_address(url)
        except InvalidUrl:
            continue
        assert target.host.isascii() and target.path.isascii() and 0 < target.port < 65_536
        assert not set(target.path + target.host) & set(" \r\n\t\0#\\")
