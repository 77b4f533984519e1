"""Reports of our Dagster sensor: switched-off sensors and schedules, heartbeats of daemons."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.definitions.run_request import InstigatorType
from dagster._core.remote_origin import RegisteredCodeLocationOrigin, RemoteRepositoryOrigin
from dagster._core.scheduler.instigation import InstigatorState, InstigatorStatus, SensorInstigatorData
from dagster._daemon.types import DaemonHeartbeat

from pipelines.daemon import HEARTBEAT_S, WATCHED, copy_daemon_heartbeats, read_slowest_daemon_heartbeat
from pipelines.definitions import defs
from pipelines.export_slots import EXPORT_POOL, store_export_pool_limit
from pipelines.orchestration_status import read_dagster_statuses, report_orchestration_statuses
from pipelines.resources import RecorderResource
from recorder import clock
from recorder.heartbeat import HeartbeatReader
from recorder.service_state import read_service_statuses
from tests.support.waiting import wait_for

HOME = Path(__file__).parents[2] / "dagster_home"


@pytest.fixture
def instance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dg.DagsterInstance]:
    """Yield the instance of `dagster_home/dagster.yaml` in a folder of the test."""
    monkeypatch.setenv("RECORDER_DAGSTER_DIR", str(tmp_path / "dagster"))
    with dg.DagsterInstance.from_config(str(HOME)) as instance:
        yield instance


def switch(instance: dg.DagsterInstance, kind: str, name: str, status: InstigatorStatus) -> None:
    """Switch a sensor or schedule as Dagster's pages do."""
    repository = RemoteRepositoryOrigin(RegisteredCodeLocationOrigin("recorder"), "__repository__")
    origin = repository.get_instigator_origin(name)
    data = SensorInstigatorData() if kind == "SENSOR" else None
    state = InstigatorState(origin, InstigatorType(kind), status, data)
    stored = instance.get_instigator_state(state.instigator_origin_id, state.selector_id)
    (instance.update_instigator_state if stored else instance.add_instigator_state)(state)


def send_heartbeats(instance: dg.DagsterInstance, at: float, kinds: list[str]) -> None:
    """Send heartbeats as daemons do."""
    for kind in kinds:
        instance.add_daemon_heartbeat(DaemonHeartbeat(at, kind, "daemon", []))


def tick(instance: dg.DagsterInstance, recorder: RecorderResource) -> str:
    """Return what the sensor says now."""
    answer = report_orchestration_statuses(instance, recorder, defs.get_repository_def())
    assert answer.skip_message
    return answer.skip_message


def test_what_is_switched_off_reaches_the_database_once(
    instance: dg.DagsterInstance, recorder: RecorderResource
) -> None:
    send_heartbeats(instance, 1_000.0, ["SENSOR"])
    assert tick(instance, recorder) == "Reported; switched off: none."
    assert tick(instance, recorder) == "Unchanged; switched off: none."
    switch(instance, "SENSOR", "stopped_sessions", InstigatorStatus.STOPPED)
    switch(instance, "SENSOR", "queued_exports", InstigatorStatus.RUNNING)
    switch(instance, "SENSOR", "sensor_of_an_older_release", InstigatorStatus.STOPPED)
    assert tick(instance, recorder) == "Reported; switched off: stopped_sessions."
    with recorder.runtime.database.transaction(write=False) as db:
        stored = {(status.kind, status.name): status for status in read_service_statuses(db)}
    assert {key for key, status in stored.items() if not status.is_on} == {("sensor", "stopped_sessions")}
    assert {name for kind, name in stored if kind == "sensor"} == {item.name for item in defs.sensors or []}
    assert {name for kind, name in stored if kind == "schedule"} == {
        item.name for item in defs.schedules or []
    }
    assert stored["daemon", "SENSOR"].seen_at == clock.from_ms(1_000_000)
    switch(instance, "SENSOR", "stopped_sessions", InstigatorStatus.RUNNING)
    assert tick(instance, recorder) == "Reported; switched off: none."


def test_a_schedule_of_the_same_name_as_a_sensor_is_another(instance: dg.DagsterInstance) -> None:
    switch(instance, "SENSOR", "nightly", InstigatorStatus.STOPPED)
    result = read_dagster_statuses(instance, sensors=["nightly"], schedules=["nightly"])
    assert [(item.kind, item.is_on) for item in result] == [("sensor", False), ("schedule", True)]


def test_the_pulse_follows_the_slower_of_the_watched_daemons(
    instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    assert set(WATCHED) <= set(instance.get_required_daemon_types()) and HEARTBEAT_S == 5
    pulse, over = tmp_path / "run" / "daemon.pulse", threading.Event()
    reader = HeartbeatReader(pulse)
    send_heartbeats(instance, 1_000.0, [WATCHED[0]])
    assert read_slowest_daemon_heartbeat(instance) is None
    send_heartbeats(instance, 1_000.0, list(WATCHED))
    follower = threading.Thread(target=copy_daemon_heartbeats, args=(instance, pulse, over))
    follower.start()
    try:
        time.sleep(3.5)
        send_heartbeats(instance, 1_005.0, [WATCHED[0]])
        time.sleep(3.5)
        assert not reader.has_beaten()  # the other one hangs
        send_heartbeats(instance, 1_005.0, [WATCHED[1]])
        wait_for(reader.has_beaten, seconds=10)
    finally:
        over.set()
        follower.join(10)


def test_the_limit_of_the_pool_of_exports_is_stored(instance: dg.DagsterInstance) -> None:
    assert instance.event_log_storage.get_pool_limits() == []
    store_export_pool_limit(instance)
    (pool,) = instance.event_log_storage.get_pool_limits()
    assert (pool.name, pool.limit) == (EXPORT_POOL, 2)
