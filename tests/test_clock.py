"""Time in and out: ISO 8601 with milliseconds and `Z`, relative durations. Contract §1 (time)."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recorder import clock
from recorder.errors import InvalidTime

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)


def test_now_is_utc_in_whole_milliseconds() -> None:
    now = clock.now()
    assert now.tzinfo is UTC and now.microsecond % 1000 == 0


@given(st.datetimes(timezones=st.just(UTC)).map(clock.truncate_to_ms))
def test_a_time_survives_the_wire_and_the_count(moment: datetime) -> None:
    text = clock.to_iso(moment)
    assert len(text) == 24 and clock.parse_time(text, name="t") == moment
    assert clock.from_ms(clock.to_ms(moment)) == moment


def test_other_zones_leave_as_utc() -> None:
    assert (
        clock.to_iso(datetime(2026, 1, 1, 1, tzinfo=timezone(timedelta(hours=2))))
        == "2025-12-31T23:00:00.000Z"
    )


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("2026-01-01T00:00:00Z", "2026-01-01T00:00:00.000Z"),
        ("2026-01-01t00:00:00z", "2026-01-01T00:00:00.000Z"),
        ("2026-01-01T02:00:00+02:00", "2026-01-01T00:00:00.000Z"),
        ("2026-01-01T00:00:00.1239Z", "2026-01-01T00:00:00.123Z"),
        ("2026-01-01T00:00:00.123456789-00:30", "2026-01-01T00:30:00.123Z"),
        ("0001-01-01T00:00:00Z", "0001-01-01T00:00:00.000Z"),
    ],
)
def test_iso_times_are_read(text: str, meant: str) -> None:
    assert clock.to_iso(clock.parse_time(text, name="t")) == meant


@pytest.mark.parametrize(
    "text",
    [
        "",
        "now",
        "2026-01-01",
        "2026-01-01T00:00:00",
        "2026-01-01 00:00:00Z",
        "20260101T000000Z",
        "2026-13-01T00:00:00Z",
        "2026-02-30T00:00:00Z",
        "2026-01-01T24:00:01Z",
        "2026-01-01T00:00:00+25:00",
        "2026-01-01T00:00Z",
        "1767225600",
        "0001-01-01T00:00:00+01:00",
        "9999-12-31T23:59:59-01:00",
        "2026-01-01T00:00:00Z\n",
        "٢026-01-01T00:00:00Z",
    ],
)
def test_other_text_is_no_time(text: str) -> None:
    with pytest.raises(InvalidTime, match="time with a zone, such as 2026-06-01T00:00:00Z"):
        clock.parse_time(text, name="since")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("15m", 900), ("1h", 3_600), ("30d", 2_592_000), ("2w", 1_209_600), ("0s", 0)],
)
def test_a_duration_counts_back_from_now(text: str, seconds: int) -> None:
    assert clock.resolve_time(text, now=NOW, name="since") == NOW - timedelta(seconds=seconds)


@pytest.mark.parametrize(
    "text", ["1", "h", "-1d", "1y", "1.5h", "1 d", "99999999999d", "999999999w", "1H", "١d"]
)
def test_other_text_is_no_duration(text: str) -> None:
    with pytest.raises(InvalidTime, match="or a duration such as 90s"):
        clock.resolve_time(text, now=NOW, name="since")
