"""Settings: one data folder by default, a secret that is made once. Contract §9."""

import os
import re
import stat
from pathlib import Path

import pytest

from recorder import limits
from recorder.setting_parsers import InvalidSetting, SessionSize
from recorder.settings import VARIABLES, Settings, describe_unknown_settings
from tests.support.deployment_processes import released_together


def test_everything_lies_below_the_data_folder(tmp_path: Path) -> None:
    settings = Settings.from_env({}, data_dir=tmp_path / "data")
    root = str(tmp_path / "data")
    assert settings.database_url == f"sqlite:///{root}/recorder.db"
    assert all(url.startswith(root) for url in (settings.blob_url, settings.lake_url, settings.export_url))
    assert settings.local_export_root is None


def test_an_empty_data_folder_is_the_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert Settings.from_env({"RECORDER_DATA_DIR": ""}).data_dir == tmp_path / "recorder-data"
    assert [path.name for path in tmp_path.iterdir()] == ["recorder-data"]


def test_the_environment_overrules_the_defaults(tmp_path: Path) -> None:
    chosen = {
        "RECORDER_DATA_DIR": str(tmp_path),
        "RECORDER_DATABASE_URL": "postgresql://a/b",
        "RECORDER_BLOB_URL": "s3://blobs",
        "RECORDER_LAKE_URL": "s3://lake",
        "RECORDER_EXPORT_URL": "s3://exports",
        "RECORDER_LOCAL_EXPORT_ROOT": str(tmp_path / "out"),
        "RECORDER_REGION": "eu",
        "RECORDER_PUBLIC_URL": "https://recorder.example/",
        "RECORDER_REDIS_URL": "redis://cache",
        "RECORDER_COLD_URL": "s3://bucket/cold",
        "RECORDER_ALLOWED_OUTBOUND": "10.0.0.0/8,loopback",
        "RECORDER_SECRET": "s3cret",
    }
    settings = Settings.from_env(chosen)
    assert (settings.secret, settings.public_url) == (b"s3cret", "https://recorder.example")
    kept = {name: value for name, value in chosen.items() if name != "RECORDER_SECRET"}
    runs = {"RECORDER_SEAL_RUNS": str(settings.seal_runs)}
    assert settings.as_env() == {**kept, **runs, "RECORDER_PUBLIC_URL": "https://recorder.example"}
    assert not (tmp_path / "secret").exists()


def test_a_child_gets_the_same_settings(tmp_path: Path) -> None:
    settings = Settings.from_env({"RECORDER_REGION": "apac"}, data_dir=tmp_path)
    assert Settings.from_env(settings.as_env()) == settings


def test_the_quiet_hour_is_an_hour_of_the_day(tmp_path: Path) -> None:
    assert Settings.from_env({}, data_dir=tmp_path).quiet_hour == 3
    for text, hour in (("0", 0), ("03", 3), ("23", 23)):
        settings = Settings.from_env({"RECORDER_QUIET_HOUR": text}, data_dir=tmp_path)
        assert settings.quiet_hour == Settings.from_env(settings.as_env()).quiet_hour == hour
    for wrong in ("24", "-1", "", "3.0", "three"):
        with pytest.raises(InvalidSetting, match="RECORDER_QUIET_HOUR"):
            Settings.from_env({"RECORDER_QUIET_HOUR": wrong}, data_dir=tmp_path)


def test_the_processes_of_sealing_are_a_number_or_the_cores(tmp_path: Path) -> None:
    cores = Settings.from_env({}, data_dir=tmp_path)
    assert cores.seal_processes == len(os.sched_getaffinity(0))
    assert "RECORDER_SEAL_PROCESSES" not in cores.as_env()
    chosen = Settings.from_env({"RECORDER_SEAL_PROCESSES": "117"}, data_dir=tmp_path)
    assert (chosen.seal_processes, chosen.as_env()["RECORDER_SEAL_PROCESSES"]) == (117, "117")
    for wrong in ("0", "257", "-1", "two", "٣", "1.0"):
        with pytest.raises(InvalidSetting, match="RECORDER_SEAL_PROCESSES"):
            Settings.from_env({"RECORDER_SEAL_PROCESSES": wrong}, data_dir=tmp_path)


def test_runs_of_sealing_count_the_cores_of_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(3)))
    settings = Settings.from_env({}, data_dir=tmp_path)
    assert (settings.seal_runs, settings.seal_processes) == (3, 3)


def test_an_empty_size_or_number_of_processes_is_the_default(tmp_path: Path) -> None:
    empty = {f"RECORDER_{name}": "" for name in ("SESSION_EVENTS", "SESSION_BYTES", "SEAL_PROCESSES")}
    settings = Settings.from_env({**empty, "RECORDER_SESSION_FRAMES": "7"}, data_dir=tmp_path)
    assert settings.session_size == SessionSize(frames=7)
    assert settings.seal_processes == Settings.from_env({}, data_dir=tmp_path).seal_processes


def test_the_secret_is_made_once_and_never_shown(tmp_path: Path) -> None:
    first = Settings.from_env({}, data_dir=tmp_path)
    assert len(first.secret) == 64 and first.secret.decode() not in repr(first)
    assert Settings.from_env({}, data_dir=tmp_path).secret == first.secret
    assert stat.S_IMODE((tmp_path / "secret").stat().st_mode) == 0o600


