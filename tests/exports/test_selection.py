"""Sessions and frames that an export selects: filters, freezing, sampling. Spec §4.3, contract §5."""

import threading
import time
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from sqlmodel import col, select, update

from recorder import clock
from recorder.errors import NotFound, ValidationFailed
from recorder.exports.planning.lake_stats import LakeStats
from recorder.exports.planning.plan import Sampling
from recorder.exports.planning.selection import select_export_sessions
from recorder.exports.runner.run import run_export
from recorder.hashing import compute_hash_bucket
from recorder.ids import new_id
from recorder.memory.storage.indexing import GraphIndexer
from recorder.models.memory import GraphPathRow, GraphTraceRow, GraphVariantRow, SessionPathRow
from recorder.models.session import SessionRow
from recorder.runtime import Runtime
from tests.support.export_runs import ask, export, folder_of, manifest_of, rows_of
from tests.support.graph_sessions import make_steps
from tests.support.sealed_sessions import START, Recording, delete, make_runtime, seal

_LATER = START + timedelta(days=2)
# One session for each filter to find; the name of each is its key.
_SESSIONS = {
    "plain": Recording(),
    "error": Recording(outcome="error"),
    "model": Recording(actor_kind="model"),
    "nobody": Recording(actor_kind=None, outcome=None),
    "long": Recording(duration_ms=60_000),
    "tagged": Recording(tags=["gold", "gold"]),
    "later": Recording(started_at=_LATER, sealed_at=_LATER + timedelta(minutes=1)),
    "login": Recording(workflow="login"),
}


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Runtime:
    runtime = make_runtime(tmp_path_factory.mktemp("selection"))
    seal(runtime, list(_SESSIONS.values()))
    return runtime


def _taken(folder: Path) -> set[str]:
    rows = rows_of(folder)
    ids = set() if rows.is_empty() else set(rows["session_id"])
    return {name for name, recording in _SESSIONS.items() if recording.session_id in ids}


@pytest.mark.parametrize(
    ("filters", "names"),
    [
        ({}, {"plain", "error", "model", "nobody", "long", "tagged", "later"}),
        ({"outcome": "error"}, {"error"}),
        ({"actor.kind": "model"}, {"model"}),
        ({"min_duration_ms": 60_000}, {"long"}),
        ({"min_duration_ms": 1_000, "max_duration_ms": 1_000, "outcome": "error"}, {"error"}),
        ({"tag": "gold"}, {"tagged"}),
        ({"tag": "silver"}, set()),
        ({"since": clock.to_iso(_LATER)}, {"later"}),
        ({"since": clock.to_iso(_LATER), "until": clock.to_iso(_LATER)}, set()),
        ({"outcome": "error", "actor.kind": "model"}, set()),
        (
            {"exclude_session_ids": [_SESSIONS[name].session_id for name in ("plain", "long", "login")]},
            {"error", "model", "nobody", "tagged", "later"},
        ),
    ],
)
def test_every_filter_takes_its_sessions_and_no_other(
    runtime: Runtime, filters: dict[str, Any], names: set[str]
) -> None:
    assert _taken(export(runtime, filter=filters)) == names


def test_several_workflows_lie_in_their_own_folders(runtime: Runtime) -> None:
    folder = export(runtime, workflow=["login", "checkout"])
    paths = [shard["path"] for shard in manifest_of(folder)["shards"]]
    assert [path.split("/")[1] for path in paths] == ["workflow=checkout", "workflow=login"]


def test_an_export_of_nothing_is_completed_without_shards(runtime: Runtime) -> None:
    manifest = manifest_of(export(runtime, filter={"tag": "silver"}))
    assert manifest["shards"] == []
    assert manifest["totals"] == {
        "sessions": 0,
        "rows": 0,
        "frames": 0,
        "actions": 0,
        "bytes": 0,
        "shards": 0,
    }


def test_the_other_mode_holds_other_sessions(runtime: Runtime) -> None:
    seal(runtime, [Recording(workflow="login")], mode="test")
    assert manifest_of(export(runtime, workflow="login", mode="test"))["totals"]["sessions"] == 1


def test_frames_are_counted_once_though_they_are_read_in_slices(tmp_path: Path) -> None:
    runtime = make_runtime(tmp_path)
    ids = (new_id("ses") for _ in count())
    on_border = next(each for each in ids if compute_hash_bucket(each) == 2**15)
    seal(runtime, [Recording(frames=[0, 500]), Recording(frames=[0, 500], session_id=on_border)])
    row = ask(runtime)
    with runtime.database.transaction(write=False) as db:
        chosen = select_export_sessions(db, row.tenant, row.spec)
    facts = LakeStats(runtime.lake, row.tenant, {}, chosen)
    sessions, sampling = facts.sessions(), Sampling(mode="all")
    # The number of frames decides how many slices are read: two here.
    many = sessions.with_columns(frame_count=pl.lit(400_000, pl.Int64))
    whole, sliced = (
        facts.add_frame_statistics(each, sampling, with_events=True).drop("frame_count").sort("session_id")
        for each in (sessions, many)
    )
    assert sliced.equals(whole) and whole["frames"].to_list() == [2, 2]
    runtime.close()


