"""Installation without a network, by the commands of docs/deployment.md, from a folder of wheels.

`RECORDER_FAULT_WHEELHOUSE` is a folder that `pip download` filled as shown there; without it nothing runs.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from recorder.settings import environment_with
from tests.support.databases import part_is_missing
from tests.support.project_texts import ROOT

WHEELHOUSE = os.environ.get("RECORDER_FAULT_WHEELHOUSE")  # noqa: TID251


@pytest.mark.skipif(not WHEELHOUSE, reason="RECORDER_FAULT_WHEELHOUSE names no folder")
@pytest.mark.timeout(600)
def test_a_wheelhouse_installs_and_serves_without_a_network(tmp_path: Path) -> None:
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        part_is_missing("Namespaces need root and unshare.")
    assert WHEELHOUSE is not None
    script = ROOT / "tests" / "support" / "offline_install.sh"
    command = ["unshare", "--net", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", script]
    done = subprocess.run(
        [*command, ROOT, sys.executable, Path(WHEELHOUSE).absolute(), tmp_path],
        env=environment_with({"HOME": str(tmp_path), "PIP_CONFIG_FILE": os.devnull}),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert json.loads(done.stdout.splitlines()[-1])["status"] == "ok"
