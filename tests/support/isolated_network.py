"""Tests that run in a network of their own, which has only loopback: nothing else can be reached there."""

import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tests.support.databases import part_is_missing

ROOT = Path(__file__).parents[2]
_ENTER = ["unshare", "--map-root-user", "--net"]
_LOOPBACK = "ip link set lo up"


def run_isolated(
    files: Sequence[Path], *, prepare: str = _LOOPBACK, replaced: Mapping[str, Path] | None = None
) -> str:
    """Run test files in a network of their own, all in one process; return what pytest printed.

    Args:
        files: the test files.
        prepare: shell command that sets up the network.
        replaced: files of the machine that only these tests see with other contents.
    """
    enter = [*_ENTER, *(["--mount"] if replaced else [])]
    for path, content in (replaced or {}).items():
        prepare += f" && mount --bind {shlex.quote(str(content))} {path}"
    if shutil.which("unshare") is None or shutil.which("ip") is None:
        part_is_missing("unshare and ip are not installed (apt-get install util-linux iproute2).")
    if subprocess.run([*enter, "true"], capture_output=True, check=False).returncode != 0:
        # A right, not a part that could be installed: where it is missing these tests never run open.
        pytest.skip("This user may not make a network of its own (unshare --net).")
    tests = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "0", *map(str, files)]
    done = subprocess.run(
        [*enter, "sh", "-c", f'{prepare} && exec "$@"', "sh", *tests],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
