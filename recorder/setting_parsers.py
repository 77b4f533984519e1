"""Values of settings: parsers that turn the text of a variable into a checked value. Contract §9.

A parser raises `InvalidSetting`, whose text gives the variable and what it takes.
"""

import os
import re
from collections.abc import Mapping
from ipaddress import ip_network
from pathlib import Path
from typing import Final, NamedTuple

from recorder import limits
from recorder.errors import Invalid

REGIONS: Final = ("us", "eu", "apac")
LOG_LEVELS: Final = ("debug", "info", "warning", "error")
# No name and password: an address ends up in log lines.
_HOST = r"(\[[0-9A-Fa-f:]+\]|[^][/@:\s]+)"
_PASSWORD = re.compile(r"://[^/]*:[^/]*@")
_HOST_PORT = re.compile(rf"{_HOST}:[0-9]{{1,5}}")
_HOST_NAME = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.-]+)(:[0-9]{1,5})?")
_PUBLIC_URL = re.compile(r"https?://[^/?#@\s]+(/[^?#\s]*)?")
_HEADER_NAME = re.compile(r"[A-Za-z0-9-]{1,64}")
_EXECUTOR = re.compile(rf"in_process|processes:[1-9][0-9]{{0,2}}|(dask|tcp|tls)://{_HOST}:[0-9]{{1,5}}")

#: In the path of a folder: the lake decodes `%41`, SQLite's address ends at `?`, fsspec divides one at `::`.
_MEANS_SOMETHING_ELSE = re.compile(r"::|\?|%[0-9A-Fa-f]{2}")


class SessionSize(NamedTuple):
    """Most that one session holds."""

    events: int = 1_000_000
    frames: int = 100_000
    #: Event items as JSON, pictures and DOM snapshots together.
    bytes: int = 10_000_000_000


class ConnectionSettings(NamedTuple):
    """Most connections that may be open to one API process."""

    per_address: int = limits.CONNECTIONS_PER_ADDRESS
    #: Of all addresses; the process's descriptors may allow fewer.
    per_process: int = limits.CONNECTIONS_PER_PROCESS

    def as_env(self) -> dict[str, str]:
        """Return the variables of what differs from the defaults."""
        names = {"per_address": "RECORDER_CONNECTIONS_PER_ADDRESS", "per_process": "RECORDER_CONNECTIONS"}
        default = ConnectionSettings()._asdict()
        return {names[name]: str(most) for name, most in self._asdict().items() if most != default[name]}


class BrowserSettings(NamedTuple):
    """Settings of the browsers of live replays."""

    #: Addresses beyond the public ones that may be reached, as webhooks' allowed addresses are written.
    outbound: tuple[str, ...] = ()
    #: User as whom the browser runs if the service runs as root.
    user: str = "nobody"
    #: Run the browser without its own sandbox.
    no_sandbox: bool = False
    #: Live replays at a time.
    slots: int = 2
    #: Path or name of the browser; None looks for one.
    chromium: str | None = None

    def as_env(self) -> dict[str, str]:
        """Return the variables of what differs from the defaults."""
        texts = {
            "RECORDER_LIVE_OUTBOUND": ",".join(self.outbound),
            "RECORDER_LIVE_USER": self.user if self.user != BrowserSettings().user else "",
            "RECORDER_LIVE_NO_SANDBOX": "1" if self.no_sandbox else "",
            "RECORDER_LIVE_PLACES": str(self.slots) if self.slots != BrowserSettings().slots else "",
            "RECORDER_CHROMIUM": self.chromium or "",
        }
        return {name: text for name, text in texts.items() if text}


class InvalidSetting(Invalid):
    """A setting that cannot be read."""

    def __init__(self, name: str, takes: str) -> None:
        super().__init__(f"{name} takes {takes}.")


class UnknownRegion(InvalidSetting):
    """The setting names no region."""

    code = "unknown_region"

    def __init__(self) -> None:
        super().__init__("RECORDER_REGION", f"one of {', '.join(REGIONS)}")


