"""Cron lines: what they name, compared with the reader that Dagster ships. docs/recipes.md."""

from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise
from zoneinfo import ZoneInfo

import pytest
from dagster._utils.schedules import cron_string_iterator
from hypothesis import given
from hypothesis import strategies as st

from recorder.exports.requests.cron import InvalidCron, parse_cron

START = datetime(2026, 1, 31, 22, 30, 15, tzinfo=UTC)
LINES = [
    "0 6 * * *",
    "*/15 * * * *",
    "5/20 8-18/2 * * mon-fri",
    "0 0 1 * *",
    "0 0 29 2 *",
    "30 4 13 * fri",
    "59 23 31 jan,dec *",
    "0 0 * * 7",
    "10,40 3 1-7 6-8 *",
]


def ticks(line: str, timezone: str, count: int) -> list[datetime]:
    """Return the first instants after the start."""
    cron, result = parse_cron(line, timezone), [START]
    for _ in range(count):
        result.append(cron.next_after(result[-1]))
    return result[1:]


@pytest.mark.parametrize("zone", ["UTC", "Asia/Kolkata", "America/Phoenix"])
@pytest.mark.parametrize("line", LINES)
def test_a_line_names_the_instants_that_dagster_reads_in_it(line: str, zone: str) -> None:
    theirs = cron_string_iterator(START.timestamp(), line, zone)
    assert ticks(line, zone, 40) == [instant.astimezone(UTC) for instant in islice(theirs, 40)]


@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe"])
def test_a_time_of_day_stays_when_the_clocks_change(zone: str) -> None:
    theirs = cron_string_iterator(START.timestamp(), "30 6 * * *", zone)
    assert ticks("30 6 * * *", zone, 400) == [instant.astimezone(UTC) for instant in islice(theirs, 400)]


def test_each_day_has_one_tick_also_when_the_clocks_skip_it_or_show_it_twice() -> None:
    days = [
        tick.astimezone(ZoneInfo("Europe/Berlin")).date()
        for tick in ticks("30 2 * * *", "Europe/Berlin", 400)
    ]
    assert {(after - before).days for before, after in pairwise(days)} == {1}


def test_where_days_begin_with_a_star_both_must_match_as_in_debian() -> None:
    results = [tick.date() for tick in ticks("0 12 */10 * mon", "UTC", 3)]
    assert all(day.day in (1, 11, 21, 31) and day.isoweekday() == 1 for day in results)


@given(line=st.sampled_from(LINES[:4]), seconds=st.integers(0, 400 * 86_400))
def test_the_last_tick_is_the_one_before_the_next(line: str, seconds: int) -> None:
    cron, moment = parse_cron(line, "Europe/Berlin"), START + timedelta(seconds=seconds)
    last = cron.find_last(moment)
    assert last is not None and last <= moment < cron.next_after(last)


def test_the_last_tick_in_an_hour_that_comes_twice_is_the_one_that_came() -> None:
    tick = datetime(2026, 10, 25, 0, 30, tzinfo=UTC)
    assert parse_cron("30 2 * * *", "Europe/Berlin").find_last(tick + timedelta(minutes=30)) == tick


@pytest.mark.parametrize(
    ("line", "zone"),
    [
        ("", "UTC"),
        ("0 6 * *", "UTC"),
        ("0 6 * * * *", "UTC"),
        ("@daily", "UTC"),
        ("60 6 * * *", "UTC"),
        ("0 24 * * *", "UTC"),
        ("0 6 0 * *", "UTC"),
        ("0 6 * 13 *", "UTC"),
        ("0 6 * * 8", "UTC"),
        ("0 6 * * mo", "UTC"),
        ("5-1 * * * *", "UTC"),
        ("*/0 * * * *", "UTC"),
        ("*-5 * * * *", "UTC"),
        ("1,,2 * * * *", "UTC"),
        ("0 6 30 2 *", "UTC"),
        ("٣ 6 * * *", "UTC"),
        ("0 6 * * *", "Europe/Atlantis"),
        ("0 6 * * *", "../etc/passwd"),
        ("0 6 * * *", ""),
    ],
)
def test_what_names_no_time_is_refused(line: str, zone: str) -> None:
    with pytest.raises(InvalidCron, match=r"five fields|time zone is unknown"):
        parse_cron(line, zone)
