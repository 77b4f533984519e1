"""Log lines about webhooks: once an hour for each webhook, with a count."""

import logging

import pytest

from recorder.webhooks.repeated_log_lines import RepeatedLogLine


def test_a_line_is_written_at_once_and_then_once_an_hour_with_a_count(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now_s = 0.0
    line = RepeatedLogLine(logging.WARNING, "it failed", read_clock=lambda: now_s)
    line.add("whk_a", event_id="evt_1")
    now_s = 3_599.0
    line.add("whk_a", event_id="evt_2")
    line.add("whk_a", event_id="evt_2")
    line.add("whk_b", event_id="evt_3")
    now_s = 3_600.0
    line.add("whk_a", event_id="evt_4")
    written = [vars(record) for record in caplog.records if record.message == "it failed"]
    assert [(record["webhook_id"], record["count"], record["event_id"]) for record in written] == [
        ("whk_a", 1, "evt_1"),
        ("whk_b", 1, "evt_3"),
        ("whk_a", 3, "evt_4"),
    ]


def test_a_bounded_number_of_webhooks_is_remembered(caplog: pytest.LogCaptureFixture) -> None:
    line = RepeatedLogLine(logging.WARNING, "it failed", read_clock=lambda: 0.0)
    for number in range(10_001):
        line.add(f"whk_{number}")
    caplog.clear()
    line.add("whk_10000")
    line.add("whk_0")
    assert [vars(record)["webhook_id"] for record in caplog.records] == ["whk_0"]
