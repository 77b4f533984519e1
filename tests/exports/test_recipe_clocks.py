"""Recipes where clocks change: those of a time zone, or the one of the service. docs/recipes.md."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from recorder import clock
from recorder.exports.requests.cron import parse_cron
from recorder.exports.requests.recipes import recipe_request_at
from recorder.models.export import RecipeRow
from tests.exports.test_recipes import Kitchen
from tests.support.sealed_sessions import make_runtime


@pytest.fixture
def kitchen(tmp_path: Path) -> Iterator[Kitchen]:
    runtime = make_runtime(tmp_path)
    yield Kitchen(runtime)
    runtime.close()


def make_recipe(cron: str, zone: str, *, since: str) -> RecipeRow:
    """Return a recipe that is not stored."""
    body = {"workflow": ["checkout"], "format": "parquet", "destination": {"kind": "signed_url"}}
    now = clock.now()
    return RecipeRow(
        workspace_id="wsp_1",
        mode="live",
        name="nightly",
        body=body | {"filter": {"since": since}},
        cron=cron,
        timezone=zone,
        next_at=now,
        created_at=now,
    )


def test_a_clock_that_was_once_ahead_delays_no_further_tick(
    kitchen: Kitchen, monkeypatch: pytest.MonkeyPatch
) -> None:
    today = clock.now()
    kitchen.add(cron="0 * * * *")
    with monkeypatch.context() as ahead:
        ahead.setattr(clock, "now", lambda: today + timedelta(days=3650))
        assert len(kitchen.follow()) == 1
    assert kitchen.follow() == []
    assert today < kitchen.listed()["nightly"].recipe.next_at <= today + timedelta(hours=2)
    monkeypatch.setattr(clock, "now", lambda: today + timedelta(hours=2))
    assert len(kitchen.follow()) == 1


def test_a_clock_that_is_set_back_by_minutes_repeats_no_tick(
    kitchen: Kitchen, monkeypatch: pytest.MonkeyPatch
) -> None:
    due_at = kitchen.add(cron="0 * * * *").next_at
    for minutes, ticks in ((1, 1), (-2, 0), (2, 0), (61, 1)):
        monkeypatch.setattr(clock, "now", lambda minutes=minutes: due_at + timedelta(minutes=minutes))
        assert len(kitchen.follow()) == ticks


def test_a_clock_that_was_far_behind_repeats_no_tick(
    kitchen: Kitchen, monkeypatch: pytest.MonkeyPatch
) -> None:
    kitchen.add(cron="0 6 * * *")
    kitchen.make_due(ago=timedelta(days=7))
    due_at = kitchen.listed()["nightly"].recipe.next_at
    # Its last tick before the creation is within the year by which the clock is behind.
    yearly = kitchen.add("yearly", cron=f"0 6 1 {(due_at.month + 5) % 12 + 1} *")
    with kitchen.runtime.database.transaction(write=True) as db:
        db.merge(yearly).created_at = due_at - timedelta(days=1)
    for minutes, ticks in ((1, 1), (-365 * 24 * 60, 0), (3, 0), (5, 0), (24 * 60, 1), (24 * 60 + 1, 0)):
        monkeypatch.setattr(clock, "now", lambda minutes=minutes: due_at + timedelta(minutes=minutes))
        assert len(kitchen.follow()) == ticks
    assert [clock.to_iso(due_at + timedelta(days=days)) for days in (0, 1)] == sorted(
        export.spec["filter"]["until"] for export in kitchen.exports()
    )


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "Australia/Lord_Howe"])
@pytest.mark.parametrize(
    ("cron", "since"),
    [("0 6 * * *", "1d"), ("30 2 * * *", "1d"), ("0 2 * * *", "1d"), ("30 2 * * mon", "1w")],
)
def test_each_tick_begins_where_the_one_before_ended_also_when_clocks_change(
    cron: str, since: str, zone: str
) -> None:
    schedule = parse_cron(cron, zone)
    recipe = make_recipe(cron, zone, since=since)
    ended = schedule.next_after(datetime(2026, 1, 1, tzinfo=UTC))
    for _ in range(370 if since == "1d" else 53):
        tick = schedule.next_after(ended)
        filters = recipe_request_at(recipe, tick).filter
        assert filters and (filters.since, filters.until) == (clock.to_iso(ended), clock.to_iso(tick))
        ended = tick


def test_hours_are_counted_and_other_moments_are_kept() -> None:
    tick = datetime(2026, 10, 26, 5, tzinfo=UTC)  # 06:00 in Berlin, the day after the clocks were set back
    for since, moment, expected in (
        ("24h", tick, "2026-10-25T05:00:00.000Z"),
        ("1d", tick, "2026-10-25T05:00:00.000Z"),
        ("2d", tick, "2026-10-24T04:00:00.000Z"),
        ("48h", tick, "2026-10-24T05:00:00.000Z"),
        ("2d", tick + timedelta(minutes=7), "2026-10-24T04:07:00.000Z"),
        ("2026-10-24T04:30:00Z", tick, "2026-10-24T04:30:00.000Z"),
    ):
        filters = recipe_request_at(make_recipe("0 6 * * *", "Europe/Berlin", since=since), moment).filter
        assert filters and filters.since == expected
