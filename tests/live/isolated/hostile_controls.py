"""Hostile pages without the sandbox: each reaches what it must not; run by tests/live/test_isolation.py."""

import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.browser import Page
from tests.support.hostile_pages import ESCAPES, FORBIDDEN, HOST_PAGES, HOSTS, LOOK_UPS, PUBLIC
from tests.support.hostile_sites import Reached, Site, listening_as, rebinding
from tests.support.stub_resolver import StubResolver
from tests.support.waiting import wait_for


@pytest.mark.parametrize("name", sorted(ESCAPES))
def test_without_the_sandbox_the_page_reaches_the_listener(
    open_browser: Page, site: Site, reached: Reached, name: str
) -> None:
    open_browser.visit("about:blank")
    reached.clear()
    # Now and then Chromium drops a navigation of the page's own; then the page is opened again.
    for _ in range(3):
        open_browser.visit(f"{site.url}/{name}")
        open_browser.wait_for("document.readyState != 'loading'")
        with suppress(AssertionError):  # it has gone elsewhere
            open_browser.evaluate("document.getElementById('go')?.click()")
        until = time.monotonic() + 5
        while not reached.seen and time.monotonic() < until:
            time.sleep(0.02)
        if reached.seen:
            return
    pytest.fail("The page reached the listener in none of three visits.")


def test_without_the_sandbox_every_host_is_reached(open_browser: Page, site: Site, reached: Reached) -> None:
    reached.clear()
    for page in HOST_PAGES:
        open_browser.visit(f"{site.url}/{page}")
        open_browser.wait_for("document.images.length && document.readyState == 'complete'")
    wanted = {f"/{n}": host for n, host in enumerate(HOSTS)}
    assert {host for path, host in wanted.items() if path not in reached.paths} == set()


@pytest.mark.parametrize("name", LOOK_UPS)
def test_without_the_sandbox_the_page_asks_a_name_server(
    open_browser: Page, site: Site, resolver: StubResolver, name: str
) -> None:
    open_browser.visit(f"{site.url}/{name}")
    wait_for(lambda: "leak.example" in resolver.questions, seconds=30)
    resolver.questions.clear()


def test_without_the_sandbox_a_name_that_turns_is_followed(
    open_browser: Page, resolver: StubResolver
) -> None:
    with rebinding(resolver) as servers:
        servers.lead_to(PUBLIC)
        open_browser.visit(f"http://{servers.host}/")
        wait_for(lambda: len(servers.public.paths) > 1, seconds=30)
        servers.lead_to(FORBIDDEN)
        # The browser keeps an address for a minute, unless the machine gets another one.
        subprocess.run(["ip", "addr", "add", "10.9.9.7/24", "dev", "in0"], check=True)
        # Chromium connects; a public page is then not given the answer of such an address without leave.
        wait_for(lambda: servers.forbidden.seen, seconds=30)


def test_without_the_sandbox_a_process_of_the_deployment_is_reached(
    open_browser: Page, site: Site, tmp_path: Path
) -> None:
    with listening_as(tmp_path) as (port, seen):
        open_browser.visit(f"{site.url}/to?http://127.0.0.1:{port}/")
        wait_for(lambda: seen, seconds=30)
