"""Drift of graphs that sessions leave: erased while a check computes, or deleted after it. Spec §6.1."""

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from recorder.memory.drift import monitor
from recorder.memory.drift.detector import TermCheck, detect_alarms
from recorder.memory.drift.monitor import list_graphs_to_check, read_last_drift_check
from recorder.memory.drift.store import PATH_DISAPPEARED, read_alarms, read_drift_state
from recorder.memory.storage.graph_session_removal import purge_sessions_from_graph
from recorder.memory.storage.graph_store import remove_session_from_graph
from recorder.memory.storage.indexing import GraphIndexer
from recorder.models.session import SessionRow
from recorder.storage.database import Database
from tests.support.drift_workflow import BASELINE, NEEDED, WORDS, Story
from tests.support.graph_sessions import START, make_row, make_steps


@pytest.fixture
def story(database: Database) -> Story:
    """Return a workflow of its own."""
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


def remove(story: Story, rows: list[SessionRow]) -> None:
    """Delete sessions, as a user does."""
    with story.database.transaction(write=True) as db:
        for row in rows:
            remove_session_from_graph(db, row)


def read_change_numbers(story: Story) -> set[tuple[int, int]]:
    """Return the stored numbers of sealing of the changes that were noticed: of the beginning and the end."""
    with story.database.transaction(write=False) as db:
        state = read_drift_state(db, story.scope)
    assert state is not None and state.changes is not None
    return {(since, position) for _, _, since, position, *_ in state.changes}


@pytest.mark.parametrize("left", [100, 0])
def test_checks_go_on_after_all_sessions_of_a_change_were_deleted(story: Story, left: int) -> None:
    story.add(BASELINE + "an" * 20)
    story.look()
    assert read_change_numbers(story)
    late = story.add("a")
    remove(story, story.rows[left:])
    check = story.look()
    assert check is not None and (check.sessions, check.alarms) == (0, [])
    assert (is_due(story), read_change_numbers(story)) == (False, set())
    assert read_last_drift_check(story.database, story.scope) is not None
    assert late[0].seal_seq is not None
    assert max(seal_seq for _, seal_seq in story.told()) < late[0].seal_seq


@pytest.mark.parametrize("is_checked_between", [False, True])
def test_a_path_that_stops_is_reported_although_the_sessions_of_its_first_stop_were_deleted(
    story: Story, is_checked_between: bool
) -> None:
    story.add(BASELINE + "a" * (NEEDED + 5))
    story.look()
    remove(story, story.rows)
    story.add("ab" * 60)
    if is_checked_between:
        story.look()
    story.add("a" * 60)
    story.look()
    stops = [(PATH_DISAPPEARED, 100 + NEEDED), (PATH_DISAPPEARED, 100 + NEEDED + 5 + 120 + NEEDED)]
    assert story.told() == stops


def test_a_change_keeps_its_numbers_while_some_of_its_sessions_are_left(story: Story) -> None:
    story.add(BASELINE + "a" * NEEDED)
    story.look()
    numbers = read_change_numbers(story)
    assert numbers == {(101, 100 + NEEDED)}
    # The first and the last session of the fall, and those before it but for enough of a baseline.
    remove(story, [*story.rows[:20], story.rows[100], story.rows[-1]])
    story.add("a" * 30)
    story.look()
    assert read_change_numbers(story) == numbers
    assert len(story.told()) == 1


def test_new_work_whose_sessions_were_deleted_explains_no_fall(story: Story) -> None:
    story.add(BASELINE)
    rows = story.add("abn" * 20)
    story.look()
    assert len(story.told()) == 1
    remove(story, rows[2::3])
    story.add("ab")
    story.look()
    assert read_change_numbers(story) == set()
