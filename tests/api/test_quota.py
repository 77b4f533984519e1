"""`GET /v1/quota`, and what goes on once the minutes are used up. Spec §2.9, §8.2; contract §7."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from sqlmodel import select

from recorder import clock
from recorder.access.quota import reserve_quota_rows
from recorder.access.rate_tiers import TIERS
from recorder.models.operations import OutboxRow
from recorder.models.session import SessionRow
from recorder.tenant import Tenant
from tests.support.factories import Caller, Service, assert_problem, event, footprint, frame

MINUTE = 60_000
LONG_AGO = "2024-02-29T10:00:00.000Z"


@pytest.fixture(scope="module", autouse=True)
def tiny() -> Iterator[None]:
    """Yield a tier with ten minutes and a hundred rows a month."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(
            TIERS,
            "tiny",
            replace(TIERS["unlimited"], name="tiny", captured_minutes=10, exported_rows=100),
        )
        yield


@pytest.fixture
def limited(service: Service) -> Caller:
    """Return a key of a workspace with ten minutes."""
    return service.make_caller(tier="tiny")


@pytest.fixture
def exhausted(limited: Caller) -> tuple[Caller, str]:
    """Return the limited key with nothing left, and its session, which records."""
    session_id = limited.make_session(started_at=LONG_AGO)
    assert limited.add_events(session_id, event(10 * MINUTE)).status_code == 202
    return limited, session_id


def quota_events(caller: Caller) -> list[OutboxRow]:
    """Return the quota events of a workspace."""
    with caller.service.runtime.database.transaction(write=False) as db:
        statement = select(OutboxRow).where(OutboxRow.subject_id == caller.key.workspace_id)
        return list(db.exec(statement.order_by(OutboxRow.id)))


def test_the_quota_has_the_fields_of_the_specification(limited: Caller) -> None:
    quota = limited.get("/v1/quota").json()
    start, end = (clock.parse_time(quota[name], name=name) for name in ("period_start", "period_end"))
    assert start <= clock.now() < end
    assert quota == {
        "period_start": clock.to_iso(start),
        "period_end": clock.to_iso(end),
        "captured_minutes": 0,
        "captured_minutes_limit": 10,
        "exported_rows": 0,
        "exported_rows_limit": 100,
    }


def test_a_tier_without_limits_shows_null(service: Service) -> None:
    quota = service.make_caller(tier="default").get("/v1/quota").json()
    assert (quota["captured_minutes_limit"], quota["exported_rows_limit"]) == (None, None)


def test_minutes_show_as_batches_arrive(limited: Caller) -> None:
    session_id = limited.make_session(started_at=LONG_AGO)
    seen = []
    for t_ms in (MINUTE - 1, 2 * MINUTE, 3 * MINUTE + 59_999):
        limited.add_events(session_id, event(t_ms))
        seen.append(limited.get("/v1/quota").json()["captured_minutes"])
    assert seen == [0, 2, 3]


def test_frames_count_as_events_do(limited: Caller) -> None:
    session_id = limited.make_session(started_at=LONG_AGO)
    limited.add_frames(session_id, frame(4 * MINUTE))
    assert limited.get("/v1/quota").json()["captured_minutes"] == 4


def test_live_sessions_of_the_last_second_count_no_minute(limited: Caller) -> None:
    session_id = limited.make_session()
    limited.add_events(session_id, event(9 * MINUTE))
    limited.post(f"/v1/sessions/{session_id}/stop")
    assert limited.get("/v1/quota").json()["captured_minutes"] == 0


@pytest.mark.parametrize("what", ["create", "create and start", "start", "events", "frames"])
def test_nothing_new_begins_once_the_minutes_are_used_up(limited: Caller, what: str) -> None:
    created = limited.make_session(status="created")
    session_id = limited.make_session(started_at=LONG_AGO)
    limited.add_events(session_id, event(10 * MINUTE))
    requests: dict[str, Any] = {
        "create": lambda: limited.post("/v1/sessions", {"workflow": "checkout"}),
        "create and start": lambda: limited.post("/v1/sessions", {"workflow": "checkout", "start": True}),
        "start": lambda: limited.post(f"/v1/sessions/{created}/start"),
        "events": lambda: limited.add_events(session_id, event(1)),
        "frames": lambda: limited.add_frames(session_id, frame(1)),
    }
    before = footprint(limited.service.runtime)
    answer = requests[what]()
    assert_problem(answer, 429, "quota_exceeded")
    assert "retry-after" not in answer.headers
    assert footprint(limited.service.runtime) == before


def test_stops_tags_and_reads_go_on(exhausted: tuple[Caller, str]) -> None:
    caller, session_id = exhausted
    address = f"/v1/sessions/{session_id}"
    assert caller.post(f"{address}/tags", {"name": "success"}).status_code == 201
    assert caller.post(f"{address}/start").status_code == 200  # it records already
    assert caller.post(f"{address}/stop").json()["duration_ms"] == 10 * MINUTE
    assert caller.get(f"{address}?include=events,tags").json()["outcome"] == "success"
    assert caller.get("/v1/quota").json()["captured_minutes"] == 10


