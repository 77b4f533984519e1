"""Results of sealing: rows in order, facts, numbers of a lane, swept rows. Design §3."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from itertools import islice, product
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from sqlmodel import func, select

from recorder import clock
from recorder.memory.storage.consistency import check_graph_consistency
from recorder.memory.storage.graph_store import load_graph
from recorder.models.event import BatchKeyRow, EventBatchRow, EventKeyRow
from recorder.models.frame import FrameRow
from recorder.models.operations import IdempotencyRow, SealBatchRow
from recorder.recording.session_stops import stop_session
from recorder.row_digests import EventKey, compute_events_digest
from recorder.runtime import Runtime
from recorder.sealing import Sealer, has_sealing_work, list_sealing_runs, open_sealer
from recorder.sealing.batches import SealingBatchLimits
from recorder.tenant import GraphScope, Tenant
from tests.support.factories import picture
from tests.support.recorded_sessions import (
    WORKSPACE,
    Desk,
    assert_sealed_exactly_once,
    execute,
    open_desk,
    outbox_types,
    png_item,
    session_row,
)
from tests.support.sealed_sessions import make_settings
from tests.support.sealing import seal_waiting


@pytest.fixture
def runtime(tmp_path: Path) -> Iterator[Runtime]:
    """Yield a deployment of its own."""
    opened = Runtime.open(make_settings(tmp_path))
    yield opened
    opened.close()


@pytest.fixture
def desk(runtime: Runtime) -> Iterator[Desk]:
    """Yield a desk that records sessions in the deployment."""
    with open_desk(runtime) as opened:
        yield opened


@pytest.fixture
def sealer(runtime: Runtime) -> Iterator[Sealer]:
    """Yield a run that holds the lease."""
    run = Sealer(runtime, owner="run")
    assert run.take()
    yield run
    run.release()


def lake_rows(runtime: Runtime, kind: Any, session_id: str, mode: str = "live") -> pl.DataFrame:
    """Return a session's rows, found the way readers find them."""
    row = session_row(runtime, session_id)
    return runtime.lake.read_session(
        kind, Tenant(WORKSPACE, mode), workflow=row.workflow, date=row.lake_date or "", session_id=session_id
    )


def hot_rows(runtime: Runtime) -> dict[str, int]:
    """Return the number of rows of sessions' contents in SQL."""
    tables = (EventBatchRow, EventKeyRow, FrameRow, BatchKeyRow)
    with runtime.database.transaction(write=False) as db:
        return {table.__name__: db.exec(select(func.count()).select_from(table)).one() for table in tables}


def test_sealing_says_what_it_did(runtime: Runtime, desk: Desk, sealer: Sealer) -> None:
    ids = [desk.record(frames=[png_item(0, picture(1))]), desk.record(workflow="ship")]
    with runtime.database.transaction(write=False) as db:
        assert has_sealing_work(db) and list_sealing_runs(db)
    batches = sorted(seal_waiting(sealer), key=lambda batch: batch.workflows)
    assert [(batch.sessions, batch.events, batch.frames) for batch in batches] == [(1, 2, 1), (1, 2, 0)]
    assert {batch.tenant for batch in batches} == {Tenant(WORKSPACE, "live")}
    assert [batch.workflows for batch in batches] == [["checkout"], ["ship"]]
    lags = [lag for batch in batches for lag in batch.lags_s]
    assert len(lags) == 2 and 0 <= min(lags) <= max(lags) < 60
    assert_sealed_exactly_once(runtime, ids)
    with runtime.database.transaction(write=False) as db:
        assert not has_sealing_work(db)


def test_a_flood_of_new_states_leaves_a_graph_within_its_memory(runtime: Runtime, desk: Desk) -> None:
    names = map("".join, product("abcdef", repeat=4))
    for _ in range(3):
        session_id = desk.record(events=[], is_stopped=False)
        for start in range(0, 300, 100):
            targets = [{"role": "button", "name": name} for name in islice(names, 100)]
            events = [
                {"t_ms": start + index, "type": "click", "target": target}
                for index, target in enumerate(targets)
            ]
            desk.add_events(session_id, *events)
        stop(desk, session_id)
    narrow = replace(runtime, settings=replace(runtime.settings, graph_memory_mb=1))
    with open_sealer(narrow, "run") as sealer:
        assert sealer is not None
        assert sum(batch.sessions for batch in seal_waiting(sealer)) == 3
    scope = GraphScope(Tenant(WORKSPACE, "live"), "checkout")
    with runtime.database.transaction(write=False) as db:
        graph = load_graph(db, scope)
        check = check_graph_consistency(db, scope)
    assert 50 < len(graph.nodes) < 200
    assert graph.nodes[-1].label == "Other click steps"
    assert (check.sessions, check.off_path, check.missing, check.miscounted) == (3, [], [], [])


