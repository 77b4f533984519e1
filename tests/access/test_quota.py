"""Quotas as arithmetic: calendar months in UTC, and when a notice is due. Spec §8.2, contract §7."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recorder.access.quota import (
    compute_quota,
    compute_quota_notice_level,
    list_due_quota_notices,
    parse_quota_period,
    quota_period_at,
)
from recorder.access.rate_tiers import TIERS

TRIAL = TIERS["trial"]
MOMENTS = st.datetimes(
    min_value=datetime(1970, 1, 1),
    max_value=datetime(9998, 12, 31),
    timezones=st.integers(-14 * 60, 14 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes))),
)
INSTANT = timedelta(microseconds=1)


@given(MOMENTS)
def test_every_instant_lies_in_its_period(moment: datetime) -> None:
    period = quota_period_at(moment)
    assert period.start <= moment < period.end


@given(MOMENTS)
def test_periods_follow_each_other_without_gap_or_overlap(moment: datetime) -> None:
    period = quota_period_at(moment)
    assert quota_period_at(period.start) == quota_period_at(period.end - INSTANT) == period
    assert quota_period_at(period.end).start == period.end
    assert quota_period_at(period.start - INSTANT).end == period.start


@given(MOMENTS)
def test_a_period_begins_at_midnight_of_the_first_in_utc(moment: datetime) -> None:
    start = quota_period_at(moment).start
    assert (start.tzinfo, start.day, start.time().isoformat()) == (UTC, 1, "00:00:00")


@given(MOMENTS)
def test_a_period_is_found_again_by_its_name(moment: datetime) -> None:
    period = quota_period_at(moment)
    assert parse_quota_period(period.key) == period


@given(MOMENTS, MOMENTS)
def test_names_of_periods_sort_as_the_periods_do(left: datetime, other: datetime) -> None:
    first, second = quota_period_at(left), quota_period_at(other)
    assert (first.key < second.key) == (first.start < second.start)


@pytest.mark.parametrize(
    ("moment", "start", "end"),
    [
        ("2024-02-29T23:59:59.999999+00:00", "2024-02-01", "2024-03-01"),
        ("2023-02-28T23:59:59.999999+00:00", "2023-02-01", "2023-03-01"),
        ("2026-12-31T23:59:59.999999+00:00", "2026-12-01", "2027-01-01"),
        ("2027-01-01T00:00:00+00:00", "2027-01-01", "2027-02-01"),
        ("2026-08-01T00:30:00+02:00", "2026-07-01", "2026-08-01"),
        ("2026-07-31T23:30:00-02:00", "2026-08-01", "2026-09-01"),
    ],
)
def test_months_end_where_the_calendar_says(moment: str, start: str, end: str) -> None:
    period = quota_period_at(datetime.fromisoformat(moment))
    assert (period.start.date().isoformat(), period.end.date().isoformat()) == (start, end)


@pytest.mark.parametrize(
    ("used", "limit", "level"),
    [
        (0, None, 0),
        (10**12, None, 0),
        (0, 1_000, 0),
        (799, 1_000, 0),
        (800, 1_000, 1),
        (999, 1_000, 1),
        (1_000, 1_000, 2),
        (5_000, 1_000, 2),
        (2, 3, 0),
        (0, 0, 2),
    ],
)
def test_a_warning_is_due_at_80_percent_and_the_end_at_the_limit(
    used: int, limit: int | None, level: int
) -> None:
    assert compute_quota_notice_level(used, limit) == level


@given(st.integers(0, 10**12), st.integers(0, 10**12))
def test_minutes_are_the_floor_of_the_summed_milliseconds(captured_ms: int, exported_rows: int) -> None:
    period = parse_quota_period("2026-05")
    quota = compute_quota(period, TRIAL, captured_ms=captured_ms, exported_rows=exported_rows)
    assert 0 <= captured_ms - quota.captured_minutes * 60_000 < 60_000
    assert quota.exported_rows == exported_rows


@pytest.mark.parametrize(
    ("minutes", "expected", "types"),
    [
        (799, 0, []),
        (800, 0, ["quota.warning"]),
        (999, 1, []),
        (1_000, 1, ["quota.exhausted"]),
        (1_400, 0, ["quota.warning", "quota.exhausted"]),
        (9_000, 2, []),
    ],
)
def test_a_notice_is_due_once(minutes: int, expected: int, types: list[str]) -> None:
    period = quota_period_at(datetime(2026, 5, 4, tzinfo=UTC))
    quota = compute_quota(period, TRIAL, captured_ms=minutes * 60_000, exported_rows=3)
    notices = list(list_due_quota_notices(quota, "captured_minutes", expected))
    assert [type for type, _ in notices] == types
    told_data = {
        "quota": {
            "period_start": "2026-05-01T00:00:00.000Z",
            "period_end": "2026-06-01T00:00:00.000Z",
            "captured_minutes": minutes,
            "captured_minutes_limit": 1_000,
            "exported_rows": 3,
            "exported_rows_limit": 1_000_000,
        },
        "metric": "captured_minutes",
        "used": minutes,
        "limit": 1_000,
    }
    assert all(data == told_data for _, data in notices)
