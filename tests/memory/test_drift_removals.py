"""Drift of graphs that sessions leave: erased while a check computes, or deleted after it. Spec §6.1."""

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from recorder.memory.drift import monitor
from recorder.memory.drift.detector import TermCheck, detect_alarms
from recorder.memory.drift.monitor import list_graphs_to_check
from recorder.memory.drift.store import read_alarms
from recorder.memory.storage.graph_session_removal import purge_sessions_from_graph
from recorder.memory.storage.indexing import GraphIndexer
from recorder.models.session import SessionRow
from recorder.storage.database import Database
from tests.support.drift_workflow import BASELINE, WORDS, Story
from tests.support.graph_sessions import START, make_row, make_steps


@pytest.fixture
def story(database: Database) -> Story:
    """A workflow of its own."""
    return Story(database)


def is_due(story: Story) -> bool:
    """Return whether the graph has sessions that no check judged."""
    with story.database.transaction(write=False) as db:
        return story.scope in set(list_graphs_to_check(db))


def add_named_sessions(story: Story, name: str, count: int) -> list[SessionRow]:
    """Take in sessions through a node that no other session visits and that they give a name."""
    first = len(story.rows)
    rows = [
        make_row(story.scope, seal_seq=number + 1, started_at=START + timedelta(hours=number))
        for number in range(first, first + count)
    ]
    *known, last = make_steps(WORDS["n"])
    steps = {row.id: [*known, replace(last, names=(name,))] for row in rows}
    indexer = GraphIndexer()
    with story.database.transaction(write=True) as db:
        indexer.commit(db, indexer.prepare(db, rows, steps), rows)
    story.rows += rows
    return rows


def erase_during_checks(
    monkeypatch: pytest.MonkeyPatch, story: Story, *parts: list[SessionRow]
) -> list[list[SessionRow]]:
    """Purge a part of the sessions while each of the next checks computes; return the parts that are left."""
    waiting = list(parts)

    def detect(*given: Any) -> Iterator[TermCheck]:
        checks = list(detect_alarms(*given))
        if waiting:
            with story.database.transaction(write=True) as db:
                purge_sessions_from_graph(db, story.scope, [row.id for row in waiting.pop(0)])
        return iter(checks)

    monkeypatch.setattr(monitor, "detect_alarms", detect)
    return waiting


def read_alarm_texts(story: Story) -> list[str]:
    """Return the data of all alarms and events as text."""
    with story.database.transaction(write=False) as db:
        stored = [alarm.data for alarm in read_alarms(db, story.scope)]
    return [json.dumps(data) for data in [*stored, *(event.data for event in story.events())]]


def test_an_alarm_has_no_text_that_was_erased_while_the_check_computed(
    story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    story.add(BASELINE)
    rows = add_named_sessions(story, "Pay Ada Lovelace", 40)
    erase_during_checks(monkeypatch, story, rows)
    check = story.look()
    assert check is not None and check.alarms
    texts = read_alarm_texts(story)
    assert len(texts) == 2 * len(check.alarms)
    assert any("Click n" in text for text in texts)
    assert not any("Ada" in text for text in texts)
    assert not is_due(story)


def test_alarms_wait_for_the_next_check_while_sessions_leave_the_graph_without_end(
    story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    story.add(BASELINE)
    rows = add_named_sessions(story, "Pay Ada Lovelace", 40)
    left = erase_during_checks(monkeypatch, story, *([row] for row in rows[:5]))
    assert story.look() is None
    assert (story.events(), story.told(), is_due(story)) == ([], [], True)
    assert 0 < len(left) < 5
    left.clear()
    check = story.look()
    assert check is not None and len(check.alarms) == len(story.events()) > 0
    assert not is_due(story)


def test_a_check_without_alarms_is_done_although_sessions_left_the_graph(
    story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = story.add(BASELINE)
    left = erase_during_checks(monkeypatch, story, rows[:1], rows[1:2])
    assert story.look() is not None
    assert (len(left), is_due(story)) == (1, False)