def test_events_are_numbered_in_their_total_order(runtime: Runtime, desk: Desk, sealer: Sealer) -> None:
    session_id = desk.record(events=[], is_stopped=False)
    desk.add_events(session_id, {"t_ms": 5, "type": "click", "id": "evt_b"}, {"t_ms": 9, "type": "log"})
    desk.add_events(session_id, {"t_ms": 5, "type": "fill", "id": "evt_B"}, {"t_ms": 0, "type": "click"})
    stop(desk, session_id)
    seal_waiting(sealer)
    rows = lake_rows(runtime, "events", session_id)
    assert rows["seq"].to_list() == [0, 1, 2, 3]
    assert rows["event_id"].to_list()[1:3] == ["evt_B", "evt_b"]
    assert rows["is_action"].to_list() == [True, True, True, False]
    assert rows["ts"].to_list() == [
        (session_row(runtime, session_id).started_at or clock.now()) + timedelta(milliseconds=t_ms)
        for t_ms in (0, 5, 5, 9)
    ]


def test_the_digest_of_a_session_is_that_of_its_rows(runtime: Runtime, desk: Desk, sealer: Sealer) -> None:
    events: list[dict[str, Any]] = [
        {"t_ms": 3, "type": "fill", "input": {"value": "é"}},
        {"t_ms": 1, "type": "log", "data": {"b": 1, "a": 2}},
    ]
    session_id = desk.record(events=events)
    seal_waiting(sealer)
    rows = lake_rows(runtime, "events", session_id)
    keys = [
        EventKey(row["event_id"], row["t_ms"], us(row["ts"]), row["type"], row["frame_id"], row["payload"])
        for row in rows.iter_rows(named=True)
    ]
    (output,) = lake_rows(runtime, "sessions", session_id).iter_rows(named=True)
    assert output["rows_sha256"] == compute_events_digest(keys)
    assert (output["event_count"], output["action_count"], output["frame_count"]) == (2, 1, 0)
    assert output["payload_bytes"] == sum(len(payload.encode()) for payload in rows["payload"])


def us(moment: Any) -> int:
    """Return microseconds since 1970."""
    microseconds: int = (moment - clock.from_ms(0)) // timedelta(microseconds=1)
    return microseconds


def test_events_are_bound_to_frames(runtime: Runtime, desk: Desk, sealer: Sealer) -> None:
    session_id = desk.record(
        events=[
            {"t_ms": 0, "type": "click"},
            {"t_ms": 10, "type": "click"},
            {"t_ms": 15, "type": "log"},
            {"t_ms": 20, "type": "click", "frame_id": "frm_a"},
            {"t_ms": 99, "type": "log", "frame_id": "frm_gone"},
        ],
        frames=[png_item(10, picture(1), id="frm_a"), png_item(20, picture(2), id="frm_b")],
    )
    seal_waiting(sealer)
    assert lake_rows(runtime, "events", session_id)["frame_seq"].to_list() == [None, 0, 0, 0, 1]
    frames = lake_rows(runtime, "frames", session_id)
    assert frames["n_events"].to_list() == [3, 1]
    assert frames["has_action"].to_list() == [True, False]


def test_keyframes_are_where_the_screen_changed(runtime: Runtime, desk: Desk, sealer: Sealer) -> None:
    same = picture(1)
    page: dict[str, Any] = {"v": 1, "format": "nodes", "html": ["html", {}, ["body", {}, ["main", {}, "a"]]]}
    other: dict[str, Any] = {"v": 1, "format": "nodes", "html": ["html", {}, ["body", {}, ["form", {}, "a"]]]}
    frames = [
        png_item(0, same, dom=page),
        png_item(1, same, dom=page),
        png_item(2, same, dom=page, keyframe=True),
        png_item(3, same, dom=other),
        png_item(4, same, dom=other, keyframe=False),
    ]
    session_id = desk.record(frames=frames)
    seal_waiting(sealer)
    rows = lake_rows(runtime, "frames", session_id)
    assert rows["is_keyframe"].to_list() == [True, False, True, True, False]
    keys = rows["state_key"].to_list()
    assert keys[0] == keys[1] == keys[2] != keys[3] == keys[4]
    assert rows["dhash"].n_unique() == 1


