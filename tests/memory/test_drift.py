"""Drift of stored graphs: alarms and their events, once, whatever happens. Spec §6.1, contract §6."""

import re
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from sqlmodel import col, select, update

from recorder import clock
from recorder.errors import NotFound
from recorder.memory.drift import monitor
from recorder.memory.drift.backtest import backtest_history
from recorder.memory.drift.monitor import list_graphs_to_check
from recorder.memory.drift.store import (
    NEW_NODE,
    PATH_DISAPPEARED,
    list_newly_alarmed_nodes,
    read_drift_state,
)
from recorder.memory.drift.thresholds import DriftRules
from recorder.memory.queries.chosen_sessions import read_newest_columns
from recorder.memory.storage.graph_store import remove_session_from_graph, replace_session_outcome
from recorder.memory.storage.versions import (
    add_graph_version,
    in_scope,
    read_newest_version,
    set_memory_graph,
)
from recorder.models.memory import GraphPathRow, GraphVariantRow
from recorder.storage.database import Database
from recorder.tenant import GraphScope, Tenant
from tests.support.drift_workflow import BASELINE, NEEDED, Story
from tests.support.graph_sessions import START, add_workflow
from tests.support.query_plans import noted_statements, plan_of


@pytest.fixture
def story(database: Database) -> Story:
    """Return a workflow of its own."""
    return Story(database)


def test_a_path_that_stops_is_told_of_with_all_that_explains_it(story: Story) -> None:
    story.add(BASELINE + "a" * NEEDED)
    look = story.look()
    [event] = story.events()
    assert look is not None and look.alarms == [(PATH_DISAPPEARED, event.data)]
    assert (event.type, event.subject_id) == (PATH_DISAPPEARED, event.data["path"]["path_id"])
    data, window = event.data, event.data["window"]
    assert (data["workflow"], data["baseline_frequency"]) == ("checkout", 0.5)
    assert data["path"]["labels"] == ["Click e", "Click f", "Click g"] and len(data["path"]["node_ids"]) == 3
    assert data["last_seen_at"] == "2026-05-05T11:00:00.000Z"
    assert (window["sessions"], window["seen"], window["needed"]) == (NEEDED, 0, NEEDED)
    assert (window["expected"], window["days"]) == (NEEDED / 2, 2)
    assert window["explanation"] == (
        f"0 of the last {NEEDED} sessions took this path; {NEEDED / 2} expected, since 50 of the 100 "
        f"sessions of the baseline did. {NEEDED} misses in a row are an alarm."
    )


def test_a_new_node_is_told_of_with_all_that_explains_it(story: Story) -> None:
    story.add(BASELINE + "abn" * 20)
    story.look()
    [event] = story.events()
    data, window = event.data, event.data["window"]
    assert event.type == NEW_NODE and data["graph_version"] == 1
    assert data["node"] == {"node_id": event.subject_id, "label": "Click n", "kind": "click"}
    assert (window["seen"], window["needed"], window["sessions"]) == (13, 13, 39)
    assert (data["baseline"]["sessions"], data["baseline"]["seen"]) == (100, 0)
    assert data["baseline"]["since"] == "2026-05-01T08:00:00.000Z"
    assert window["explanation"].startswith(
        "13 of the last 39 sessions went through this node, none of the 100"
    )