def test_a_past_until_freezes_the_row_set(tmp_path: Path) -> None:
    runtime = make_runtime(tmp_path)
    seal(runtime, [Recording(), Recording(frames=[0])])
    until = {"until": clock.to_iso(START + timedelta(hours=1))}
    before = manifest_of(export(runtime, filter=until))
    seal(runtime, [Recording(sealed_at=START + timedelta(hours=2))])
    after = manifest_of(export(runtime, filter=until))
    assert before["row_set_sha256"] == after["row_set_sha256"]
    assert [shard["sha256"] for shard in before["shards"]] == [shard["sha256"] for shard in after["shards"]]


def test_an_import_is_bound_by_its_start_alone(tmp_path: Path) -> None:
    runtime = make_runtime(tmp_path)
    late = START + timedelta(days=9)
    seal(runtime, [Recording(is_import=True, sealed_at=late), Recording(sealed_at=late)])
    until = {"until": clock.to_iso(START + timedelta(hours=1))}
    assert manifest_of(export(runtime, filter=until))["totals"]["sessions"] == 1


def test_a_deleted_session_is_in_no_export(tmp_path: Path) -> None:
    runtime = make_runtime(tmp_path)
    gone, kept = seal(runtime, [Recording(), Recording()])
    delete(runtime, gone)
    assert set(rows_of(export(runtime))["session_id"]) == {kept}


def test_the_recording_of_a_live_replay_is_in_no_export(tmp_path: Path) -> None:
    runtime = make_runtime(tmp_path)
    copy, kept = seal(runtime, [Recording(), Recording()])
    with runtime.database.transaction(write=True) as db:
        db.exec(update(SessionRow).where(col(SessionRow.id) == copy).values(origin="replay"))
    assert set(rows_of(export(runtime))["session_id"]) == {kept}


_T_MS = [0, 400, 990, 1_000, 1_010, 2_500]
_EVENTS = [(0, "click"), (450, "scroll"), (1_005, "input"), (1_020, "scroll")]


@pytest.mark.parametrize(
    ("sampling", "taken"),
    [
        ({}, [0, 400, 1_000, 1_010]),
        ({"mode": "event_only"}, [0, 400, 1_000, 1_010]),
        ({"mode": "every_n_ms", "interval_ms": 1_000}, [0, 1_000, 2_500]),
        ({"mode": "every_n_ms", "interval_ms": 10_000, "keep_action_frames": True}, [0, 1_000]),
        ({"mode": "keyframes_only"}, [0, 1_010]),
        ({"mode": "keyframes_only", "keep_action_frames": True}, [0, 1_000, 1_010]),
        ({"mode": "all"}, _T_MS),
    ],
)
def test_each_sampling_mode_takes_its_frames(
    tmp_path: Path, sampling: dict[str, Any], taken: list[int]
) -> None:
    runtime = make_runtime(tmp_path)
    seal(runtime, [Recording(frames=_T_MS, events=_EVENTS)])
    folder = export(runtime, frame_sampling=sampling)
    assert rows_of(folder, "frames")["t_ms"].to_list() == taken
    assert manifest_of(folder)["totals"]["frames"] == len(taken)


def test_frames_of_one_instant_do_not_tie(tmp_path: Path) -> None:
    runtime = make_runtime(tmp_path)
    seal(runtime, [Recording(frames=[0, 0, 0, 7, 7])])
    folder = export(runtime, frame_sampling={"mode": "every_n_ms", "interval_ms": 5})
    assert rows_of(folder, "frames")["seq"].to_list() == [0, 3]


def test_a_path_takes_the_sessions_that_went_it_at_a_pinned_version(tmp_path: Path) -> None:
    runtime = make_runtime(tmp_path)
    short = seal(runtime, [Recording(), Recording(), Recording()])
    went = {"1a 2b 3c": Recording(), "9z 1a 2b": Recording(outcome="error"), "1a 9z 2b": Recording()}
    seal(runtime, [*went.values(), Recording()])  # the last one never gets into the graph
    index(runtime, dict.fromkeys(short, "1a 2b"))
    index(runtime, {recording.session_id: words for words, recording in went.items()})
    on_path = {*short, *(recording.session_id for words, recording in went.items() if "1a 2b" in words)}
    path_id = path_of(runtime, short[0])
    folder = export(runtime, filter={"path": path_id})
    assert set(rows_of(folder)["session_id"]) == on_path
    assert manifest_of(folder)["source"]["graph"] == {"checkout": 2}
    narrower = {
        "path": path_id,
        "outcome": "success",
        "since": clock.to_iso(START),
        "until": clock.to_iso(_LATER),
        "actor.kind": "human",
        "min_duration_ms": 1_000,
        "max_duration_ms": 1_000,
        "exclude_session_ids": [*short, *(new_id("ses") for _ in range(9_997))],
    }
    kept = went["1a 2b 3c"].session_id
    assert set(rows_of(export(runtime, filter=narrower))["session_id"]) == {kept}
    assert set(rows_of(export(runtime, filter={"subpath": path_id}))["session_id"]) == on_path
    tagged = narrower | {"tag": "gold"}
    assert manifest_of(export(runtime, filter=tagged))["totals"]["sessions"] == 0


