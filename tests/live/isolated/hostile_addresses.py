"""Hostile hosts in the browser of live replays; run by tests/live/test_isolation.py. Contract §8.

Every address is this machine's, and names lead where the test says: hostile_controls.py reaches all of them.
"""

from pathlib import Path

import pytest

from recorder.net.reachable_hosts import ReachableHosts
from recorder.settings import find_dagster_folder
from tests.live.isolated.conftest import EVERY_ADDRESS, Sandbox, make_settings, running_sandbox
from tests.support.hostile_pages import FORBIDDEN, HOST_PAGES, HOSTS, LOOK_UPS, PUBLIC
from tests.support.hostile_sites import EveryHost, Reached, Site, listening_as, rebinding, visit
from tests.support.stub_resolver import StubResolver
from tests.support.waiting import wait_for


def test_no_spelling_and_no_name_of_a_forbidden_address_is_reached(
    sandbox: Sandbox, site: Site, reached: Reached
) -> None:
    reached.clear()
    blocked = sandbox.proxy.blocked_requests
    for page in HOST_PAGES:
        visit(sandbox.browser, f"{site.url}/{page}")
    # The proxy refused each of them: the browser left none out.
    wait_for(lambda: sandbox.proxy.blocked_requests >= blocked + len(HOSTS))
    assert reached.seen == []
    assert {port for _, port in sandbox.dialer.dialled} == {int(site.host.rpartition(":")[2])}


def test_the_browser_asks_no_name_server(sandbox: Sandbox, site: Site, resolver: StubResolver) -> None:
    resolver.questions.clear()
    for page in LOOK_UPS:
        visit(sandbox.browser, f"{site.url}/{page}")
    assert resolver.questions == []


@pytest.mark.parametrize("later", [[FORBIDDEN], [PUBLIC, FORBIDDEN]])
def test_a_name_that_turns_to_a_forbidden_address_is_not_followed(
    resolver: StubResolver, tmp_path: Path, later: list[str]
) -> None:
    # The public address is this machine's here, so the operator must list it.
    settings = make_settings(tmp_path, (PUBLIC,), {})
    with rebinding(resolver) as servers, running_sandbox(settings, ReachableHosts([servers.host])) as sandbox:
        servers.lead_to(PUBLIC)
        visit(sandbox.browser, f"http://{servers.host}/")
        wait_for(lambda: len(servers.public.paths) > 1)
        assert sandbox.proxy.blocked_requests == 0
        servers.lead_to(*later)
        wait_for(lambda: sandbox.proxy.blocked_requests > 5)
        assert servers.forbidden.seen == []
        assert sandbox.dialer.dialled == {(PUBLIC, servers.public.port)}


def test_no_process_of_the_deployment_is_reached(site: Site, tmp_path: Path) -> None:
    settings = make_settings(tmp_path, EVERY_ADDRESS, {})
    with (
        listening_as(find_dagster_folder(settings)) as (port, seen),
        running_sandbox(settings, EveryHost()) as sandbox,
    ):
        visit(sandbox.browser, f"{site.url}/to?http://127.0.0.1:{port}/")
        assert sandbox.proxy.has_refused(f"http://127.0.0.1:{port}/")
        assert seen == []
