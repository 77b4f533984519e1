"""Time that graphs of odd shape take: at most in proportion to what is recorded. Contract §4 (memory)."""

import random
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from sqlmodel import Session as DbSession

from recorder.memory.graph.arrays import Bools
from recorder.memory.graph.bounds import GraphBounds
from recorder.memory.graph.capacity import DEFAULT_CAPACITY
from recorder.memory.graph.nodes import NodeIndex
from recorder.memory.queries.chosen_sessions import read_newest_columns
from recorder.memory.queries.columns import GraphColumns
from recorder.memory.queries.common_paths import describe_common_paths
from recorder.memory.queries.comparison import SessionSelection, compare_selections
from recorder.memory.queries.outliers import find_outliers
from recorder.memory.queries.recovery_anchors import find_recovery_anchors
from recorder.memory.queries.similarity import index_similarity
from recorder.memory.steps.session_steps import Step, session_steps
from recorder.memory.storage.consistency import check_graph_consistency
from recorder.memory.storage.indexing import GraphIndexer
from recorder.memory.storage.rebuilds import rebuild_graph
from recorder.memory.views.formats import FORMATS, format_graph_view
from recorder.memory.views.graph_view import graph_view_of
from recorder.storage.database import Database
from recorder.tenant import GraphScope, Tenant
from tests.support.graph_sessions import add_workflow, database_with, make_row, make_step, make_steps

SCOPE = GraphScope(Tenant("wsp_a", "live"), "checkout")
#: So many times the sessions take four times the time, sixteen times where it goes with their square.
TIMES, MOST = 4, 9.0
#: Seconds below which a stage is not judged, and the batch in which sessions are indexed.
LEAST_S, BATCH = 0.05, 200
Stages = dict[str, float]


def take_equal(count: int) -> list[list[Step]]:
    """Add sessions of one variant to the graph."""
    return [make_steps("1a 2b 3c")] * count


def take_long(count: int) -> list[list[Step]]:
    """Add sessions of 512 steps that all differ."""
    draw = random.Random(0)
    known = [make_step(f"{number}a") for number in range(256)]
    return [draw.choices(known, k=512) for _ in range(count)]


def take_unlike(count: int) -> list[list[Step]]:
    """Add sessions that all differ, on screens of their own that share a part."""
    draw = random.Random(0)
    shared = [draw.getrandbits(60) for _ in range(40)]
    return [
        [
            make_step(f"{number}{act}", features=shared + [draw.getrandbits(60) for _ in range(40)])
            for act in "ab"
        ]
        for number in range(count)
    ]


def take_mixed(count: int) -> list[list[Step]]:
    """Add sessions that all differ, over few nodes."""
    draw = random.Random(0)
    known = [make_step(f"{number}a") for number in range(20)]
    return [draw.choices(known, k=12) for _ in range(count)]


#: A few hundredths of the service's.
BOUNDS = GraphBounds(exemplars=50, merged_nodes=50, path_exemplars=50, grouped=50)


@pytest.mark.parametrize(
    ("take", "count"), [(take_equal, 1_000), (take_long, 4), (take_unlike, 100), (take_mixed, 150)]
)
def test_time_grows_no_faster_than_sessions(
    take: Callable[[int], list[list[Step]]], count: int, tmp_path: Path
) -> None:
    few, many = take(count), take(TIMES * count)

    def measure(sessions: list[list[Step]], folder: str) -> Stages:
        path = tmp_path / folder
        path.mkdir()
        (stages,) = (time_stages(database, sessions) for database in database_with(SCOPE, path))
        return stages

    measure(few, "first")  # loads what it imports
    assert_linear(lambda turn: (measure(few, f"few{turn}"), measure(many, f"many{turn}")))