class UnknownLogLevel(InvalidSetting):
    """The setting names no level of log lines."""

    def __init__(self) -> None:
        super().__init__("RECORDER_LOG_LEVEL", f"one of {', '.join(LOG_LEVELS)}")


def parse_region_setting(text: str) -> str:
    """Return a region.

    Raises:
        UnknownRegion: for any other text.
    """
    if text not in REGIONS:
        raise UnknownRegion
    return text


def parse_log_level(text: str) -> str:
    """Return a level of log lines.

    Raises:
        UnknownLogLevel: for any other text.
    """
    if text not in LOG_LEVELS:
        raise UnknownLogLevel
    return text


class UnusableFolderName(Invalid):
    """The path of a folder cannot be part of the addresses of stores and databases."""

    def __init__(self, folder: Path) -> None:
        super().__init__(
            f"The folder {folder} cannot be used: its path contains `::`, `?`, or `%` with two hex digits, "
            "which stores and databases read as something else. Choose another one."
        )


def require_usable_folder_name(folder: Path) -> Path:
    """Return a folder whose path can be part of addresses.

    Raises:
        UnusableFolderName: if it cannot.
    """
    if _MEANS_SOMETHING_ELSE.search(str(folder)):
        raise UnusableFolderName(folder)
    return folder


def parse_store_address(env: Mapping[str, str], name: str) -> str:
    """Return the address of a store, a folder as its whole path: processes of other folders read it too.

    It holds no credentials, since it is logged and passed to workers.
    """
    url = env.get(name, "")
    if _PASSWORD.search(url):
        raise InvalidSetting(
            name,
            "an address without a password; give that in the store's own environment variables "
            "(AWS_SECRET_ACCESS_KEY, FSSPEC_SFTP_PASSWORD and so on)",
        )
    if not url or "://" in url:
        return url
    return str(require_usable_folder_name(Path(url).expanduser().resolve()))


def parse_public_url(text: str) -> str:
    """Return the address at which clients reach the API, without a slash at its end."""
    if not _PUBLIC_URL.fullmatch(text):
        raise InvalidSetting("RECORDER_PUBLIC_URL", "an address such as https://recorder.example.com")
    return text.rstrip("/")


def parse_redis_url(text: str) -> str | None:
    """Return the address of a Redis; None for an empty text."""
    if text and not text.startswith(("redis://", "rediss://", "unix://")):
        raise InvalidSetting(
            "RECORDER_REDIS_URL", "an address that begins with redis://, rediss:// or unix://"
        )
    return text or None


def parse_storage_class(text: str) -> str | None:
    """Return the name of an S3 storage class, such as `GLACIER_IR`; None where the variable is empty."""
    if text and not re.fullmatch(r"[A-Z0-9_]{1,40}", text):
        raise InvalidSetting("RECORDER_COLD_STORAGE_CLASS", "an S3 storage class, such as GLACIER_IR")
    return text or None


def parse_store_endpoint(env: Mapping[str, str], name: str) -> str | None:
    """Return the address of a store's service; None where the variable is empty."""
    url = env.get(name, "").rstrip("/")
    if url and not url.startswith(("http://", "https://")):
        raise InvalidSetting(name, "an address that begins with http:// or https://")
    return url or None


def parse_buckets(text: str) -> tuple[str, ...]:
    """Return buckets as `s3://bucket`, `gs://bucket` or `az://account/container`."""
    buckets = tuple(bucket.rstrip("/") for bucket in split_words(text))
    for bucket in buckets:
        protocol, _, name = bucket.partition("://")
        if name.count("/") != {"s3": 0, "gs": 0, "az": 1}.get(protocol) or not all(name.split("/")):
            raise InvalidSetting(
                "RECORDER_EXPORT_BUCKETS", "s3://bucket, gs://bucket, az://account/container"
            )
    return buckets


def parse_service_addresses(text: str) -> tuple[str, ...]:
    """Return addresses as `host:port`."""
    words = split_words(text)
    if not all(_HOST_PORT.fullmatch(word) for word in words):
        raise InvalidSetting("RECORDER_OWN_ADDRESSES", "addresses with a port such as 10.0.0.8:3000")
    return words


