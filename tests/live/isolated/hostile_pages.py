"""Hostile pages in the browser of live replays; run by tests/live/test_isolation.py. Contract §8.

The browser and its servers are in a network without a way out.
"""

import time
from pathlib import Path

import pytest

from recorder.live.browser import Browser, NoBrowser
from recorder.setting_parsers import BrowserSettings
from recorder.settings import Settings
from tests.live.isolated.conftest import Sandbox
from tests.support.browser import find_chromium
from tests.support.hostile_pages import ESCAPES, OTHERS
from tests.support.hostile_sites import DOWNLOADED, Reached, Site, visit


def test_hostile_pages_reach_nothing(sandbox: Sandbox, site: Site, reached: Reached) -> None:
    reached.clear()
    escaped = {}
    blocked = sandbox.proxy.blocked_requests
    for name in ESCAPES:
        visit(sandbox.browser, f"{site.url}/{name}")
        if reached.seen:
            escaped[name] = list(reached.seen)
            reached.clear()
    time.sleep(1)
    assert (escaped, reached.seen) == ({}, [])
    assert sandbox.proxy.blocked_requests >= blocked + len(ESCAPES) / 2
    assert {port for _, port in sandbox.dialer.dialled} == {int(site.host.rpartition(":")[2])}


@pytest.mark.parametrize("name", sorted(OTHERS))
def test_files_printers_and_permissions_are_out_of_reach(sandbox: Sandbox, site: Site, name: str) -> None:
    after = visit(sandbox.browser, f"{site.url}/{name}")
    assert after["url"].startswith(site.url) and after["title"] != "leaked"
    assert "root:" not in str(after["html"])
    assert sandbox.browser.call("goto", url="file:///etc/passwd", timeout_ms=1_000)["error"]


def test_a_user_that_this_namespace_lacks_is_no_error_of_ours(sandbox: Sandbox, tmp_path: Path) -> None:
    browser = BrowserSettings(user="nobody", chromium=find_chromium())
    settings = Settings.from_env({}, data_dir=tmp_path)
    with_user = Browser(Settings(**{**vars(settings), "browser": browser}), sandbox.proxy)
    with pytest.raises(NoBrowser, match=r"cannot run as nobody here .*RECORDER_LIVE_USER"):
        with_user.start((800, 600))
    with_user.close()
    assert with_user.folder is None


def test_a_download_leaves_no_file(sandbox: Sandbox, site: Site) -> None:
    visit(sandbox.browser, f"{site.url}/attachment")
    folder = sandbox.browser.folder
    assert folder is not None
    kept = [path for path in folder.rglob("*") if path.is_file() and DOWNLOADED in path.read_bytes()]
    assert kept == []