def test_the_oldest_stop_is_sealed_first_and_lanes_number_apart(runtime: Runtime, sealer: Sealer) -> None:
    ids: dict[str, list[str]] = {"live": [], "test": []}
    for mode in ("live", "test", "live"):
        with open_desk(runtime, mode=mode) as desk:
            ids[mode].append(desk.record())
    batches = seal_waiting(sealer)
    assert [(batch.tenant.mode, batch.sessions) for batch in batches] == [("live", 2), ("test", 1)]
    assert [session_row(runtime, session_id).seal_seq for session_id in ids["live"]] == [1, 2]
    assert [session_row(runtime, session_id).seal_seq for session_id in ids["test"]] == [1]
    assert lake_rows(runtime, "sessions", ids["test"][0], "test")["session_id"].to_list() == ids["test"]


@pytest.mark.parametrize(
    "limits",
    [
        SealingBatchLimits(sessions=2),
        SealingBatchLimits(events=4),
        SealingBatchLimits(frames=2),
        SealingBatchLimits(pixels=2 * 16 * 12),
    ],
    ids=repr,
)
def test_batches_stay_small_and_numbers_rise(
    runtime: Runtime, desk: Desk, limits: SealingBatchLimits
) -> None:
    ids = [desk.record(frames=[png_item(0, picture(n))]) for n in range(5)]
    with open_sealer(runtime, "run", batch_limits=limits) as sealer:
        assert sealer is not None
        assert [batch.sessions for batch in seal_waiting(sealer)] == [2, 2, 1]
    with runtime.database.transaction(write=False) as db:
        batches = db.exec(select(SealBatchRow).order_by(SealBatchRow.number)).all()
    assert [(batch.number, batch.first_seal_seq, batch.state) for batch in batches] == [
        (1, 1, "done"), (2, 3, "done"), (3, 5, "done"),
    ]  # fmt: skip
    assert [session_row(runtime, session_id).seal_seq for session_id in ids] == [1, 2, 3, 4, 5]
    assert_sealed_exactly_once(runtime, ids)


def test_one_session_over_every_cap_is_sealed_alone(runtime: Runtime, desk: Desk) -> None:
    ids = [desk.record(), desk.record()]
    with open_sealer(runtime, "run", batch_limits=SealingBatchLimits(events=1)) as sealer:
        assert sealer is not None
        assert [batch.sessions for batch in seal_waiting(sealer)] == [1, 1]
    assert_sealed_exactly_once(runtime, ids)


def test_a_session_without_contents_is_sealed(runtime: Runtime, desk: Desk, sealer: Sealer) -> None:
    session_id = desk.record(events=[])
    seal_waiting(sealer)
    assert_sealed_exactly_once(runtime, [session_id])


def test_an_import_is_sealed_under_its_own_times(runtime: Runtime, desk: Desk, sealer: Sealer) -> None:
    started = "2024-02-29T10:00:00Z"
    session_id = desk.record(events=[{"t_ms": 90_000, "type": "click"}], started_at=started)
    (batch,) = seal_waiting(sealer)
    row = session_row(runtime, session_id)
    assert row.duration_ms == 90_000
    # The lag counts from our own clock, not from the recording's end in 2024.
    assert len(batch.lags_s) == 1 and 0 <= batch.lags_s[0] < 60
    assert row.lake_date == clock.now().strftime("%Y-%m-%d")
    (event,) = lake_rows(runtime, "events", session_id).iter_rows(named=True)
    assert clock.to_iso(event["ts"]) == "2024-02-29T10:01:30.000Z"


@pytest.mark.parametrize("started", ["0001-01-01T00:00:00Z", "2026-01-01T00:00:00Z"])
def test_the_latest_moment_a_client_may_name_is_sealed(
    runtime: Runtime, desk: Desk, sealer: Sealer, started: str
) -> None:
    session_id = desk.record(
        events=[{"t_ms": 10**12, "type": "click"}], frames=[png_item(10**12, picture())], started_at=started
    )
    seal_waiting(sealer)
    assert_sealed_exactly_once(runtime, [session_id])


def test_an_error_is_told_once_and_before_the_seal(runtime: Runtime, desk: Desk, sealer: Sealer) -> None:
    session_id = desk.record(events=[{"t_ms": 1, "type": "error"}], tags=["seen"])
    seal_waiting(sealer)
    assert outbox_types(runtime, session_id) == [
        f"session.{type}" for type in ("created", "started", "tagged", "stopped", "error", "sealed")
    ]


