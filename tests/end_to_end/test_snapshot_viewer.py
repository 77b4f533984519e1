"""Hostile DOM snapshots in Chromium, in a network that has only loopback. Contract §8, case 96."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.browser import chromium, find_chromium
from tests.support.databases import part_is_missing
from tests.support.hostile_snapshots import make_snapshots

ROOT = Path(__file__).parents[2]
_ENTER = ["unshare", "--map-root-user", "--net"]
_BEGIN = 'ip link set lo up && exec "$@"'


def test_hostile_snapshots_run_and_load_nothing() -> None:
    find_chromium()
    if shutil.which("unshare") is None or shutil.which("ip") is None:
        part_is_missing("unshare and ip are not installed (apt-get install util-linux iproute2).")
    if subprocess.run([*_ENTER, "true"], capture_output=True, check=False).returncode != 0:
        # A right, not a part that could be installed: where it is missing this test never runs open.
        pytest.skip("This user may not make a network of its own (unshare --net).")
    file = str(ROOT / "tests" / "net" / "isolated" / "snapshot_viewer.py")
    tests = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "0", file]
    done = subprocess.run(
        [*_ENTER, "sh", "-c", _BEGIN, "sh", sys.executable, *tests],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{2 * len(make_snapshots(''))} passed" in done.stdout, done.stdout


def test_a_browser_with_a_used_profile_is_reached_at_its_new_port(tmp_path: Path) -> None:
    (tmp_path / "DevToolsActivePort").write_text("1\n/devtools/browser/of-before")
    with chromium(tmp_path) as page:
        assert page.evaluate("1 + 1") == 2
