"""Calls to hostile addresses, in a network that has only loopback. Contract §6."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.databases import part_is_missing

ROOT = Path(__file__).parents[2]
_ENTER = ["unshare", "--map-root-user", "--net"]
_BEGIN = 'ip link set lo up && exec "$@"'


def test_hostile_addresses_and_servers_get_nowhere() -> None:
    if shutil.which("unshare") is None or shutil.which("ip") is None:
        part_is_missing("unshare and ip are not installed (apt-get install util-linux iproute2).")
    if subprocess.run([*_ENTER, "true"], capture_output=True, check=False).returncode != 0:
        # A right, not a part that could be installed: where it is missing these tests never run open.
        pytest.skip("This user may not make a network of its own (unshare --net).")
    files = [str(path) for path in sorted((ROOT / "tests" / "net" / "isolated").glob("hostile_*.py"))]
    tests = ["-m", "pytest", "-q", "-p", "no:cacheprovider", *files]
    done = subprocess.run(
        [*_ENTER, "sh", "-c", _BEGIN, "sh", sys.executable, *tests],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout and "skipped" not in done.stdout
