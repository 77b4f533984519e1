"""The operator's check of a deployment finds what is broken, and nothing in a sound one. Contract §9."""

import json
import os
import random
import re
import shutil
import socket
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path

import pytest
from sqlmodel import select
from typer.testing import CliRunner

from recorder import clock, doctor
from recorder.cli import app
from recorder.data_folder import NoDeployment
from recorder.doctor.examination import examine_deployment, examine_redis, examine_stores
from recorder.doctor.findings import Finding
from recorder.doctor.lake_comparison import compare_sealed_with_lake
from recorder.doctor.machine import Ports, check_browser
from recorder.models.governance import ErasureRow, PurgeRow
from recorder.models.operations import LeaseRow
from recorder.models.session import SessionRow
from recorder.models.webhook import WebhookSecretRow
from recorder.models.workspace import DeploymentRow
from recorder.recording.session_stops import stop_session
from recorder.runtime import Runtime
from recorder.sealing.lanes import Lane
from recorder.settings import Settings
from recorder.tenant import Tenant
from recorder.webhooks.subscriptions import WebhookSecretBox
from tests.support.databases import part_is_missing
from tests.support.dom_snapshots import snapshot
from tests.support.factories import picture
from tests.support.project_texts import PAGES, table
from tests.support.recorded_sessions import open_desk, png_item
from tests.support.sealed_sessions import START, WORKSPACE, Recording, make_runtime, seal
from tests.support.sealing import seal_all

LIVE = Tenant(WORKSPACE, "live")


