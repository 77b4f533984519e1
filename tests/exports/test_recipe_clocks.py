"""Recipes whose service has a wrong clock for a while. docs/recipes.md."""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from recorder import clock
from tests.exports.test_recipes import Kitchen
from tests.support.sealed_sessions import make_runtime


@pytest.fixture
def kitchen(tmp_path: Path) -> Iterator[Kitchen]:
    runtime = make_runtime(tmp_path)
    yield Kitchen(runtime)
    runtime.close()


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
