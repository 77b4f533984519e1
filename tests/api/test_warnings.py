"""Warnings of `/readyz` and their gauges: late sealing, sessions set aside, Dagster. Contract §9."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from api.routes.health import Readiness
from recorder import clock
from recorder.errors import Unavailable
from recorder.models.session import SessionRow
from recorder.sealing import breaker
from recorder.sealing.failures import read_sealing_backlog, set_aside
from recorder.service_state import (
    DagsterStatus,
    list_warnings,
    read_service_state,
    read_service_statuses,
    store_service_statuses,
)
from tests.api.test_metrics import scrape
from tests.support.databases import create_database, create_file
from tests.support.factories import Caller, Service, running_app
from tests.support.statements import before_each_statement


@pytest.fixture(autouse=True)
def now(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each test begin now: the service compares with its own clock."""
    begin = clock.now()
    monkeypatch.setitem(globals(), "NOW", begin)
    kinds = (("sensor", "stopped_sessions"), ("schedule", "nightly_rebuild"), ("daemon", "SENSOR"))
    monkeypatch.setitem(
        globals(), "RUNNING", [DagsterStatus(kind, name, True, begin) for kind, name in kinds]
    )


NOW = clock.now()
RUNNING: list[DagsterStatus] = []


@pytest.fixture
def fresh(database_url: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Service]:
    """Yield a service without a session or a report of Dagster, on the engine of the test."""
    if database_url.startswith("sqlite"):
        url = create_file(tmp_path)
    else:
        url = create_database(request.getfixturevalue("postgres"))
    with running_app(tmp_path, url) as running:
        yield running


def warn(service: Service, **later: float) -> dict[str, str]:
    """Return the messages by code, as they would be so much later."""
    with service.runtime.database.transaction(write=False) as db:
        warnings = list_warnings(read_service_state(db), NOW + timedelta(**later))
    assert len({item.code for item in warnings}) == len(warnings)
    return {item.code: item.message for item in warnings}


def test_a_service_that_dagster_never_reported_to_says_what_stands_still(fresh: Service) -> None:
    codes = warn(fresh)
    assert list(codes) == ["dagster_silent"]
    assert "never reported" in codes["dagster_silent"] and "--no-dagster" in codes["dagster_silent"]
    answer = fresh.client.get("/readyz")
    assert answer.status_code == 200 and answer.json()["status"] == "ok"
    assert answer.json()["warnings"] == [{"code": "dagster_silent", "message": codes["dagster_silent"]}]


def test_while_dagster_reports_there_is_nothing_to_warn_of(fresh: Service) -> None:
    assert store_service_statuses(fresh.runtime.database, RUNNING)
    assert warn(fresh, seconds=89) == {}
    assert fresh.client.get("/readyz").json()["warnings"] == []


def test_an_error_that_nothing_can_be_sealed_with_is_named_until_a_session_is_sealed(fresh: Service) -> None:
    store_service_statuses(fresh.runtime.database, RUNNING)
    with fresh.runtime.database.transaction(write=True) as db:
        for workspace_id in ("wsp_a", "wsp_b"):
            breaker.count_breaker_failure(db, "KeyError", workspace_id=workspace_id, session_id=None)
    assert list(warn(fresh)) == ["sealing_fails"]
    (warning,) = fresh.client.get("/readyz").json()["warnings"]
    assert warning["code"] == "sealing_fails" and "KeyError" in warning["message"]
    with fresh.runtime.database.transaction(write=True) as db:
        breaker.close_breaker(db)
    assert warn(fresh) == {}


def test_an_old_report_is_dagster_s_silence(fresh: Service) -> None:
    store_service_statuses(fresh.runtime.database, RUNNING)
    assert "for 95 s" in warn(fresh, seconds=95)["dagster_silent"]
    assert "for 10 min" in warn(fresh, minutes=10)["dagster_silent"]


def test_dagster_s_silence_is_noted_after_the_clock_was_set_back(fresh: Service) -> None:
    ahead = [replace(item, seen_at=item.seen_at + timedelta(hours=5)) for item in RUNNING]
    assert store_service_statuses(fresh.runtime.database, ahead)
    assert "300 min in the future" in warn(fresh)["dagster_silent"]
    assert store_service_statuses(fresh.runtime.database, RUNNING)
    assert warn(fresh) == {} and "for 10 min" in warn(fresh, minutes=10)["dagster_silent"]


