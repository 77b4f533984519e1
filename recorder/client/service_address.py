"""Service address and API key that a client is given, checked before the first request. Contract §1."""

import os
from ipaddress import ip_address

import httpx


def read_address_and_key(base_url: str | None, key: str | None) -> tuple[str, str]:
    """Return the address and the key that are given, else those of `RECORDER_URL` and `RECORDER_KEY`.

    Without either the address is that of a service on this machine.

    Raises:
        ValueError: if there is no key.
    """
    if base_url is None:
        base_url = os.environ.get("RECORDER_URL") or "http://127.0.0.1:8700"
    if key is None:
        key = os.environ.get("RECORDER_KEY")
        if not key:
            raise ValueError("A client needs an API key: pass it as key, or set RECORDER_KEY.")
    return base_url, key


def parse_service_address(base_url: str, *, name: str = "base_url") -> httpx.URL:
    """Return the address of a service as a URL.

    Args:
        base_url: the address.
        name: subject of the error's sentence.

    Raises:
        ValueError: if it is none.
    """
    example = f"{name} takes an address such as http://127.0.0.1:8700"
    if not isinstance(base_url, str) or not base_url:
        raise ValueError(f"{example}; none is given.")
    if not base_url.lower().startswith(("http://", "https://")):
        raise ValueError(f"{example}; it must begin with http:// or https://.")
    try:
        url = httpx.URL(base_url)
    except httpx.InvalidURL as error:
        raise ValueError(f"{example}; this one cannot be read: {error}.") from error
    if not url.host or url.userinfo:
        raise ValueError(f"{example}, with a host and without a user.")
    if url.path.rstrip("/").endswith("/v1"):
        raise ValueError(f"{example}; leave out /v1, which the client adds.")
    return url


def check_key(key: str, *, name: str = "key") -> None:
    """Check that a header can carry an API key; the message never shows it.

    Args:
        key: the key.
        name: subject of the error's sentence.

    Raises:
        ValueError: if it cannot.
    """
    if not isinstance(key, str) or not key or not key.isascii() or not key.isprintable() or " " in key:
        raise ValueError(f"{name} takes an API key such as nsk_local_…, without spaces.")


def is_loopback_service_host(host: str) -> bool:
    """Return whether a host is this machine by its name or address."""
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"