@pytest.fixture(autouse=True)
def _no_variables_of_the_test_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove `RECORDER_` variables of the test run, which are no settings of a deployment."""
    for name in [name for name in os.environ if name.startswith("RECORDER_")]:  # noqa: TID251
        monkeypatch.delenv(name)


@pytest.fixture
def runtime(database_url: str, tmp_path: Path) -> Iterator[Runtime]:
    """Deployment with three sealed sessions; the database may hold sessions of other tests."""
    opened = make_runtime(tmp_path / "data", database_url=database_url)
    with opened.database.transaction(write=True) as db:
        for row in [*db.exec(select(SessionRow)), *db.exec(select(LeaseRow))]:
            db.delete(row)
    opened.settings.data_dir.chmod(0o700)
    seal(opened, [Recording(frames=[0, 500]) for _ in range(3)])
    yield opened
    opened.close()


@pytest.fixture
def ports() -> Ports:
    """Ports that are free on this machine."""
    with socket.socket() as first, socket.socket() as second:
        for probe in (first, second):
            probe.bind(("127.0.0.1", 0))
        return Ports(api=first.getsockname()[1], dagster=second.getsockname()[1])


def findings(runtime: Runtime, ports: Ports, check: str) -> list[Finding]:
    """Return the findings of a check that are not `ok`."""
    seen = [
        finding
        for finding in examine_deployment(runtime.settings, ports=ports, seed=1)
        if finding.check == check
    ]
    assert seen, f"there is no check {check}"
    return [finding for finding in seen if finding.state != "ok"]


def test_a_sound_deployment_has_no_findings(runtime: Runtime, ports: Ports) -> None:
    settings = runtime.settings
    seen = list(examine_deployment(settings, ports=ports))
    checks = {"settings", "disk", "frames", "hosted exports", "lake", "database", "region", "clocks"}
    assert checks | {"leases", "contents", "ports"} <= {finding.check for finding in seen}
    # Dagster has never run here; where the database is the folder's own, the service counts as stopped.
    assert {finding.check for finding in seen if finding.state != "ok"} <= {"dagster silent"}
    assert all(finding.fix for finding in seen if finding.state != "ok")


def test_rights_of_others_on_the_data_folder_are_reported(runtime: Runtime, ports: Ports) -> None:
    runtime.settings.data_dir.chmod(0o755)
    (finding,) = findings(runtime, ports, "data folder")
    assert finding.fix == f"chmod 700 {runtime.settings.data_dir}"


def test_a_session_without_rows_in_the_lake_is_reported(runtime: Runtime, ports: Ports) -> None:
    with runtime.database.transaction(write=True) as db:
        row = db.exec(select(SessionRow)).first()
        assert row is not None
        copy = SessionRow(**row.model_dump() | {"id": "ses_01k0000000000000000000gone"})
        db.add(copy)
    (finding,) = findings(runtime, ports, "contents")
    assert finding.state == "error"
    assert "ses_01k0000000000000000000gone" in finding.message


@pytest.mark.parametrize("column", ["event_count", "frame_count"])
def test_other_numbers_of_rows_than_in_the_lake_are_reported(
    runtime: Runtime, ports: Ports, column: str
) -> None:
    with runtime.database.transaction(write=True) as db:
        row = db.exec(select(SessionRow)).first()
        assert row is not None
        setattr(row, column, 99)
        db.add(row)
        session_id = row.id
    (finding,) = findings(runtime, ports, "contents")
    assert session_id in finding.message


def test_a_missing_object_of_frames_is_reported(runtime: Runtime, ports: Ports) -> None:
    key = runtime.lake.scan("frames", LIVE).select("object").collect()["object"][0]
    runtime.blobs.delete(key)
    (finding,) = findings(runtime, ports, "contents")
    assert key in finding.message


def test_a_missing_object_of_snapshots_alone_is_reported(tmp_path: Path) -> None:
    runtime = make_runtime(tmp_path)
    with open_desk(runtime) as desk:
        session_id = desk.record(frames=[png_item(0, picture())], is_stopped=False)
        pictures = runtime.blobs.list_objects("frames/")
        desk.add_frames(session_id, png_item(500, picture(), dom=snapshot(["html", ["p", "Pay"]])))
        with runtime.database.transaction(write=True) as db:
            stop_session(db, LIVE, session_id)
    seal_all(runtime)

    def compare() -> list[Finding]:
        return [*compare_sealed_with_lake(runtime.database, runtime.blobs, runtime.lake, random.Random(1))]

    assert [finding.state for finding in compare()] == ["ok"]
    (snapshots,) = {*runtime.blobs.list_objects("frames/")} - {*pictures}
    runtime.blobs.delete(snapshots.key)
    (finding,) = compare()
    assert finding.state == "error" and snapshots.key in finding.message
    runtime.close()


@pytest.mark.parametrize("damage", ["missing", "cut off", "overwritten"])
def test_a_damaged_file_of_the_lake_is_reported(runtime: Runtime, ports: Ports, damage: str) -> None:
    path = next(Path(runtime.settings.lake_url, WORKSPACE, "live", "events").rglob("*.parquet"))
    match damage:
        case "missing":
            path.unlink()
        case "cut off":
            os.truncate(path, 100)
        case _:
            path.write_bytes(bytes(3_000))
    (finding,) = findings(runtime, ports, "contents")
    assert (finding.state, WORKSPACE in finding.message) == ("error", True)
    assert "restore" in finding.fix


def test_a_store_that_cannot_be_written_is_reported(runtime: Runtime, ports: Ports, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    settings = replace(runtime.settings, blob_url=str(tmp_path / "file"))
    seen = [finding for finding in examine_deployment(settings, ports=ports) if finding.state == "error"]
    assert "frames" in {finding.check for finding in seen}


def test_a_database_that_does_not_answer_is_reported(runtime: Runtime, ports: Ports, tmp_path: Path) -> None:
    settings = replace(runtime.settings, database_url=f"postgresql://recorder@127.0.0.1:{ports.api}/none")
    (finding,) = [
        finding for finding in examine_deployment(settings, ports=ports) if finding.check == "database"
    ]
    assert finding.state == "error"


def test_times_in_the_future_are_reported(runtime: Runtime, ports: Ports) -> None:
    with runtime.database.transaction(write=True) as db:
        row = db.exec(select(SessionRow)).first()
        assert row is not None
        row.created_at = clock.now() + timedelta(hours=1)
        db.add(row)
    (finding,) = findings(runtime, ports, "clocks")
    assert "in the future" in finding.message


def test_a_lane_that_waits_for_an_ended_run_is_reported(runtime: Runtime, ports: Ports) -> None:
    lane = Lane(Tenant(WORKSPACE, "live"), 0)
    with runtime.database.transaction(write=True) as db:
        row = db.exec(select(SessionRow)).first()
        assert row is not None
        row.status, row.seal_slot, row.waiting_since = "stopped", 0, START
        db.add(row)
        expired = clock.now_ms() - 120_000
        db.add(LeaseRow(name=lane.name, owner="run-that-ended", fence=1, expires_ms=expired))
    (finding,) = findings(runtime, ports, "leases")
    assert lane.name in finding.message


def test_overdue_erasures_and_purges_are_reported(runtime: Runtime, ports: Ports) -> None:
    now = clock.now()
    with runtime.database.transaction(write=True) as db:
        for number, due_by in enumerate((now - timedelta(days=2), now + timedelta(days=2))):
            db.add(
                ErasureRow(
                    id=f"era_{number}",
                    workspace_id=WORKSPACE,
                    mode="live",
                    subject_hash=str(number),
                    subject=b"",
                    created_at=due_by - timedelta(days=30),
                    due_by=due_by,
                    counts={},
                )
            )
        for number, hours in enumerate((3, 2, 0)):
            at = now - timedelta(hours=hours)
            db.add(
                PurgeRow(
                    session_id=f"ses_{number}",
                    workspace_id=WORKSPACE,
                    mode="live",
                    workflow="checkout",
                    cause="hard_delete",
                    step="done" if hours == 3 else "lake",
                    due_at=now,
                    requested_at=at,
                    dates=[],
                )
            )
    erasure, purge = findings(runtime, ports, "erasures")
    assert (erasure.state, purge.state) == ("error", "warning")
    assert f": 1, the first since {now - timedelta(days=2):%Y-%m-%d}." in erasure.message
    assert purge.message.endswith(": 1.")
    with runtime.database.transaction(write=True) as db:
        for purge_row in db.exec(select(PurgeRow)):
            db.delete(purge_row)
        for row in db.exec(select(ErasureRow)):
            row.due_by, row.stale_tables = now + timedelta(days=20), "tags"
            db.add(row)
    (rewrite,) = findings(runtime, ports, "erasures")
    assert rewrite.state == "warning" and "--rewrite" in rewrite.fix and rewrite.message.endswith(": 2.")
    for hours, count in ((49, 1), (47, 0)):
        with runtime.database.transaction(write=True) as db:
            for row in db.exec(select(ErasureRow)):
                row.created_at = now - timedelta(hours=hours)
                db.add(row)
        assert len(findings(runtime, ports, "erasures")) == count
    with runtime.database.transaction(write=True) as db:
        for row in db.exec(select(ErasureRow)):
            db.delete(row)
    assert findings(runtime, ports, "erasures") == []


def test_another_region_is_reported(runtime: Runtime, ports: Ports) -> None:
    other = replace(runtime, settings=replace(runtime.settings, region="eu"))
    (finding,) = findings(other, ports, "region")
    assert finding.state == "error" and "RECORDER_REGION" in finding.message


def test_a_disk_that_is_nearly_full_is_reported(
    runtime: Runtime, ports: Ports, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(runtime.settings.data_dir)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=usage.total // 25))
    (finding,) = findings(runtime, ports, "disk")
    assert finding.state == "warning" and "503" in finding.fix


def test_a_variable_that_is_no_setting_is_reported(
    runtime: Runtime, ports: Ports, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RECORDER_REDIS_ULR", "redis://127.0.0.1")
    (finding,) = findings(runtime, ports, "settings")
    assert "RECORDER_REDIS_URL" in finding.message


def test_a_secret_that_is_not_the_deployments_is_reported(runtime: Runtime, ports: Ports) -> None:
    assert findings(runtime, ports, "secret") == []
    other = replace(runtime, settings=replace(runtime.settings, secret=b"another secret"))
    (runtime.settings.data_dir / "secret").write_bytes(runtime.settings.secret)
    of_file, of_record = findings(other, ports, "secret")
    assert str(runtime.settings.data_dir / "secret") in of_file.message and of_file.state == "warning"
    assert "is not the one" in of_record.message and of_record.state == "error"
    assert "`recorder db accept-secret`" in of_record.fix
    with runtime.database.transaction(write=True) as db:
        db.get_one(DeploymentRow, 1).secret_check = None  # no start of this release yet
    row = WebhookSecretRow(
        webhook_id="whk_1",
        number=1,
        key_id=WebhookSecretBox(runtime.settings.secret).key_id,
        ciphertext=b"",
        created_at=START,
    )
    with runtime.database.transaction(write=True) as db:
        db.add(row)
    assert findings(runtime, ports, "secret") == []
    assert [finding.state for finding in findings(other, ports, "secret")] == ["warning", "error"]
    with runtime.database.transaction(write=True) as db:
        db.delete(db.get_one(WebhookSecretRow, ("whk_1", 1)))


@pytest.mark.parametrize("words", ["named, and cannot be run", "named, and does not start", "allowed hosts"])
def test_a_browser_of_live_replays_that_is_missing_is_reported(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    if words == "allowed hosts":
        monkeypatch.setattr("recorder.live.browser.find_spec", lambda _: None)
        (unused,) = check_browser(runtime.settings, is_wanted=False)
        assert unused.state == "ok"
    else:
        name = "no-such-browser" if "run" in words else "false"
        browser = runtime.settings.browser._replace(chromium=name)
        runtime = replace(runtime, settings=replace(runtime.settings, browser=browser))
        if find_spec("playwright") is None:
            part_is_missing("Playwright is not installed.")
    (finding,) = check_browser(runtime.settings, is_wanted=words == "allowed hosts")
    assert finding.state == "warning" and finding.fix


def test_an_archive_in_a_folder_beside_a_store_is_reported(runtime: Runtime) -> None:
    urls = {"blob_url": "s3://frames", "database_url": "postgresql://db/recorder"}
    settings = replace(runtime.settings, **urls)
    seen = list(examine_stores(settings, runtime.blobs, runtime.lake))
    (finding,) = (finding for finding in seen if finding.state != "ok")
    assert "RECORDER_COLD_URL" in finding.fix
    seen = list(
        examine_stores(replace(settings, cold_storage_class="GLACIER_IR"), runtime.blobs, runtime.lake)
    )
    assert {finding.state for finding in seen} == {"ok"}


def test_an_archive_in_the_place_of_the_frames_is_reported(runtime: Runtime) -> None:
    settings = replace(runtime.settings, cold_url=f"file://{runtime.blobs.url}")
    seen = list(examine_stores(settings, runtime.blobs, runtime.lake))
    (finding,) = (finding for finding in seen if finding.state != "ok")
    assert (finding.check, finding.state) == ("archived frames", "error")
    assert "RECORDER_COLD_URL" in finding.message and "RECORDER_COLD_STORAGE_CLASS" in finding.fix


def test_the_command_prints_findings_and_exits_with_1(tmp_path: Path, ports: Ports) -> None:
    data = tmp_path / "data"
    make_runtime(data).close()
    data.chmod(0o755)
    words = ["doctor", "--data", str(data), "--port", str(ports.api), "--dagster-port", str(ports.dagster)]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 1
    assert max(map(len, result.stdout.splitlines())) <= 80 + len(str(data))
    printed = json.loads(CliRunner().invoke(app, [*words, "--json"]).stdout)
    assert {"check": "ports", "state": "ok"}.items() <= printed[-1].items()
    assert [finding["check"] for finding in printed if finding["state"] != "ok"] == ["data folder"]
    data.chmod(0o700)
    assert CliRunner().invoke(app, words).exit_code == 0


def test_the_command_examines_a_deployment_whose_database_is_elsewhere(
    tmp_path: Path, ports: Ports, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As in a container of the API alone: `recorder up` has never run on the folder.
    data = tmp_path / "data"
    data.mkdir(mode=0o700)
    monkeypatch.setenv("RECORDER_SECRET", "s3cret")
    monkeypatch.setenv("RECORDER_DATABASE_URL", f"sqlite:///{tmp_path / 'elsewhere.db'}")
    words = ["doctor", "--data", str(data), "--port", str(ports.api), "--dagster-port", str(ports.dagster)]
    result = CliRunner().invoke(app, [*words, "--json"])
    assert isinstance(result.exception, NoDeployment) and list(data.iterdir()) == []
    Runtime.open(Settings.from_env(data_dir=data)).close()
    printed = json.loads(CliRunner().invoke(app, [*words, "--json"]).stdout)
    assert {"database", "region", "secret"} <= {finding["check"] for finding in printed}
    # Nothing runs yet.
    assert {finding["check"] for finding in printed if finding["state"] != "ok"} <= {"dagster silent"}
    (tmp_path / "elsewhere.db").unlink()
    (tmp_path / "elsewhere.db").write_text("no database")
    result = CliRunner().invoke(app, [*words, "--json"])
    assert [f["check"] for f in json.loads(result.stdout) if f["state"] == "error"] == ["database"]


def test_the_page_of_the_command_lists_every_check() -> None:
    folder = Path(str(doctor.__file__)).parent
    source = "".join(path.read_text(encoding="utf-8") for path in folder.glob("*.py"))
    checks = set(re.findall(r'(?:Finding|_examine_store_access)\("([a-z ]+)"', source))
    checks |= {"frames", "hosted exports", "archived frames"}
    rows = table(PAGES["docs/command-line.md"], "## recorder doctor\n")
    listed = {name for row in rows for name in row[0].split(", ")}
    assert listed == checks


def test_a_redis_that_does_not_answer_is_an_error_with_the_next_step(
    runtime: Runtime, redis_url: str
) -> None:
    settings = runtime.settings
    assert list(examine_redis(settings)) == []
    (answering,) = examine_redis(replace(settings, redis_url=redis_url))
    assert (answering.check, answering.state) == ("redis", "ok")
    (lost,) = examine_redis(replace(settings, redis_url="redis://127.0.0.1:1"))
    assert (
        lost.state == "error"
        and "RECORDER_REDIS_URL" in lost.message
        and "counts its limits alone" in lost.fix
    )
