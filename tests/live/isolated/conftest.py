"""Fixtures of hostile pages. Nothing in this folder may run where it could reach anything."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from recorder.live.browser import Browser
from recorder.live.proxy import FilteringProxy
from recorder.net.outbound_guard import AddressGuard
from recorder.net.reachable_hosts import ReachableHosts
from recorder.setting_parsers import BrowserSettings
from recorder.settings import Settings
from tests.support.browser import Page, chromium, find_chromium
from tests.support.hostile_pages import NAMES
from tests.support.hostile_sites import Dialer, EveryHost, Reached, Site, listening, serving_pages
from tests.support.stub_resolver import StubResolver, stub_resolver

EVERY_ADDRESS = ("loopback", "0.0.0.0/0", "::/0")


@pytest.fixture(autouse=True)
def no_way_out() -> None:
    """Require a network of loopback, and of a pair of interfaces that lead to each other alone.

    The browser uses WebRTC only where there is an interface beside loopback.
    """
    assert {name for _, name in socket.if_nameindex()} == {"lo", "in0", "in1"}, "this network has a way out"


@pytest.fixture(scope="session")
def resolver() -> Iterator[StubResolver]:
    """Yield the name server of this network."""
    with stub_resolver({name: [address] for name, address in NAMES.items()}) as started:
        yield started


@pytest.fixture(scope="session")
def reached() -> Iterator[Reached]:
    """Yield a listener that must not be reached."""
    with listening() as started:
        yield started


@pytest.fixture(scope="session")
def site(reached: Reached) -> Iterator[Site]:
    """Yield the allowed server."""
    with serving_pages(reached) as started:
        yield started


@dataclass
class Sandbox:
    """Browser and proxy of live replays, and what the proxy dialled."""

    browser: Browser
    proxy: FilteringProxy
    dialer: Dialer


@pytest.fixture(scope="session", params=["host list", "address guard", "own port"])
def sandbox(
    request: pytest.FixtureRequest,
    site: Site,
    reached: Reached,
    resolver: StubResolver,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Sandbox]:
    """Yield the sandbox with one layer that refuses, and every other layer open.

    The list of the workspace's hosts refuses; or the guard of a deployment whose operator lists the allowed
    server alone; or the guard of one whose operator lists every address, and whose own port the listener has.
    """
    folder = tmp_path_factory.mktemp("data")
    hosts = ReachableHosts([site.host]) if request.param == "host list" else EveryHost()
    outbound = (site.host,) if request.param == "address guard" else EVERY_ADDRESS
    named = {"RECORDER_PUBLIC_URL": f"http://localhost:{reached.port}"} if request.param == "own port" else {}
    with running_sandbox(make_settings(folder, outbound, named), hosts) as started:
        yield started


@contextmanager
def running_sandbox(settings: Settings, hosts: ReachableHosts) -> Iterator[Sandbox]:
    """Run browser and proxy while the block runs."""
    dialer = Dialer()
    proxy = FilteringProxy(hosts, AddressGuard.of_browser(settings), dial=dialer)
    proxy.start()
    browser = Browser(settings, proxy)
    try:
        browser.start((1280, 800))
        yield Sandbox(browser, proxy, dialer)
    finally:
        browser.close()
        proxy.stop()


def make_settings(folder: Path, outbound: tuple[str, ...], named: dict[str, str]) -> Settings:
    """Return the settings of a deployment. In this network's namespace of users there is only root."""
    browser = BrowserSettings(user="root", no_sandbox=True, chromium=find_chromium(), outbound=outbound)
    settings = Settings.from_env(named, data_dir=folder)
    return Settings(**{**vars(settings), "browser": browser})


@pytest.fixture(scope="module")
def open_browser(resolver: StubResolver, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """Yield a browser without a proxy, as the control."""
    with chromium(Path(tmp_path_factory.mktemp("profile")), "--headless=new") as page:
        yield page