@pytest.mark.parametrize("attempt", range(2))
def test_processes_that_start_at_once_share_one_secret(tmp_path: Path, attempt: int) -> None:
    program = (
        "import sys, pathlib; from recorder.settings import Settings\n"
        "print('ready', flush=True); sys.stdin.read(1)\n"
        f"print(Settings.from_env({{}}, data_dir=pathlib.Path({str(tmp_path)!r})).secret.decode())"
    )
    secrets = {printed for _, printed in released_together(program, 6)}
    assert len(secrets) == 1 and len(secrets.pop().strip()) == 64
    assert [path.name for path in tmp_path.iterdir()] == ["secret"]


@pytest.mark.parametrize("name", ["BLOB", "LAKE", "EXPORT", "COLD"])
def test_an_address_with_a_password_is_refused_and_not_shown(tmp_path: Path, name: str) -> None:
    for url in ("sftp://ada:hunter2@files.example/x", "simplecache::s3://key:hunter2@bucket"):
        with pytest.raises(InvalidSetting, match="FSSPEC_SFTP_PASSWORD") as refused:
            Settings.from_env({f"RECORDER_{name}_URL": url}, data_dir=tmp_path)
        assert "hunter2" not in str(refused.value)
    for url in ("abfss://box@account.dfs.core.windows.net/x", "sftp://ada@files.example/x", "/srv/a:b@c"):
        assert url in repr(Settings.from_env({f"RECORDER_{name}_URL": url}, data_dir=tmp_path))


def test_the_attempts_of_a_delivery_are_a_number_from_one_to_eight(tmp_path: Path) -> None:
    chosen = Settings.from_env({"RECORDER_WEBHOOK_ATTEMPTS": "8"}, data_dir=tmp_path)
    assert (chosen.webhook_attempts, chosen.as_env()["RECORDER_WEBHOOK_ATTEMPTS"]) == (8, "8")
    for wrong in ("0", "9", "seven", "٣", ""):
        with pytest.raises(InvalidSetting, match="RECORDER_WEBHOOK_ATTEMPTS"):
            Settings.from_env({"RECORDER_WEBHOOK_ATTEMPTS": wrong}, data_dir=tmp_path)


def test_memory_of_bodies_holds_the_largest_request_twice(tmp_path: Path) -> None:
    chosen = Settings.from_env({"RECORDER_BODY_MEMORY_MB": "128"}, data_dir=tmp_path)
    assert chosen.body_memory_mb * 1024 * 1024 >= 2 * limits.FRAMES_REQUEST_BYTES
    assert Settings.from_env(chosen.as_env()).body_memory_mb == 128
    for wrong in ("127", "0", "-1", "1e3", "512 MB", "٥١٢"):
        with pytest.raises(InvalidSetting, match="RECORDER_BODY_MEMORY_MB"):
            Settings.from_env({"RECORDER_BODY_MEMORY_MB": wrong}, data_dir=tmp_path)


def test_a_variable_that_is_no_setting_is_named_with_the_nearest_one() -> None:
    env = {
        "RECORDER_SEAL_SLOT": "4",
        "RECORDER_QQQ": "",
        "RECORDER_REGION": "eu",
        "RECORDERS": "1",
        "PATH": "/",
    }
    far, near = describe_unknown_settings(env)
    assert far.startswith("Warning  RECORDER_QQQ is no setting") and "docs/settings.md" in far
    assert near.endswith("Did you mean RECORDER_SEAL_SLOTS?")


def test_every_variable_that_the_product_reads_is_known() -> None:
    root = Path(__file__).parents[1]
    files = [path for part in ("recorder", "api", "pipelines") for path in (root / part).rglob("*.py")]
    read = {name for path in files for name in re.findall(r"\bRECORDER_([A-Z0-9_]+)", path.read_text())}
    page = re.findall(r"`RECORDER_([A-Z0-9_]+)`", (root / "docs/settings.md").read_text())
    tests_own = {name for name in page if name.startswith(("FAULT_", "FUZZ_"))}
    # The variables of a session's size are put together from the names of their members.
    assert read | {"SESSION_EVENTS", "SESSION_FRAMES", "SESSION_BYTES"} == VARIABLES
    assert set(page) - tests_own == VARIABLES


def test_a_folder_of_a_store_is_the_same_for_processes_of_other_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = Settings.from_env({"RECORDER_BLOB_URL": "frames", "RECORDER_LAKE_URL": "~/lake"})
    assert (settings.blob_url, settings.lake_url) == (str(tmp_path / "frames"), str(Path.home() / "lake"))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("RECORDER_REGION", "mars"),
        ("RECORDER_LOG_LEVEL", "loud"),
        ("RECORDER_SEAL_RUNS", "x"),
        ("RECORDER_REDIS_URL", "127.0.0.1:6379"),
        ("RECORDER_PUBLIC_URL", "recorder.example"),
        ("RECORDER_PUBLIC_URL", "https://recorder.example?a=1"),
    ],
)
def test_a_setting_that_cannot_be_read_creates_nothing(tmp_path: Path, name: str, value: str) -> None:
    with pytest.raises(InvalidSetting, match=f"^{name} takes "):
        Settings.from_env({name: value}, data_dir=tmp_path / "data")
    assert not (tmp_path / "data").exists()