def test_a_new_node_is_new_for_30_days(story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    story.add(BASELINE + "abn" * 20)
    story.look()
    [event] = story.events()
    with story.database.transaction(write=False) as db:
        columns = read_newest_columns(db, story.scope)
        for days, expected in ((29, {event.subject_id}), (31, set())):
            later = event.created_at + timedelta(days=days)
            with monkeypatch.context() as patch:
                patch.setattr(clock, "now", lambda at=later: at)
                assert list_newly_alarmed_nodes(db, story.scope, columns) == expected


def test_nothing_is_told_twice(story: Story) -> None:
    story.add(BASELINE + "a" * NEEDED)
    assert story.look() is not None and story.look() is None
    for letters in ("aaa", "bbb", "a" * 40, "b" * 12, "a" * NEEDED):
        story.add(letters)
        story.look()
    # Stopped; three sightings are no return, twelve in a row are; stopped again.
    gone_again = 100 + NEEDED + 3 + 3 + 40 + 12 + NEEDED
    assert story.told() == [(PATH_DISAPPEARED, 100 + NEEDED), (PATH_DISAPPEARED, gone_again)]
    assert len(story.events()) == 2


def test_only_graphs_with_new_sessions_are_due(story: Story) -> None:
    def is_due() -> bool:
        with story.database.transaction(write=False) as db:
            return story.scope in set(list_graphs_to_check(db))

    assert not is_due()
    story.add("ab")
    assert is_due()
    look = story.look()
    assert look is not None and (look.sessions, look.baseline, look.watched) == (2, 0, [])
    assert not is_due()
    with story.database.transaction(write=True) as db:
        replace_session_outcome(db, story.rows[0], "error")
    assert not is_due()


def test_due_graphs_are_found_by_one_statement_that_reads_no_workflow(story: Story) -> None:
    story.add("ab")
    other = Story(story.database, GraphScope(Tenant(story.scope.workspace_id, "test"), "refunds"))
    other.add("ab")
    with story.database.transaction(write=True) as db:
        for number in range(20):
            add_workflow(db, GraphScope(story.scope.tenant, f"empty_{number}"))
    with noted_statements() as noted, story.database.transaction(write=False) as db:
        due = [scope for scope in list_graphs_to_check(db) if scope.workspace_id == story.scope.workspace_id]
    assert due == [story.scope, other.scope]
    [(statement, given)] = [(sent, given) for sent, given in noted if "graph_versions" in sent]
    assert "workflows" not in statement
    plan = plan_of(story.database, statement, given)
    assert "ix_graph_versions_first" in plan and not re.search(r"SCAN graph_versions_\d|Seq Scan", plan), plan


def test_a_look_that_is_cut_off_left_nothing_and_is_done_again(
    story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    story.add(BASELINE + "a" * NEEDED)

    def fail(*_: Any) -> None:
        raise RuntimeError("killed")

    with monkeypatch.context() as patched, pytest.raises(RuntimeError, match="killed"):
        patched.setattr(monitor, "store_drift_state", fail)
        story.look()
    assert (story.events(), story.told()) == ([], [])
    story.look()
    assert len(story.events()) == len(story.told()) == 1


def test_of_looks_at_the_same_time_one_tells(story: Story) -> None:
    story.add(BASELINE + "a" * NEEDED)
    with ThreadPoolExecutor(4) as threads:
        checks = list(threads.map(lambda _: story.look(), range(4)))
    assert sum(look is not None for look in checks) == 1
    assert len(story.events()) == len(story.told()) == 1


def test_a_pause_freezes_the_counters(story: Story) -> None:
    story.add(BASELINE + "a" * (NEEDED - 1))
    for is_on, letters in ((False, "c" * 60), (True, "")):
        with story.database.transaction(write=True) as db:
            set_memory_graph(db, story.scope, is_on)
        story.add(letters)
        story.look()
    assert story.events() == []
    story.add("a")
    story.look()
    assert story.told() == [(PATH_DISAPPEARED, 100 + NEEDED - 1 + 60 + 1)]


def test_a_deleted_session_is_no_miss(story: Story) -> None:
    story.add(BASELINE + "a" * (NEEDED - 1))
    story.look()
    with story.database.transaction(write=True) as db:
        remove_session_from_graph(db, story.rows[-1])
    story.add("a")
    story.look()
    assert story.events() == []
    story.add("a")
    story.look()
    assert len(story.events()) == 1


def baseline_numbers(story: Story) -> tuple[int | None, ...]:
    """Return the stored baseline, in numbers of sealing."""
    with story.database.transaction(write=False) as db:
        state = read_drift_state(db, story.scope)
        assert state is not None
        return state.baseline_from_seq, state.baseline_to_seq, state.known_to_seq


def remove(story: Story, start: int, end: int) -> None:
    """Delete the sessions from place `start` to before `end`."""
    with story.database.transaction(write=True) as db:
        for row in story.rows[start:end]:
            remove_session_from_graph(db, row)


@pytest.mark.parametrize("left", [0, 1])
def test_a_baseline_that_was_deleted_is_chosen_anew(story: Story, left: int) -> None:
    story.add(BASELINE)
    story.look()
    assert baseline_numbers(story) == (1, 100, 100)
    story.add("a")
    remove(story, 0, 101 - left)
    look = story.look()
    assert look is not None and (look.sessions, look.baseline) == (left, 0)
    assert baseline_numbers(story) == (None, None, None)
    story.add(BASELINE + "a" * (NEEDED + 1))
    story.look()
    assert [type for type, _ in story.told()] == [PATH_DISAPPEARED]


def test_all_sessions_may_be_deleted_but_those_that_nodes_are_looked_for_in(story: Story) -> None:
    story.add("ab" * 255)
    story.look()
    assert baseline_numbers(story) == (1, 500, 400)
    remove(story, 0, 400)
    story.add("a")
    story.look()
    assert baseline_numbers(story) == (401, 500, 500)
    story.add("abn" * 20)
    story.look()
    assert NEW_NODE in [type for type, _ in story.told()]


def test_paths_of_a_deleted_baseline_stay_watched_from_where_they_were(story: Story) -> None:
    # `c` is rare enough to be handed over to the second term without an alarm.
    story.add("c" * 5 + "ab" * 47 + "a" + "c" + "ab" * 200)
    story.look()
    remove(story, 0, 100)
    for letter in "ba":
        story.add(letter)
        look = story.look()
        assert look is not None and look.baseline == 400
        paths = [watched for watched in look.watched if watched.kind == "path"]
        assert [round(path.frequency, 2) for path in paths] == [0.5, 0.5, 0.0]
        assert paths[-1].misses >= 400
    with story.database.transaction(write=False) as db:
        state = read_drift_state(db, story.scope)
        assert state is not None
        assert {tuple(entry[1:]) for entry in state.inherited} == {(1, 0, 1)}


def test_late_tags_change_nothing(story: Story) -> None:
    story.add(BASELINE + "a" * (NEEDED - 1))
    story.look()
    with story.database.transaction(write=True) as db:
        for row in story.rows[::3]:
            replace_session_outcome(db, row, "error")
    story.add("a")
    story.look()
    assert story.told() == [(PATH_DISAPPEARED, 100 + NEEDED)]


@pytest.mark.parametrize("last", ["actor 1", None])
def test_actors_are_those_of_the_sessions(story: Story, last: str | None) -> None:
    letters = BASELINE + "a" * (NEEDED + 5)
    rows = story.add(letters, started_at=START)
    with story.database.transaction(write=True) as db:
        for index, row in enumerate(rows):
            # Behind the baseline one and the same is busy, all in one day; the last session is another's,
            # or nobody says whose it is.
            row.actor_id = last if index == len(rows) - 1 else "actor 0"
            db.add(row)
    story.look()
    [event] = story.events()
    assert (event.data["window"]["sessions"], event.data["window"]["actors"]) == (NEEDED + 5, 2)
    assert "actor 1" not in str(event.data)


def test_what_a_rebuild_merges_is_neither_missed_nor_told_of_again(story: Story) -> None:
    story.add(BASELINE + "a" * NEEDED)
    story.look()
    [gone] = story.events()
    story.add("ac" * 40)
    with story.database.transaction(write=True) as db:
        head = read_newest_version(db, story.scope, lock=True)
        assert head is not None
        add_graph_version(db, story.scope, head, "rebuild")
        paths = db.exec(select(GraphPathRow).where(*in_scope(GraphPathRow, story.scope))).all()
        [old] = [path for path in paths if path.path_id == gone.subject_id]
        [into] = [path for path in paths if path.number == 0]
        old.merged_into = into.number
        db.add(old)
        moved = update(GraphVariantRow).where(*in_scope(GraphVariantRow, story.scope))
        db.connection().execute(moved.where(col(GraphVariantRow.path) == old.number).values(path=into.number))
    before = {row.subject_id for row in story.events()}
    story.add("ac" * 40)
    story.look()
    later = [row for row in story.events() if row.subject_id not in before]
    assert {row.type for row in later} == {NEW_NODE}
    assert [row.subject_id for row in story.events()].count(gone.subject_id) == 1


def read_paths(story: Story) -> list[GraphPathRow]:
    """Return the paths of the graph."""
    with story.database.transaction(write=False) as db:
        return list(db.exec(select(GraphPathRow).where(*in_scope(GraphPathRow, story.scope))).all())


def test_terms_are_remembered_by_numbers_of_sealing(story: Story) -> None:
    story.add(BASELINE)
    story.look()
    # `b` is missing when the term ends, but not yet for long enough.
    story.add("ab" * 193 + "a" * 14 + "ab" * 5)
    look = story.look()
    assert look is not None and look.baseline == 500
    with story.database.transaction(write=False) as db:
        state = read_drift_state(db, story.scope)
        assert state is not None
        bounds = (state.baseline_from_seq, state.baseline_to_seq, state.known_to_seq, state.looked_seq)
    assert bounds == (1, 500, 400, 510)
    ids = {path.path_id: len(path.nodes) for path in read_paths(story)}
    kept = [entry for entry in state.inherited if entry[0] in ids]
    assert [(ids[subject], *bounds) for subject, *bounds in kept] == [(3, 1, 100, 101)]


def test_a_back_test_tells_what_looks_told(story: Story) -> None:
    letters = BASELINE + "a" * 40 + "abc" * 60 + "ac" * 100
    for start in range(0, len(letters), 37):
        story.add(letters[start : start + 37])
        story.look()
    replay = backtest_history(story.database, story.scope, DriftRules())
    assert [(alarm.type, alarm.position) for alarm in replay.alarms] == story.told()
    data = [{**row.data, "graph_version": 0} for row in story.events()]
    assert [{**alarm.data, "graph_version": 0} for alarm in replay.alarms] == data
    assert (replay.sessions, replay.judged, len(replay.alarms) > 1) == (
        len(letters),
        len(letters) - 100,
        True,
    )


def test_a_back_test_writes_nothing_and_knows_its_workflow(story: Story) -> None:
    story.add(BASELINE + "a" * 40)
    assert len(backtest_history(story.database, story.scope, DriftRules()).alarms) == 1
    assert (story.events(), story.told()) == ([], [])
    with pytest.raises(NotFound):
        backtest_history(
            story.database, GraphScope(Tenant(story.scope.workspace_id, "live"), "unknown"), DriftRules()
        )