def test_a_batch_stop_goes_on_and_is_charged_whole(limited: Caller) -> None:
    ids = [limited.make_session(started_at=LONG_AGO) for _ in range(3)]
    limited.add_events(ids[0], event(10 * MINUTE))
    result = limited.post("/v1/sessions:batch_stop", {"ids": ids}).json()
    assert (result["stopped"], result["failed"]) == (3, 0)
    assert limited.get("/v1/quota").json()["captured_minutes"] == 10


def test_what_was_sent_before_is_answered_as_before(limited: Caller) -> None:
    session_id = limited.make_session(started_at=LONG_AGO)
    shot = frame(2, id="frm_A1")
    first = limited.add_frames(session_id, shot).json()
    keyed = limited.add_events(session_id, event(10 * MINUTE), key="last").json()
    assert limited.add_events(session_id, event(10 * MINUTE), key="last").json() == keyed
    again = limited.add_frames(session_id, shot).json()
    assert (again["accepted"], again["duplicates"], again["data"]) == (0, 1, first["data"])


def test_state_and_existence_are_told_before_the_quota(exhausted: tuple[Caller, str]) -> None:
    caller, session_id = exhausted
    caller.post(f"/v1/sessions/{session_id}/stop")
    assert_problem(caller.add_events(session_id, event(1)), 409, "invalid_state")
    assert_problem(caller.add_frames(session_id, frame(1)), 409, "invalid_state")
    assert_problem(caller.add_events("ses_none", event(1)), 404, "not_found")
    assert_problem(caller.post("/v1/sessions", {"workflow": "X"}), 422, "validation_failed")


def test_warning_and_end_are_told_once_with_the_quota(limited: Caller) -> None:
    session_id = limited.make_session(started_at=LONG_AGO)
    for minutes in (7, 8, 9, 10, 11):
        limited.add_events(session_id, event(minutes * MINUTE))
    limited.post(f"/v1/sessions/{session_id}/stop")
    notices = quota_events(limited)
    assert [(item.type, item.mode) for item in notices] == [
        ("quota.warning", "live"),
        ("quota.exhausted", "live"),
    ]
    assert [item.data["used"] for item in notices] == [8, 10]
    quota = limited.get("/v1/quota").json()
    assert notices[1].data == {"quota": quota, "metric": "captured_minutes", "used": 10, "limit": 10}
    assert notices[1].created_at <= clock.now()


def test_a_stop_that_reaches_the_end_tells_it(limited: Caller) -> None:
    session_id = limited.make_session()
    with limited.service.runtime.database.transaction(write=True) as db:
        row = db.get_one(SessionRow, session_id)
        assert row.started_at is not None
        row.started_at = clock.from_ms(clock.to_ms(row.started_at) - 11 * MINUTE)
    limited.post(f"/v1/sessions/{session_id}/stop")
    assert [quota_event.type for quota_event in quota_events(limited)] == ["quota.warning", "quota.exhausted"]


def test_test_mode_is_free_and_goes_on(exhausted: tuple[Caller, str]) -> None:
    caller, _ = exhausted
    tester = caller.service.make_caller(mode="test", workspace_id=caller.key.workspace_id)
    session_id = tester.make_session(started_at=LONG_AGO)
    assert tester.add_events(session_id, event(99 * MINUTE)).status_code == 202
    quota = tester.get("/v1/quota").json()
    assert (quota["captured_minutes"], quota["captured_minutes_limit"]) == (0, None)
    assert caller.get("/v1/quota").json()["captured_minutes"] == 10


def test_workspaces_do_not_share_a_quota(exhausted: tuple[Caller, str]) -> None:
    other = exhausted[0].service.make_caller(tier="tiny")
    assert other.get("/v1/quota").json()["captured_minutes"] == 0
    assert other.post("/v1/sessions", {"workflow": "checkout"}).status_code == 201


def test_a_deleted_session_is_not_given_back(exhausted: tuple[Caller, str]) -> None:
    caller, session_id = exhausted
    assert caller.delete(f"/v1/sessions/{session_id}").status_code == 204
    assert caller.get("/v1/quota").json()["captured_minutes"] == 10


def test_an_export_without_rows_left_is_refused_at_once(service: Service) -> None:
    caller = service.make_caller(tier="tiny")
    caller.make_session(status="stopped")
    body = {"workflow": "checkout", "format": "parquet", "destination": {"kind": "signed_url"}}
    with service.runtime.database.transaction(write=True) as db:
        reserve_quota_rows(db, Tenant(caller.key.workspace_id, "live"), 100)
    before = footprint(service.runtime)
    assert_problem(caller.post("/v1/exports", body), 429, "quota_exceeded")
    assert_problem(caller.post("/v1/exports", {**body, "workflow": "unknown"}), 404, "not_found")
    assert footprint(service.runtime) == before