def test_what_somebody_switched_off_is_named_and_counted(fresh: Service) -> None:
    off = [replace(item, is_on=item.kind == "daemon") for item in RUNNING]
    store_service_statuses(fresh.runtime.database, off)
    warned = warn(fresh)
    assert list(warned) == ["schedule_off", "sensor_off"]
    assert "`stopped_sessions`" in warned["sensor_off"] and "`nightly_rebuild`" in warned["schedule_off"]
    assert scrape(fresh)[("recorder_sensors_off", frozenset())] == 2


def test_a_daemon_whose_heartbeat_is_old_is_named(fresh: Service) -> None:
    late = replace(RUNNING[2], seen_at=NOW - timedelta(seconds=200))
    store_service_statuses(fresh.runtime.database, [*RUNNING[:2], late])
    assert "sensor daemon" in warn(fresh)["daemon_late"]
    store_service_statuses(fresh.runtime.database, RUNNING)
    assert warn(fresh) == {}


def test_reports_are_stored_when_they_differ_or_are_old(fresh: Service) -> None:
    database = fresh.runtime.database

    def report(seconds: float, *, is_on: bool = True) -> bool:
        moved = [replace(item, seen_at=item.seen_at + timedelta(seconds=seconds)) for item in RUNNING]
        return store_service_statuses(database, [replace(moved[0], is_on=is_on), *moved[1:]])

    assert [report(0), report(10), report(29), report(30), report(40)] == [True, False, False, True, False]
    assert [report(41, is_on=False), report(42, is_on=False), report(43)] == [True, False, True]
    assert store_service_statuses(database, RUNNING[:1])
    with database.transaction(write=False) as db:
        assert [warning.name for warning in read_service_statuses(db)] == ["stopped_sessions"]


def test_the_backlog_counts_what_waits_and_what_was_set_aside(fresh: Service) -> None:
    caller, runtime = fresh.make_caller(), fresh.runtime
    store_service_statuses(runtime.database, RUNNING)
    waiting = [caller.make_session(status="stopped") for _ in range(3)]
    caller.make_session(status="deleted")
    caller.make_session()
    aside = caller.make_session(status="stopped")
    with runtime.database.transaction(write=True) as db:
        assert set_aside(db, aside, "worker_killed", "The process that sealed it was killed.")
    with runtime.database.transaction(write=True) as db:
        row = db.get_one(SessionRow, waiting[1])
        row.waiting_since = NOW - timedelta(minutes=5)
        db.add(row)
    with runtime.database.transaction(write=False) as db:
        backlog = read_sealing_backlog(db)
    assert (backlog.waiting, backlog.set_aside) == (3, 1)
    assert backlog.oldest_waiting_s is not None and 300 <= backlog.oldest_waiting_s < 400
    warned = warn(fresh)
    assert list(warned) == ["sealing_behind", "sessions_set_aside"]
    assert ": 3, the oldest for 5 min" in warned["sealing_behind"] and ": 1." in warned["sessions_set_aside"]
    samples = scrape(fresh)
    assert samples[("recorder_sessions_to_seal", frozenset())] == 3
    assert samples[("recorder_sessions_set_aside", frozenset())] == 1
    assert 300 <= samples[("recorder_oldest_unsealed_seconds", frozenset())] < 400


def test_an_import_waits_since_it_was_stopped_here(fresh: Service) -> None:
    caller = fresh.make_caller()
    assert read_age(fresh) is None
    caller.make_session(status="stopped", started_at="2020-01-01T00:00:00Z")
    age = read_age(fresh)
    assert age is not None and age < 60
    assert scrape(fresh)[("recorder_sessions_to_seal", frozenset())] == 1


def read_age(service: Service) -> float | None:
    """Return seconds that the oldest session waits."""
    with service.runtime.database.transaction(write=False) as db:
        return read_sealing_backlog(db).oldest_waiting_s


def test_a_database_that_is_away_brings_no_warnings_along(
    caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    # One that keeps no earlier answer.
    monkeypatch.setattr(caller.service.app.state, "readiness", Readiness(caller.service.runtime))

    def refuse(_: str) -> None:
        raise Unavailable("The database")

    with before_each_statement(refuse):
        answer = caller.service.client.get("/readyz")
    assert (answer.status_code, answer.json()["warnings"]) == (503, [])
