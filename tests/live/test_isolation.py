"""Live sandbox against hostile pages, in a network that has only loopback. Contract §8."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.browser import find_chromium
from tests.support.databases import part_is_missing

ROOT = Path(__file__).parents[2]
_ENTER = ["unshare", "--map-root-user", "--net"]
_BEGIN = """
ip link set lo up && ip link add in0 type veth peer name in1 && ip addr add 10.9.9.1/24 dev in0 &&
ip link set in0 up && ip link set in1 up && ip route add default dev in0 && exec "$@"
"""


def test_hostile_pages_reach_nothing_from_the_live_sandbox() -> None:
    find_chromium()
    if shutil.which("unshare") is None or shutil.which("ip") is None:
        part_is_missing("unshare and ip are not installed (apt-get install util-linux iproute2).")
    if subprocess.run([*_ENTER, "true"], capture_output=True, check=False).returncode != 0:
        # A right, not a part that could be installed: where it is missing this test never runs open.
        pytest.skip("This user may not make a network of its own (unshare --net).")
    file = str(ROOT / "tests" / "live" / "isolated" / "hostile_pages.py")
    tests = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "0", file]
    done = subprocess.run(
        [*_ENTER, "sh", "-c", _BEGIN, "sh", sys.executable, *tests],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout and "skipped" not in done.stdout, done.stdout
