"""Calls to the deployment itself; run by tests/net/test_outbound.py, in a network that has only loopback."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from recorder.errors import UrlNotAllowed
from recorder.net.addresses import AllowList
from recorder.net.deployment_addresses import OwnAddresses, list_own_endpoints, listening_ports
from recorder.net.outbound_client import OutboundClient, OutboundExchange
from recorder.net.outbound_guard import AddressGuard
from recorder.settings import Settings
from tests.support.isolated_calls import TRUST, Dialer, Resolver, answering, serving

OK = b"HTTP/1.1 200 OK\r\n"
#: What a generous operator might list: all of it is this machine, or leads there.
EVERYTHING = ("loopback", "0.0.0.0/0", "::/0", "hooks.example")
#: Spellings of this machine's addresses.
SPELLINGS = (
    "127.0.0.1",
    "127.0.0.2",
    "127.255.255.254",
    "localhost",
    "LOCALHOST.",
    "api.localhost",
    "0.0.0.0",
    "2130706433",
    "0x7f.1",
    "0177.0.0.1",
    "127.1",
    "①②⑦.⓪.⓪.①",
    "[::1]",
    "[::]",
    "[::ffff:127.0.0.1]",
    "[::ffff:7f00:1]",
    "[64:ff9b::7f00:1]",
    "[::127.0.0.1]",
    "[2002:7f00:1::]",
    "hooks.example",
)
_LISTEN = """
import os, socket, sys, time
family = socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET
server = socket.create_server((sys.argv[1], 0), family=family, dualstack_ipv6=sys.argv[1] == "::")
print(server.getsockname()[1], flush=True)
time.sleep(60)
"""


@contextmanager
def listener(host: str, dagster_dir: Path | None) -> Iterator[int]:
    """Yield the port of a process that listens; with a Dagster folder it belongs to that deployment."""
    marked = {} if dagster_dir is None else {"RECORDER_DAGSTER_DIR": str(dagster_dir)}
    command = [sys.executable, "-c", _LISTEN, host]
    environment = {"PATH": os.environ["PATH"], **marked}  # noqa: TID251
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield int(process.stdout.readline())
        finally:
            process.kill()


def guard_of(folder: Path, resolved: str = "127.0.0.1", **settings: Any) -> AddressGuard:
    """Return the guard of a deployment whose operator lists everything."""
    resolve = Resolver([resolved])
    deployed = Settings.from_env({"RECORDER_PUBLIC_URL": "http://api.example:1", **settings}, data_dir=folder)
    return AddressGuard(
        AllowList.parse(EVERYTHING), resolve, own_addresses=OwnAddresses.of(deployed, resolve)
    )


def post(guard: AddressGuard, url: str, dialer: Dialer) -> OutboundExchange:
    """Return the result of a call."""
    return asyncio.run(OutboundClient(guard, ssl_context=TRUST, dial=dialer).post(url, {}, b"{}"))


def assert_refused(guard: AddressGuard, url: str) -> None:
    """Assert that a URL is refused at registration and at the call, and that nothing is dialled."""
    dialer = Dialer()
    with pytest.raises(UrlNotAllowed, match="uses itself"):
        asyncio.run(guard.check(url))
    assert post(guard, url, dialer).error == "blocked_address"
    assert dialer.dialled == []


def assert_passes(guard: AddressGuard, url: str) -> None:
    """Assert that a URL is accepted and dialled."""
    dialer = Dialer()
    asyncio.run(guard.check(url))
    assert post(guard, url, dialer).error == "connection"
    assert dialer.dialled != []


@pytest.mark.parametrize("bound", ["127.0.0.1", "0.0.0.0", "::1", "::"])
def test_a_port_of_our_processes_is_refused_in_every_spelling(tmp_path: Path, bound: str) -> None:
    guard = guard_of(tmp_path)
    with listener(bound, tmp_path / "dagster") as port:
        assert listening_ports(tmp_path / "dagster") == {port}
        for host in SPELLINGS:
            for scheme in ("http", "https"):
                assert_refused(guard, f"{scheme}://{host}:{port}/hooks")


def test_ports_of_others_may_be_called(tmp_path: Path) -> None:
    guard = guard_of(tmp_path)
    with listener("127.0.0.1", None) as free, listener("127.0.0.1", tmp_path / "other") as other:
        for port in (free, other):
            assert_passes(guard, f"http://127.0.0.1:{port}/hooks")
        assert listening_ports(tmp_path / "dagster") == frozenset()


def test_a_name_that_turns_to_our_port_is_blocked_at_the_call(tmp_path: Path) -> None:
    resolve, dialer = Resolver(["93.184.216.34"], ["127.0.0.1"]), Dialer()
    settings = Settings.from_env({}, data_dir=tmp_path)
    guard = AddressGuard(
        AllowList.parse(EVERYTHING), resolve, own_addresses=OwnAddresses.of(settings, resolve)
    )
    with listener("127.0.0.1", tmp_path / "dagster") as port:
        url = f"https://rebinding.example:{port}/"
        asyncio.run(guard.check(url))
        assert post(guard, url, dialer).error == "blocked_address"
    assert dialer.dialled == []


def test_a_process_that_starts_to_listen_later_is_found(tmp_path: Path) -> None:
    resolve = Resolver(["127.0.0.1"])
    find_ports = partial(listening_ports, tmp_path / "dagster")
    addresses = OwnAddresses((), find_ports=find_ports, resolve=resolve, ports_kept_s=0.0)
    guard = AddressGuard(AllowList.parse(EVERYTHING), resolve, own_addresses=addresses)
    assert_passes(guard, "http://127.0.0.1:9/")
    with listener("127.0.0.1", tmp_path / "dagster") as port:
        assert_refused(guard, f"http://127.0.0.1:{port}/")


@pytest.mark.parametrize(
    ("name", "value", "port"),
    [
        ("RECORDER_DATABASE_URL", "postgresql://recorder:secret@db.internal/recorder", 5432),
        ("RECORDER_DATABASE_URL", "postgresql+psycopg://recorder@one.internal:6000,db.internal:6001/r", 6001),
        ("RECORDER_DATABASE_URL", "postgresql://recorder@/r?host=db.internal&port=6002", 6002),
        ("RECORDER_REDIS_URL", "redis://:secret@db.internal", 6379),
        ("RECORDER_REDIS_URL", "rediss://db.internal:7000/1", 7000),
        ("RECORDER_S3_ENDPOINT", "https://db.internal", 443),
        ("RECORDER_GCS_ENDPOINT", "http://db.internal", 80),
        ("RECORDER_AZURE_ENDPOINT", "http://db.internal:10000/account", 10_000),
        ("RECORDER_BLOB_URL", "sftp://ada@db.internal/blobs", 22),
        ("RECORDER_LAKE_URL", "http://db.internal:8080/lake", 8080),
        ("RECORDER_EXPORT_URL", "simplecache::ftp://db.internal/exports", 21),
        ("RECORDER_COLD_URL", "webhdfs://db.internal/cold", 9870),
        ("RECORDER_EXPORT_EXECUTOR", "tls://db.internal:8786", 8786),
        ("RECORDER_PUBLIC_URL", "https://db.internal", 443),
        ("RECORDER_OWN_ADDRESSES", "db.internal:3000,[fd00::1]:3001", 3000),
    ],
)
def test_what_the_settings_name_is_refused_by_name_and_by_address(
    tmp_path: Path, name: str, value: str, port: int
) -> None:
    guard = guard_of(tmp_path, "10.7.7.7", **{name: value})
    for host in (
        "db.internal",
        "DB.Internal.",
        "10.7.7.7",
        "[64:ff9b::10.7.7.7]",
        "[::ffff:10.7.7.7]",
        "hooks.example",
    ):
        assert_refused(guard, f"https://{host}:{port}/")
        assert_refused(guard, f"http://{host}:{port}/")
    assert_passes(guard, f"https://10.7.7.7:{port + 1}/")
    assert_passes(guard, f"https://93.184.216.34:{port}/")


@pytest.mark.parametrize(
    "variable",
    ["AWS_ENDPOINT_URL", "FSSPEC_S3_ENDPOINT_URL", "STORAGE_EMULATOR_HOST", "AZURE_STORAGE_ENDPOINT"],
)
def test_what_the_stores_own_variables_name_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, "http://127.0.0.1:9000")
    for host in SPELLINGS:
        assert_refused(guard_of(tmp_path), f"http://{host}:9000/")


@pytest.mark.parametrize("named", ["localhost", "127.0.0.1", "0.0.0.0", "[::]", "[::1]", "machine.example"])
def test_every_address_of_this_machine_is_the_one_that_a_setting_names(tmp_path: Path, named: str) -> None:
    guard = guard_of(tmp_path, RECORDER_OWN_ADDRESSES=f"{named}:8700")
    for host in SPELLINGS:
        assert_refused(guard, f"http://{host}:8700/")
    assert_passes(guard, "http://127.0.0.1:8701/")


def test_a_database_on_a_socket_of_this_machine_keeps_its_port_too(tmp_path: Path) -> None:
    guard = guard_of(tmp_path, RECORDER_DATABASE_URL="postgresql://recorder@/recorder")
    assert_refused(guard, "http://127.0.0.1:5432/")


def test_a_name_of_ours_that_cannot_be_looked_up_is_refused_by_name(tmp_path: Path) -> None:
    resolve = Resolver([])
    settings = Settings.from_env({"RECORDER_REDIS_URL": "redis://cache.internal"}, data_dir=tmp_path)
    guard = AddressGuard(
        AllowList.parse(EVERYTHING), resolve, own_addresses=OwnAddresses.of(settings, resolve)
    )
    assert_refused(guard, "https://cache.internal:6379/")


def test_folders_and_cloud_buckets_name_no_address(tmp_path: Path) -> None:
    chosen = {"RECORDER_BLOB_URL": "s3://bucket/blobs", "RECORDER_LAKE_URL": "/srv/lake"}
    settings = Settings.from_env(chosen, data_dir=tmp_path)
    assert {endpoint.port for endpoint in list_own_endpoints(settings)} == {8700}


@pytest.mark.parametrize(
    ("listed", "host", "is_kept"),
    [
        (("loopback",), "127.0.0.1", False),
        (("loopback",), "localhost", False),
        (("hooks.example",), "hooks.example", False),
        (("0.0.0.0/0",), "127.0.0.2", False),
        (("127.0.0.1",), "127.0.0.1", False),
        (("loopback", "127.0.0.1:1"), "127.0.0.1", False),
        (("127.0.0.1:{port}",), "127.0.0.1", True),
        (("127.0.0.1:{port}",), "hooks.example", True),
        (("Hooks.Example.:{port}",), "hooks.example", True),
        (("loopback", "127.0.0.1:{port}"), "127.0.0.2", False),
    ],
)
def test_answers_of_this_machine_are_kept_for_a_listed_place_alone(
    listed: tuple[str, ...], host: str, is_kept: bool
) -> None:
    said = OK + b"X-Inside: 1\r\nContent-Length: 2\r\n\r\nhi"

    async def run() -> OutboundExchange:
        async with serving(answering(said), host="0.0.0.0") as port:
            allowed = AllowList.parse(tuple(word.format(port=port) for word in listed))
            client = OutboundClient(AddressGuard(allowed, Resolver(["127.0.0.1"])))
            return await client.post(f"http://{host}:{port}/", {}, b"{}")

    exchange = asyncio.run(run())
    kept = (exchange.body, exchange.headers.get("x-inside"), exchange.body_truncated)
    assert (exchange.status, exchange.error) == (200, None)
    assert kept == ((b"hi", "1", False) if is_kept else (b"", None, False))


def test_a_redirect_of_this_machine_does_not_say_where_to() -> None:
    async def run() -> OutboundExchange:
        async with serving(answering(b"HTTP/1.1 302 Found\r\nLocation: /admin\r\n\r\n")) as port:
            client = OutboundClient(AddressGuard(AllowList.parse(("loopback",))))
            return await client.post(f"http://127.0.0.1:{port}/", {}, b"{}")

    exchange = asyncio.run(run())
    assert (exchange.status, exchange.error, exchange.headers) == (302, "redirect", {})


def test_a_listed_place_opens_its_port_alone() -> None:
    dialer = Dialer()
    guard = AddressGuard(
        AllowList.parse(("127.0.0.1:9000", "[::1]:9001", "hooks.example:9002")), Resolver(["10.0.0.1"])
    )
    for url in ("http://127.0.0.1:9000/", "http://[::1]:9001/", "http://hooks.example:9002/"):
        assert post(guard, url, dialer).error == "connection"
    for url in ("http://127.0.0.1:9001/", "http://[::1]:9000/", "http://hooks.example:9000/"):
        assert post(guard, url, dialer).error == "blocked_address"
    assert dialer.dialled == [("127.0.0.1", 9000), ("::1", 9001), ("10.0.0.1", 9002)]
