"""Files of deploy/: each service starts by the command and environment of compose.yaml and becomes ready."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.compose_services import OURS, VARIABLES, image_environment, read_compose, substitute
from tests.support.databases import part_is_missing

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"


def load(name: str) -> Any:
    """Return a YAML file of the folder."""
    return yaml.safe_load((DEPLOY / name).read_text())


def test_every_service_becomes_ready_by_its_command_and_environment() -> None:
    for program in ("unshare", "ip", "redis-server", "redis-cli"):
        if shutil.which(program) is None:
            part_is_missing(f"{program} is not installed.")
    if os.geteuid() != 0:
        part_is_missing("Namespaces with mounts of their own need root.")
    script = str(ROOT / "tests" / "support" / "compose_namespace.sh")
    command = ["unshare", "--net", "--mount", "--ipc", "--pid", "--fork", "--kill-child", "--mount-proc"]
    done = subprocess.run(
        [*command, "sh", script, str(ROOT), sys.executable],
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr[-6000:]
    seconds = json.loads(done.stdout.splitlines()[-1])
    assert set(seconds) == set(OURS)


@pytest.mark.parametrize(("age_s", "code"), [(5, 0), (70, 1), (-3_600, 1)])
def test_a_pulse_counts_for_a_minute_and_not_until_the_clock_has_made_up(
    tmp_path: Path, age_s: float, code: int
) -> None:
    pulse = tmp_path / "deliver.pulse"
    pulse.touch()
    os.utime(pulse, (time.time() - age_s,) * 2)
    checked = subprocess.run([sys.executable, str(DEPLOY / "ready.py"), str(pulse)], check=False)
    assert checked.returncode == code


def test_the_file_names_every_process_that_up_starts() -> None:
    services = read_compose(ROOT)
    assert set(services) == {*OURS, "postgres", "redis", "store"}
    environment = services["api"]["environment"]
    assert all(services[name]["environment"] == environment for name in OURS)
    assert {"RECORDER_SECRET", "RECORDER_DATABASE_URL", "RECORDER_REDIS_URL"} <= set(environment)
    # Each service has a data folder of its own: what one writes there no other can read.
    stores = ("BLOB", "COLD", "LAKE", "EXPORT")
    assert len({environment[f"RECORDER_{store}_URL"] for store in stores}) == len(stores)
    assert all(environment[f"RECORDER_{store}_URL"].startswith("s3://") for store in stores)
    # No secret has a default.
    text = (DEPLOY / "compose.yaml").read_text()
    assert all(f"${{{name}:?" in text and f"${{{name}:-" not in text for name in VARIABLES)
    assert substitute("${STORE_PASSWORD:?}/${RECORDER_REGION:-us}") == "storage1/us"


def test_dagster_has_the_settings_of_one_machine_but_for_its_storage() -> None:
    here, there = (
        load("dagster_home/dagster.yaml"),
        yaml.safe_load((ROOT / "dagster_home/dagster.yaml").read_text()),
    )
    assert here.pop("storage") == {"postgres": {"postgres_url": {"env": "RECORDER_DAGSTER_POSTGRES_URL"}}}
    there.pop("storage")
    assert here == there
    values = load("dagster-values.yaml")
    coordinator = values["dagsterDaemon"]["runCoordinator"]["config"]["queuedRunCoordinator"]
    assert coordinator["tagConcurrencyLimits"] == there["concurrency"]["runs"]["tag_concurrency_limits"]
    pools = there["concurrency"]["pools"]
    assert values["concurrency"]["pools"] == {
        "granularity": pools["granularity"],
        "defaultLimit": pools["default_limit"],
    }
    assert coordinator["maxConcurrentRuns"] == there["concurrency"]["runs"]["max_concurrent_runs"]
    (code,) = values["dagster-user-deployments"]["deployments"]
    assert set(code["dagsterApiGrpcArgs"]) <= set(read_compose(ROOT)["code"]["command"])
    assert image_environment(ROOT)["DAGSTER_HOME"] == "/opt/recorder/deploy/dagster_home"


@pytest.mark.parametrize("name", ["compose.yaml", "dagster-values.yaml", "Dockerfile"])
def test_images_have_plain_names(name: str) -> None:
    words = (DEPLOY / name).read_text().split()
    images = [
        words[at + 1] for at, word in enumerate(words[:-1]) if word in ("image:", "FROM", "{repository:")
    ]
    assert images
    assert not [image for image in images if "." in image.partition("/")[0].partition(":")[0]]


def test_the_file_of_passwords_enters_neither_image_nor_history(tmp_path: Path) -> None:
    if shutil.which("git") is None:
        part_is_missing("git is not installed.")
    shutil.copy(ROOT / ".gitignore", tmp_path)
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    for name in ("deploy/.env", ".env"):
        ignored = ["git", "-C", str(tmp_path), "check-ignore", "-q", name]
        assert subprocess.run(ignored, check=False).returncode == 0, name
    # In these files `**` stands for no folder too.
    assert "**/.env" in (ROOT / ".dockerignore").read_text().splitlines()
