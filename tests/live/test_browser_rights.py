"""Process of the browser: its user, its environment, and what it says where it cannot start. Contract §8."""

import os
import pwd
import signal
import tempfile
from dataclasses import replace
from pathlib import Path

import playwright
import pytest

import recorder
from recorder.live.browser import Browser, NoBrowser, remove_leftover_browser_folders
from recorder.live.proxy import FilteringProxy
from recorder.net.addresses import AllowList
from recorder.net.outbound_guard import AddressGuard
from recorder.net.reachable_hosts import ReachableHosts
from recorder.setting_parsers import BrowserSettings
from recorder.settings import Settings
from tests.support.browser import find_chromium, find_readable_chromium
from tests.support.waiting import wait_for


def make_browser(folder: Path, settings: BrowserSettings) -> Browser:
    """Return a browser that may reach nothing."""
    proxy = FilteringProxy(ReachableHosts(()), AddressGuard(AllowList.parse(())))
    return Browser(replace(Settings.from_env({}, data_dir=folder), browser=settings), proxy)


def test_the_browser_has_no_secrets_and_as_root_another_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RECORDER_SECRET", "s3cret-of-the-deployment")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s3cret-of-the-store")
    browser = make_browser(tmp_path, BrowserSettings(no_sandbox=True, chromium=find_readable_chromium()))
    try:
        browser.start((800, 600))
        assert browser.process is not None
        process = Path("/proc") / str(browser.process.pid)
        environment = (process / "environ").read_bytes()
        assert b"s3cret" not in environment and b"RECORDER_" not in environment
        expected = pwd.getpwnam("nobody").pw_uid if os.geteuid() == 0 else os.geteuid()
        status = (process / "status").read_text()
        (users,) = [line.split()[1:] for line in status.splitlines() if line.startswith("Uid:")]
        assert set(users) == {str(expected)}
    finally:
        browser.close()
    assert browser.folder is None


def test_the_folder_of_a_browser_is_removed_once_it_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tempfile.TemporaryDirectory(prefix="recorder-") as folder:
        Path(folder).chmod(0o755)  # the browser's user reads it
        monkeypatch.setattr(tempfile, "tempdir", folder)
        browser = make_browser(tmp_path, BrowserSettings(no_sandbox=True, chromium=find_readable_chromium()))
        try:
            browser.start((800, 600))
            remove_leftover_browser_folders(older_than_s=0)
            assert browser.process is not None and browser.folder is not None and browser.folder.exists()
            os.killpg(browser.process.pid, signal.SIGKILL)
            browser.process.wait()
            remove_leftover_browser_folders()
            assert browser.folder.exists(), "it is not old enough"
            folder_left = browser.folder

            def is_removed() -> bool:
                remove_leftover_browser_folders(older_than_s=0)
                return not folder_left.exists()

            wait_for(is_removed)  # the browser's own processes end a moment later
        finally:
            browser.close()


def test_a_folder_whose_removal_stopped_half_way_is_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory(prefix="recorder-") as parent:
        monkeypatch.setattr(tempfile, "tempdir", parent)
        folder = Path(tempfile.mkdtemp(prefix="recorder-live-"))
        (folder / "profile").mkdir()
        remove_leftover_browser_folders()
        assert folder.exists(), "a browser may be starting in it"
        remove_leftover_browser_folders(older_than_s=0)
        assert not folder.exists()


def test_a_browser_without_its_sandbox_is_a_decision_of_the_operator(tmp_path: Path) -> None:
    script = tmp_path / "chromium"
    script.write_text("#!/bin/sh\necho 'No usable sandbox!' >&2\nexit 1\n")
    script.chmod(0o755)
    root = BrowserSettings(user="root", no_sandbox=True, chromium=str(script))
    browser = make_browser(tmp_path, root)
    try:
        with pytest.raises(NoBrowser, match="RECORDER_LIVE_NO_SANDBOX=1"):
            browser.start((800, 600))
    finally:
        browser.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="the service runs as a user without rights anyway")
@pytest.mark.parametrize("user", ["root", "no-such-user"])
def test_root_is_no_user_for_a_browser(tmp_path: Path, user: str) -> None:
    browser = make_browser(tmp_path, BrowserSettings(user=user, chromium=find_chromium()))
    with pytest.raises(NoBrowser, match="RECORDER_LIVE_USER"):
        browser.start((800, 600))


@pytest.mark.skipif(os.geteuid() != 0, reason="the browser's user is the service's own")
def test_an_installation_that_only_root_reads_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    for package in (recorder, playwright):
        assert package.__file__ is not None
        folder = Path(package.__file__).parent
        private.joinpath(folder.name).symlink_to(folder)
    monkeypatch.setattr(recorder, "__file__", str(private / "recorder" / "__init__.py"))
    browser = make_browser(tmp_path, BrowserSettings(no_sandbox=True, chromium=find_chromium()))
    try:
        with pytest.raises(NoBrowser, match="nobody cannot start the browser: it must be able to read"):
            browser.start((800, 600))
    finally:
        browser.close()
