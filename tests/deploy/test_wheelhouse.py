"""Installation without a network, by the commands of docs/deployment.md, from a folder of wheels.

`RECORDER_FAULT_WHEELHOUSE` is a folder that `pip download` filled as shown there. Without it the test
is skipped.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from recorder.settings import extend_program_environment
from tests.support.databases import part_is_missing
from tests.support.project_texts import ROOT

WHEELHOUSE = os.environ.get("RECORDER_FAULT_WHEELHOUSE")  # noqa: TID251
ENTER = ("unshare", "--net", "--pid", "--fork", "--kill-child", "--mount-proc")


@pytest.mark.timeout(600)
def test_a_wheelhouse_installs_and_serves_without_a_network(tmp_path: Path) -> None:
    if not WHEELHOUSE:
        part_is_missing("RECORDER_FAULT_WHEELHOUSE names no folder with the wheels of the service.")
    if shutil.which("unshare") is None:
        part_is_missing("unshare is not installed (apt-get install util-linux).")
    if subprocess.run([*ENTER, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("This user may not make namespaces (unshare --net --pid).")
    script = ROOT / "tests" / "support" / "offline_install.sh"
    command = [*ENTER, "sh", script]
    done = subprocess.run(
        [*command, ROOT, sys.executable, Path(WHEELHOUSE).absolute(), tmp_path],
        env=extend_program_environment({"HOME": str(tmp_path), "PIP_CONFIG_FILE": os.devnull}),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert json.loads(done.stdout.splitlines()[-1])["status"] == "ok"