def parse_allowed_hosts(text: str) -> tuple[str, ...]:
    """Return host names and addresses, each with or without a port."""
    names = split_words(text)
    if not all(_HOST_NAME.fullmatch(name) for name in names):
        raise InvalidSetting(
            "RECORDER_ALLOWED_HOSTS",
            "host names and addresses (IPv6 in brackets), each with or without a port, with commas between",
        )
    return names


def parse_trusted_proxies(text: str) -> tuple[str, ...]:
    """Return networks in their canonical form."""
    networks = split_words(text)
    try:
        return tuple(str(ip_network(network)) for network in networks)
    except ValueError as error:
        raise InvalidSetting(
            "RECORDER_TRUSTED_PROXIES",
            "addresses and networks such as 10.1.0.0/16 (no bits after the prefix), with commas between",
        ) from error


def parse_auth_header(name: str, trusted_proxies: tuple[str, ...]) -> str | None:
    """Return the lower-case name of a header; None for an empty text. It needs trusted proxies."""
    if name and not (_HEADER_NAME.fullmatch(name) and trusted_proxies):
        raise InvalidSetting(
            "RECORDER_DAGSTER_AUTH_HEADER",
            "the name of a header such as X-Forwarded-User, and needs RECORDER_TRUSTED_PROXIES beside it",
        )
    return name.lower() or None


def parse_export_executor(text: str) -> str:
    """Return the executor of exports: `in_process`, `processes:N` or the address of a Dask scheduler."""
    if not _EXECUTOR.fullmatch(text):
        takes = "in_process, processes:N, or a Dask scheduler's address such as tcp://10.0.0.5:8786"
        raise InvalidSetting("RECORDER_EXPORT_EXECUTOR", takes)
    return text


def count_cores() -> int:
    """Return the number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def parse_number_setting(
    env: Mapping[str, str], name: str, least: int, most: int, *, unit: str = ""
) -> int | None:
    """Return a whole number between two bounds; None where the variable is missing."""
    text = env.get(name)
    if text is None:
        return None
    if not re.fullmatch(r"[0-9]{1,18}", text, re.ASCII) or not least <= int(text) <= most:
        number = f"a whole number of {unit}" if unit else "a whole number"
        raise InvalidSetting(name, f"{number} from {least:,} to {most:,}")
    return int(text)


def parse_switch_setting(env: Mapping[str, str], name: str) -> bool:
    """Return whether a setting is on; it is off where the variable is missing or empty."""
    text = env.get(name, "")
    if text not in ("", "0", "1"):
        raise InvalidSetting(name, "1 for on, 0 for off")
    return text == "1"


def parse_browser_settings(env: Mapping[str, str]) -> BrowserSettings:
    """Return the settings of the browsers of live replays."""
    return BrowserSettings(
        outbound=split_words(env.get("RECORDER_LIVE_OUTBOUND", "")),
        user=env.get("RECORDER_LIVE_USER") or BrowserSettings().user,
        no_sandbox=parse_switch_setting(env, "RECORDER_LIVE_NO_SANDBOX"),
        slots=parse_number_setting(env, "RECORDER_LIVE_PLACES", 1, 64) or BrowserSettings().slots,
        chromium=env.get("RECORDER_CHROMIUM") or None,
    )


def parse_connections(env: Mapping[str, str]) -> ConnectionSettings:
    """Return the most connections of an address and of a process."""
    default = ConnectionSettings()
    return ConnectionSettings(
        parse_number_setting(env, "RECORDER_CONNECTIONS_PER_ADDRESS", 16, 65_536) or default.per_address,
        parse_number_setting(env, "RECORDER_CONNECTIONS", 16, 1_000_000) or default.per_process,
    )


def split_words(text: str) -> tuple[str, ...]:
    """Return the words of a list with commas, without those that are empty."""
    return tuple(word.strip() for word in text.split(",") if word.strip())