def make_old(runtime: Runtime, session_id: str, *, minutes: int) -> None:
    """Let a session have been sealed so long ago."""
    sealed_at = (clock.now() - timedelta(minutes=minutes)).strftime("%Y-%m-%d %H:%M:%S.%f")
    execute(runtime, "UPDATE sessions SET sealed_at = :at WHERE id = :id", at=sealed_at, id=session_id)


def test_the_sweep_takes_hot_rows_after_30_minutes(runtime: Runtime, desk: Desk, sealer: Sealer) -> None:
    named = {"t_ms": 1, "type": "click", "id": "evt_a"}
    old, young = (desk.record(events=[named], frames=[png_item(1, picture(n))]) for n in range(2))
    waiting = desk.record(events=[named], is_stopped=False)
    seal_waiting(sealer)
    make_old(runtime, old, minutes=31)
    make_old(runtime, young, minutes=29)
    assert sealer.maintain().swept_sessions == 1
    assert [session_row(runtime, item).is_hot for item in (old, young, waiting)] == [False, True, True]
    assert hot_rows(runtime) == {"EventBatchRow": 2, "EventKeyRow": 2, "FrameRow": 1, "BatchKeyRow": 0}
    assert sealer.maintain().swept_sessions == 0


def test_the_sweep_takes_as_many_as_are_due(runtime: Runtime, desk: Desk, sealer: Sealer) -> None:
    ids = [desk.record() for _ in range(25)]
    seal_waiting(sealer)
    for session_id in ids:
        make_old(runtime, session_id, minutes=31)
    with runtime.database.transaction(write=False) as db:
        assert has_sealing_work(db)
    assert sealer.maintain().swept_sessions == 25
    assert hot_rows(runtime)["EventBatchRow"] == 0


def test_batch_ids_stay_as_long_as_their_batches(runtime: Runtime, desk: Desk, sealer: Sealer) -> None:
    swept, recording = desk.record(), desk.record(is_stopped=False)
    for session_id in (swept, recording):
        execute(
            runtime,
            "INSERT INTO batch_keys (session_id, kind, batch_key, body_digest, answer) "
            "VALUES (:id, 'events', 'first', x'00', x'00')",
            id=session_id,
        )
    seal_waiting(sealer)
    sealer.maintain()
    assert hot_rows(runtime)["BatchKeyRow"] == 2
    make_old(runtime, swept, minutes=31)
    sealer.maintain()
    with runtime.database.transaction(write=False) as db:
        assert [row.session_id for row in db.exec(select(BatchKeyRow))] == [recording]


def test_batches_are_forgotten_a_day_after_they_are_done(runtime: Runtime, sealer: Sealer) -> None:
    made = [("done", 23), ("done", 25), ("open", 25), ("undoing", 49)]
    with runtime.database.transaction(write=True) as db:
        for number, (state, hours) in enumerate(made):
            created_at = clock.now() - timedelta(hours=hours)
            lane = {"workspace_id": "wsp_1", "mode": "live", "slot": 0, "number": number}
            db.add(SealBatchRow(**lane, session_ids=[], first_seal_seq=1, state=state, created_at=created_at))
    sealer.maintain()
    with runtime.database.transaction(write=False) as db:
        assert sorted(row.number for row in db.exec(select(SealBatchRow))) == [0, 2, 3]


def test_kept_answers_are_forgotten_after_a_day(runtime: Runtime, sealer: Sealer) -> None:
    for hours, key in ((23, "young"), (25, "old")):
        made = clock.now() - timedelta(hours=hours)
        identity = {"workspace_id": "wsp_1", "mode": "live", "method": "POST", "path": "/v1/sessions"}
        with runtime.database.transaction(write=True) as db:
            db.add(
                IdempotencyRow(**identity, key=key, body_digest=b"", status=201, answer=b"", created_at=made)
            )
    assert sealer.maintain().dropped_answers == 1
    with runtime.database.transaction(write=False) as db:
        assert [row.key for row in db.exec(select(IdempotencyRow))] == ["young"]


def stop(desk: Desk, session_id: str) -> None:
    """Stop a session that was recorded by hand."""
    with desk.runtime.database.transaction(write=True) as db:
        stop_session(db, desk.caller.tenant, session_id)