def test_a_path_that_is_merged_before_the_plan_stands_for_what_it_became(tmp_path: Path) -> None:
    runtime = make_runtime(tmp_path)
    left, other = seal(runtime, [Recording(), Recording()])
    index(runtime, {left: "1a 2b", other: "7g 8h"})
    row = ask(runtime, filter={"path": path_of(runtime, other)})
    kept_id = path_of(runtime, left)
    with runtime.database.transaction(write=True) as db:
        paths = {path.path_id: path for path in db.exec(select(GraphPathRow))}
        kept = paths.pop(kept_id)
        (merged,) = paths.values()
        merged.merged_into = kept.number
        db.add(merged)
    assert run_export(runtime, row.id, owner="test").status == "completed"
    assert set(rows_of(folder_of(runtime, row))["session_id"]) == {left}


def test_a_path_must_be_one_of_the_workflows_that_are_exported(tmp_path: Path) -> None:
    runtime = make_runtime(tmp_path)
    (first,) = seal(runtime, [Recording()])
    seal(runtime, [Recording(workflow="login")])
    index(runtime, {first: "1a 2b"})
    with pytest.raises(ValidationFailed, match="/filter/path"):
        ask(runtime, workflow="login", filter={"path": path_of(runtime, first)})
    with pytest.raises(NotFound, match="path"):
        ask(runtime, mode="live", filter={"path": "pth_unknown"})
    assert ask(runtime, workflow=["login", "checkout"], filter={"path": path_of(runtime, first)})


def index(runtime: Runtime, words: dict[str, str]) -> list[str]:
    """Take sealed sessions into the graph, each with its steps; gives their ids."""
    with runtime.database.transaction(write=True) as db:
        rows = [db.get_one(SessionRow, session_id) for session_id in words]
        for row in rows:
            row.seal_seq = 1
        indexer = GraphIndexer()
        indexer.commit(db, indexer.prepare(db, rows, {id: make_steps(words[id]) for id in words}), rows)
    return list(words)


def path_of(runtime: Runtime, session_id: str) -> str:
    """Return the id of the path that a session took."""
    with runtime.database.transaction(write=False) as db:
        taken = select(SessionPathRow.trace_key).where(SessionPathRow.session_id == session_id)
        statement = (
            select(GraphPathRow.path_id)
            .join(GraphVariantRow, col(GraphVariantRow.path) == col(GraphPathRow.number))
            .join(GraphTraceRow, col(GraphTraceRow.variant_key) == col(GraphVariantRow.variant_key))
            .where(col(GraphTraceRow.trace_key).in_(taken))
        )
        return db.exec(statement).one()


def test_a_repeat_finds_no_session_that_was_being_sealed_when_the_export_was_planned(
    on_either_engine: Runtime,
) -> None:
    runtime = on_either_engine
    _, late = seal(runtime, [Recording(), Recording()])
    with runtime.database.transaction(write=True) as db:
        row = db.get_one(SessionRow, late)
        row.status, row.sealed_at, row.waiting_since = "stopped", None, clock.now()
    is_sealed, may_commit = threading.Event(), threading.Event()

    def _seal_slowly() -> None:
        with runtime.database.transaction(write=True) as db:
            row = db.get_one(SessionRow, late, with_for_update=True)
            row.status, row.sealed_at, row.waiting_since = "sealed", clock.now(), None
            db.flush()
            is_sealed.set()
            may_commit.wait(30)

    sealing = threading.Thread(target=_seal_slowly)
    sealing.start()
    is_sealed.wait(30)
    time.sleep(0.002)  # `until` has milliseconds
    filters = {"until": clock.to_iso(clock.now())}
    commit = threading.Timer(1.0, may_commit.set)
    commit.start()
    during = manifest_of(export(runtime, filter=filters))
    sealing.join()
    after = manifest_of(export(runtime, filter=filters))
    assert during["row_set_sha256"] == after["row_set_sha256"]
    assert during["totals"]["sessions"] == 2
