"""The end of the captured minutes: which batch is the last, whoever sends it. Spec §8.2, contract §7."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from recorder import clock
from recorder.access.quota import charge_quota_minutes, read_quota
from recorder.errors import QuotaExceeded
from recorder.ids import new_id
from recorder.recording.ingest import IngestWriter
from recorder.tenant import Tenant
from tests.support.captured_minutes import MINUTE, TINY, ChargedTenant, codes, submit


def test_the_batch_that_reaches_the_limit_is_the_last(tenant: ChargedTenant, writer: IngestWriter) -> None:
    session_id = tenant.session()
    times = [4 * MINUTE, 9 * MINUTE, 25 * MINUTE, 26 * MINUTE]
    answers = [submit((writer, tenant.batch(session_id, t_ms)))[0] for t_ms in times]
    assert codes(answers) == ["accepted", "accepted", "accepted", "quota_exceeded"]
    assert (tenant.used_ms(), tenant.event_count(session_id)) == (25 * MINUTE, 3)
    assert tenant.notices() == ["quota.warning", "quota.exhausted"]


def test_batches_of_one_group_are_counted_one_by_one(tenant: ChargedTenant, writer: IngestWriter) -> None:
    session_ids = sorted(tenant.sessions(6))
    answers = submit(*((writer, tenant.batch(session_id, 4 * MINUTE)) for session_id in session_ids))
    assert codes(answers) == ["accepted"] * 3 + ["quota_exceeded"] * 3
    assert tenant.used_ms() == 12 * MINUTE


@pytest.mark.parametrize("minutes", [1, 3, 7])
def test_a_hundred_writers_at_the_boundary_go_over_by_less_than_a_batch(
    tenant: ChargedTenant, writer: IngestWriter, other_writer: IngestWriter, minutes: int
) -> None:
    session_ids = tenant.sessions(100)
    answers = submit(
        *(
            ((writer, other_writer)[index % 2], tenant.batch(session_id, minutes * MINUTE))
            for index, session_id in enumerate(session_ids)
        )
    )
    accepted = codes(answers).count("accepted")
    limit_ms = 10 * MINUTE
    assert set(codes(answers)) == {"accepted", "quota_exceeded"}
    assert accepted == -(-10 // minutes)
    assert limit_ms <= tenant.used_ms() == accepted * minutes * MINUTE < limit_ms + minutes * MINUTE
    assert sum(tenant.event_count(session_id) for session_id in session_ids) == accepted
    assert tenant.notices() == ["quota.warning", "quota.exhausted"]


def test_what_another_process_used_counts_at_once(
    tenant: ChargedTenant, writer: IngestWriter, other_writer: IngestWriter
) -> None:
    first, other = tenant.session(), tenant.session()
    assert codes(submit((writer, tenant.batch(first, MINUTE)))) == ["accepted"]
    assert codes(submit((other_writer, tenant.batch(other, 9 * MINUTE)))) == ["accepted"]
    # It costs nothing, and still it comes after the end.
    assert codes(submit((writer, tenant.batch(first, MINUTE)))) == ["quota_exceeded"]
    assert (tenant.used_ms(), tenant.event_count(first)) == (10 * MINUTE, 1)


def test_what_a_stop_used_counts_at_once(tenant: ChargedTenant, writer: IngestWriter) -> None:
    session_id = tenant.session()
    submit((writer, tenant.batch(session_id, MINUTE)))
    with tenant.database.transaction(write=True) as db:
        charge_quota_minutes(db, tenant.caller.workspace_id, 9 * MINUTE)
    assert codes(submit((writer, tenant.batch(session_id, MINUTE)))) == ["quota_exceeded"]
    assert tenant.notices() == ["quota.warning", "quota.exhausted"]


def test_one_workspace_at_its_end_does_not_hold_up_another(make_tenant: Any, writer: IngestWriter) -> None:
    poor, rich = make_tenant(), make_tenant()
    batches = [(writer, item.batch(item.session(), MINUTE)) for item in (poor, rich, poor, rich)]
    with poor.database.transaction(write=True) as db:
        charge_quota_minutes(db, poor.caller.workspace_id, 10 * MINUTE)
    assert codes(submit(*batches)) == ["quota_exceeded", "accepted"] * 2
    assert (poor.used_ms(), rich.used_ms()) == (10 * MINUTE, 2 * MINUTE)


def test_a_batch_that_was_stored_is_answered_after_the_end_too(
    tenant: ChargedTenant, writer: IngestWriter
) -> None:
    session_id = tenant.session()
    keyed = [tenant.batch(session_id, MINUTE, key="k-1") for _ in range(2)]
    named = [tenant.batch(session_id, MINUTE, id="evt_A1") for _ in range(2)]
    first = submit((writer, keyed[0]), (writer, named[0]))
    submit((writer, tenant.batch(session_id, 10 * MINUTE)))
    again = submit((writer, keyed[1]), (writer, named[1]))
    assert again[0] == first[0]
    assert b'"accepted":0,"duplicates":1' in again[1]  # type: ignore[operator]


def test_a_batch_refused_at_the_end_leaves_no_ids_behind(tenant: ChargedTenant, writer: IngestWriter) -> None:
    session_id = tenant.session()
    submit((writer, tenant.batch(session_id, 10 * MINUTE)))
    for _ in range(2):
        answers = submit((writer, tenant.batch(session_id, MINUTE, id="evt_B1", key="k-2")))
        assert codes(answers) == ["quota_exceeded"]
    assert tenant.event_count(session_id) == 1


def test_state_comes_before_quota(tenant: ChargedTenant, writer: IngestWriter) -> None:
    stopped, missing = tenant.session(), new_id("ses")
    submit((writer, tenant.batch(stopped, 10 * MINUTE)))
    tenant.stop(stopped)
    batches = [
        (writer, tenant.batch(session_id, 1, **more))
        for session_id in (stopped, missing)
        for more in ({}, {"id": "evt_C1"})
    ]
    assert codes(submit(*batches)) == ["invalid_state"] * 2 + ["not_found"] * 2


def test_a_new_month_begins_with_nothing_used(
    tenant: ChargedTenant, writer: IngestWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    session_id = tenant.session()

    def at(moment: datetime) -> None:
        monkeypatch.setattr(clock, "now", lambda: moment)
        monkeypatch.setattr(clock, "now_ms", lambda: clock.to_ms(moment))

    at(datetime(2031, 1, 31, 23, 59, 59, 999_000, UTC))
    answers = [submit((writer, tenant.batch(session_id, t_ms)))[0] for t_ms in (10 * MINUTE, 11 * MINUTE)]
    at(datetime(2031, 2, 1, tzinfo=UTC))
    answers += submit((writer, tenant.batch(session_id, 12 * MINUTE)))
    with tenant.database.transaction(write=False) as db:
        quota = read_quota(db, Tenant(tenant.caller.workspace_id, "live"))
    assert codes(answers) == ["accepted", "quota_exceeded", "accepted"]
    assert (quota.period_start.isoformat(), quota.captured_minutes) == ("2031-02-01T00:00:00+00:00", 2)
    assert tenant.used_ms() == 12 * MINUTE


def test_a_larger_tier_opens_the_workspace_and_warns_once_all_the_same(
    tenant: ChargedTenant, writer: IngestWriter
) -> None:
    session_id = tenant.session()
    submit((writer, tenant.batch(session_id, 10 * MINUTE)))
    larger = replace(tenant, caller=replace(tenant.caller, tier=replace(TINY, captured_minutes=12)))
    times = [11 * MINUTE, 12 * MINUTE]
    answers = [submit((writer, larger.batch(session_id, t_ms)))[0] for t_ms in times]
    assert codes(answers) == ["accepted", "accepted"]
    assert tenant.notices() == ["quota.warning", "quota.exhausted"]


def test_quota_is_exceeded_without_a_hint_to_try_again() -> None:
    assert QuotaExceeded("captured minutes").retry_after_s is None
