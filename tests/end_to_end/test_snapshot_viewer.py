"""Hostile DOM snapshots in Chromium, in a network that has only loopback. Contract §8, case 96."""

from pathlib import Path

from tests.support.browser import chromium, find_chromium
from tests.support.hostile_snapshots import make_snapshots
from tests.support.isolated_network import ROOT, run_isolated


def test_hostile_snapshots_run_and_load_nothing() -> None:
    find_chromium()
    printed = run_isolated([ROOT / "tests" / "net" / "isolated" / "snapshot_viewer.py"])
    assert f"{2 * len(make_snapshots(''))} passed" in printed, printed


def test_a_browser_with_a_used_profile_is_reached_at_its_new_port(tmp_path: Path) -> None:
    (tmp_path / "DevToolsActivePort").write_text("1\n/devtools/browser/of-before")
    with chromium(tmp_path) as page:
        assert page.evaluate("1 + 1") == 2
