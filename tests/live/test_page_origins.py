"""Origins of pages: an input is typed on the site of the recording alone. Contract §8."""

import pytest

from recorder.live.live_page import has_same_live_page_origin, map_live_page_url


@pytest.mark.parametrize(
    ("url", "other"),
    [
        ("https://erp.example/pay?x=1#y", "https://erp.example:443/"),
        ("http://ERP.example./", "http://erp.example:80"),
        ("https://[::1]:8443/a", "https://[::1]:8443/b"),
    ],
)
def test_one_origin_is_written_in_several_ways(url: str, other: str) -> None:
    assert has_same_live_page_origin(url, other)


@pytest.mark.parametrize(
    ("url", "other"),
    [
        ("https://erp.example/", "http://erp.example/"),
        ("https://erp.example/", "https://erp.example:8443/"),
        ("https://erp.example:8443/", "http://erp.example:8443/"),
        ("https://erp.example/", "https://erp.example.evil.example/"),
        ("https://erp.example@evil.example/", "https://erp.example/"),
        ("about:blank", "about:blank"),
        ("data:text/html,x", "data:text/html,x"),
        ("https://erp.example:x/", "https://erp.example:x/"),
        ("", ""),
    ],
)
def test_other_schemes_ports_and_hosts_and_addresses_without_a_host_are_other_origins(
    url: str, other: str
) -> None:
    assert not has_same_live_page_origin(url, other)


def test_a_base_address_stands_for_its_own_scheme_and_host() -> None:
    mapped = {"https://erp.example/": "http://127.0.0.1:8080"}
    for same in ("https://erp.example", "https://ERP.example:443", "https://me@erp.example."):
        assert map_live_page_url(f"{same}/pay?x=1#/note", mapped) == "http://127.0.0.1:8080/pay?x=1#/note"
    for other in (
        "https://[x/",
        "https://erp.example\uff0f/",
        "http://erp.example/pay",
        "https://erp.example:8443/pay",
        "https://other.example/pay",
    ):
        assert map_live_page_url(other, mapped) == other