def test_time_grows_no_faster_than_labels() -> None:
    def measure(count: int, size: int) -> Stages:
        text = "x y" * (size // 3)
        target = {"role": "button", "name": text, "tag": "button", "text": text, "near": text}
        events = [
            {"id": f"evt_{number}", "t_ms": number, "type": "click", "target": target, "title": text}
            for number in range(count)
        ]
        began = time.process_time()
        session_steps(events, [])
        return {"steps": time.process_time() - began}

    assert_linear(lambda _: (measure(300, 65_536), measure(TIMES * 300, 65_536)))
    assert_linear(lambda _: (measure(300, 65_536), measure(300, TIMES * 65_536)))


def test_a_micro_state_is_compared_with_the_oldest_exemplars_alone() -> None:
    index = NodeIndex(SCOPE, BOUNDS)
    made = [index.assign(make_step(f"{number}a")) for number in range(60)]
    assert None not in made
    first, last = made[0], made[-1]
    assert first is not None and last is not None
    assert index.nearest(first.act, first.features) == first.number
    assert index.nearest(last.act, last.features) is None


def test_a_run_keeps_no_more_graphs_than_there_is_room_for(tmp_path: Path) -> None:
    small, large = GraphIndexer(kept_bytes=10), GraphIndexer()
    scopes = [SCOPE, GraphScope(SCOPE.tenant, "refund"), GraphScope(SCOPE.tenant, "return")]
    for database in database_with(SCOPE, tmp_path):
        with database.transaction(write=True) as db:
            for scope in scopes[1:]:
                add_workflow(db, scope)
        for indexer in (small, large):
            for words in ("1a 2b 3c", "1a 2b 4d", "5a 6b 7c"):
                for scope in scopes:
                    row = make_row(scope)
                    with database.transaction(write=True) as db:
                        indexer.commit(db, indexer.prepare(db, [row], {row.id: make_steps(words)}), [row])
        assert (len(small._held), len(large._held)) == (1, 3)
        for scope in scopes:
            with database.transaction(write=False) as db:
                listed = describe_common_paths(*_read_current(db, scope))
                assert sum(path.session_count for path in listed) == 6
                assert check_graph_consistency(db, scope).miscounted == []


def _read_current(db: DbSession, scope: GraphScope) -> tuple[GraphColumns, Bools]:
    columns = read_newest_columns(db, scope)
    return columns, columns.current()


def assert_linear(measure: Callable[[int], tuple[Stages, Stages]]) -> None:
    """Fail if any stage takes more than its share in each of three turns: other work disturbs a turn."""
    slow: set[str] | None = None
    for turn in range(3):
        few, many = measure(turn)
        over = {stage for stage, spent in many.items() if spent > MOST * max(few[stage], LEAST_S / TIMES)}
        slow = over if slow is None else slow & over
        if not slow:
            return
    assert not slow, (few, many)


def time_stages(database: Database, sessions: list[list[Step]]) -> Stages:
    """Return the CPU seconds of each stage of the work on a graph."""
    stages: Stages = {}
    began = time.process_time()

    def note(stage: str) -> None:
        nonlocal began
        stages[stage] = time.process_time() - began
        began = time.process_time()

    indexer = GraphIndexer(replace(DEFAULT_CAPACITY, bounds=BOUNDS))
    for start in range(0, len(sessions), BATCH):
        some = sessions[start : start + BATCH]
        rows = [make_row(SCOPE) for _ in some]
        with database.transaction(write=True) as db:
            steps = {row.id: taken for row, taken in zip(rows, some, strict=True)}
            indexer.commit(db, indexer.prepare(db, rows, steps), rows)
    note("index")
    rebuild_graph(database, SCOPE, "fresh", bounds=BOUNDS)
    note("rebuild")
    with database.transaction(write=False) as db:
        columns = read_newest_columns(db, SCOPE)
    chosen = columns.current()
    note("read")
    describe_common_paths(columns, chosen, min_frequency=0.0, limit=500)
    note("paths")
    find_outliers(columns, chosen, rank="typicality")
    note("outliers")
    index_similarity(columns).nearest(0, 20)
    note("similar")
    find_recovery_anchors(columns, chosen, {0: 10_000}, lambda rows: {})
    note("recovery")
    compare_selections(
        columns, SessionSelection(), SessionSelection(actor_kind="human"), workflow=SCOPE.workflow, limit=100
    )
    note("comparison")
    view = graph_view_of(columns, chosen, workflow=SCOPE.workflow)
    for form in FORMATS:
        format_graph_view(view, form)
    note("drawings")
    return stages
