"""Preparation of a batch in portions: the rows of the whole, out of bounded portions. Design §3."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import orjson
import pyarrow as pa
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlmodel import Session as DbSession
from sqlmodel import col, delete, select, update

from recorder import clock
from recorder.errors import Unavailable
from recorder.ids import encode_ulid, new_id, reserve_ulid_values
from recorder.models.event import EventBatchRow
from recorder.models.frame import FrameRow
from recorder.models.operations import SealPortionRow
from recorder.models.session import SessionRow
from recorder.recording import stored_events
from recorder.runtime import Runtime
from recorder.sealing.digest_pool import DigestPool
from recorder.sealing.frame_digests import FrameDigest
from recorder.sealing.portions import PortionLimits, discard_leftover_portions
from recorder.sealing.preparation import BatchPreparation
from recorder.storage.lake_schemas import LAYOUTS
from recorder.storage.leases import LeaseLost
from recorder.tenant import Tenant
from tests.support.expected_facts import whole_session
from tests.support.factories import picture
from tests.support.sealed_sessions import START, WORKSPACE

DATE = "2026-05-02"
# Digests may take long on a busy machine: a portion that waits for them would count as one more.
TINY = PortionLimits(events=3, frames=2, digested_frames=2, frame_rows=3, events_at_once=2, digest_wait_s=60)
LARGE = PortionLimits(digest_wait_s=60)
#: Two pictures, each with a snapshot; every frame of these tests lies in this object.
PICTURES = [picture(1), picture(2)]
DOMS = [
    zstandard.compress(
        orjson.dumps({"v": 1, "format": "nodes", "html": ["html", {}, ["body", {}, [tag, {}, "a"]]]})
    )
    for tag in ("main", "form")
]

TENANT = Tenant(WORKSPACE, "live")


@dataclass
class Batch:
    """A claimed batch."""

    session_ids: list[str]
    tenant: Tenant = TENANT
    number: int = 7
    date: str = DATE
    fence: int = 3

    def seal_seq(self, session_id: str) -> int:
        """Return the place in the lane's order."""
        return 40 + self.session_ids.index(session_id)


@pytest.fixture(scope="module")
def pool(runtime: Runtime) -> Iterator[DigestPool]:
    """Yield one worker process that digests frames."""
    runtime.blobs.put("frames/shared.pack", b"".join([*PICTURES, *DOMS]))
    with DigestPool(runtime.settings.blob_url, processes=1) as opened:
        yield opened


@dataclass
class Bench:
    """A deployment with a digest pool, and what `hold` does in it."""

    runtime: Runtime
    pool: DigestPool
    held: list[bool] = field(default_factory=list)

    def hold(self, db: DbSession) -> None:
        """Note that the lease was checked."""
        self.held.append(True)

    def start(self, *session_ids: str, limits: PortionLimits = TINY, date: str = DATE) -> BatchPreparation:
        """Start preparing a batch of these sessions."""
        batch = Batch(list(session_ids), date=date)
        return BatchPreparation(self.runtime, self.pool, batch, require_lease=self.hold, limits=limits)

    def seen(self, session_id: str) -> dict[str, FrameDigest]:
        """Return the digests of a session's frames, by id."""
        with self.runtime.database.transaction(write=False) as db:
            frames = db.exec(select(FrameRow).where(FrameRow.session_id == session_id)).all()
        digests = self.pool.digest(session_id, frames)
        return {frame.frame_id: seen for frame, seen in zip(frames, digests, strict=True)}

    def assert_whole(self, prepared: BatchPreparation, *session_ids: str) -> None:
        """Check that the files hold the rows of these sessions, all of them, in order, and nothing else."""
        wholes = [
            whole_session(
                self.runtime,
                session_id,
                self.seen(session_id),
                date=prepared._batch.date,
                seal_seq=prepared._batch.seal_seq(session_id),
            )
            for session_id in session_ids
        ]
        for kind, layout in LAYOUTS.items():
            expected = sorted((row for whole in wholes for row in whole[kind]), key=_key(kind))
            results = [row for file in prepared.files[kind] for row in self.read(kind, file)]
            assert sorted(results, key=_key(kind)) == [_in_schema(row, layout.schema) for row in expected], (
                kind
            )
            for file in prepared.files[kind]:
                rows = self.read(kind, file)
                assert rows == sorted(rows, key=_key(kind)) and file.rows == len(rows)
        assert [session.row.id for session in prepared.sessions] == list(session_ids)
        for session, whole in zip(prepared.sessions, wholes, strict=True):
            (row,) = whole["sessions"]
            output = (
                "event_count",
                "action_count",
                "frame_count",
                "image_bytes",
                "payload_bytes",
                "rows_sha256",
            )
            assert {name: getattr(session, name) for name in output} == {name: row[name] for name in output}
            assert [step.features for step in session.steps] == [
                tuple(row["features"]) for row in whole["steps"]
            ]
            assert [step.runs for step in session.steps] == [row["runs"] for row in whole["steps"]]

    def read(self, kind: Any, file: Any) -> list[dict[str, Any]]:
        """Return the rows of a file, times as microseconds."""
        batches = self.runtime.lake.read_file(kind, Tenant(WORKSPACE, "live"), file)
        table = pa.Table.from_batches(list(batches), LAYOUTS[kind].schema)
        return [_plain(row) for row in table.to_pylist()]

    def portions(self, session_id: str) -> int:
        """Return the number of stored portions of a session."""
        with self.runtime.database.transaction(write=False) as db:
            result = select(SealPortionRow).where(SealPortionRow.session_id == session_id)
            return len(db.exec(result).all())

    def objects(self, session_id: str) -> list[str]:
        """Return the kept objects of a session."""
        return list(self.runtime.blobs.keys(f"sealing/{WORKSPACE}/{session_id}"))

    def execute(self, statement: Any) -> None:
        """Change rows."""
        with self.runtime.database.transaction(write=True) as db:
            db.exec(statement)

    def delete(self, session_id: str) -> None:
        """Delete a session softly."""
        self.execute(
            update(SessionRow)
            .where(col(SessionRow.id) == session_id)
            .values(deleted_at=clock.now(), waiting_since=None)
        )


@pytest.fixture(scope="module")
def bench(runtime: Runtime, pool: DigestPool) -> Bench:
    """Return the deployment of this module."""
    return Bench(runtime, pool)


def _key(kind: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda row: tuple(row[name] for name in LAYOUTS[kind].sort)


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    def value(cell: Any) -> Any:
        return (cell - clock.from_ms(0)) // clock.from_ms(0).resolution if hasattr(cell, "tzinfo") else cell

    return {name: value(item) for name, item in row.items()}


def _in_schema(row: dict[str, Any], schema: pa.Schema) -> dict[str, Any]:
    return {name: row[name] for name in schema.names}


def make_session(
    runtime: Runtime,
    batches: list[list[dict[str, Any]]],
    frames: list[dict[str, Any]] | tuple[()] = (),
    *,
    workflow: str = "checkout",
) -> str:
    """Return a stopped session with these batches of items, and frames of the shared object."""
    session_id, position = new_id("ses"), 1
    size = 0
    with runtime.database.transaction(write=True) as db:
        for items in batches:
            body = orjson.dumps({"events": items})
            size += len(body)
            times = [item["t_ms"] for item in items]
            db.add(
                EventBatchRow(
                    session_id=session_id,
                    first_position=position,
                    n=len(items),
                    t_min=min(times),
                    t_max=max(times),
                    first_id=f"evt_{encode_ulid(reserve_ulid_values(len(items)))}",
                    received_ms=0,
                    payload=zstandard.compress(body),
                )
            )
            position += len(items)
        for frame in frames:
            db.add(_frame(session_id, position, **frame))
            position += 1
        db.add(
            SessionRow(
                id=session_id,
                workspace_id=WORKSPACE,
                mode="live",
                workflow=workflow,
                status="stopped",
                waiting_since=START,
                created_at=START,
                started_at=START,
                stopped_at=START,
                event_count=sum(map(len, batches)),
                frame_count=len(frames),
                event_bytes=size,
                duration_ms=99,
            )
        )
    return session_id


def _frame(
    session_id: str, position: int, *, id: str, t_ms: int, shows: int, has_dom: bool, keyframe: bool | None
) -> FrameRow:
    data, dom = PICTURES[shows], DOMS[shows]
    offset = sum(map(len, PICTURES[:shows]))
    columns = {
        "dom_object": "frames/shared.pack",
        "dom_offset": sum(map(len, PICTURES)) + sum(map(len, DOMS[:shows])),
        "dom_length": len(dom),
    }
    return FrameRow(
        session_id=session_id,
        frame_id=id,
        position=position,
        t_ms=t_ms,
        content_type="image/png",
        width=2,
        height=2,
        keyframe=keyframe,
        bytes=len(data),
        sha256=f"{shows:064}",
        object="frames/shared.pack",
        offset=offset,
        length=len(data),
        active_rect=[0, 0, 1, 1] if has_dom else None,
        **(columns if has_dom else {}),
    )


FRAME_IDS = [f"frm_{letter}" for letter in "aBcDeFg"]
TARGETS = [{"role": "textbox", "name": name} for name in ("Name", "Street")]
ITEMS = st.fixed_dictionaries(
    {
        "t_ms": st.integers(0, 9),
        "type": st.sampled_from(["click", "key_down", "press", "navigate", "scroll", "log", "error"]),
    },
    optional={
        "target": st.sampled_from(TARGETS),
        "url": st.sampled_from(["https://a.example/1", "https://a.example/cart"]),
        "frame_id": st.sampled_from([*FRAME_IDS, "frm_gone"]),
        "input": st.sampled_from([{"key": "a"}, {"key": "Shift"}, {"value": "é"}]),
        "signals": st.just([{"type": "navigation", "url": "https://a.example/cart"}]),
        "state_key": st.just("own"),
        "is_named": st.booleans(),
    },
)
FRAMES = st.lists(
    st.fixed_dictionaries(
        {
            "id": st.sampled_from(FRAME_IDS),
            "t_ms": st.integers(0, 9),
            "shows": st.integers(0, 1),
            "has_dom": st.booleans(),
            "keyframe": st.sampled_from([None, None, True, False]),
        }
    ),
    max_size=7,
    unique_by=lambda frame: frame["id"],
)


def named(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return items of which some have ids of their own, anywhere among those that the service gives."""
    return [
        {**{name: value for name, value in item.items() if name != "is_named"}}
        | ({"id": f"evt_{new_id('evt')[:3:-1]}"} if item.get("is_named") else {})
        for item in items
    ]


@settings(max_examples=25, deadline=None)
@given(
    batches=st.lists(st.lists(ITEMS, min_size=1, max_size=4), max_size=6),
    frames=FRAMES,
    max_bytes=st.sampled_from([1, 200, 10**6]),
    kills=st.lists(st.booleans(), max_size=20),
)
def test_portions_add_up_to_the_whole(
    bench: Bench,
    batches: list[list[dict[str, Any]]],
    frames: list[dict[str, Any]],
    max_bytes: int,
    kills: list[bool],
) -> None:
    session_id = make_session(bench.runtime, [named(items) for items in batches], frames)
    limits = PortionLimits(**{**TINY.__dict__, "bytes": max_bytes})
    preparation = bench.start(session_id, limits=limits)
    while not preparation.advance():
        if kills and kills.pop():
            preparation.close()
            preparation = bench.start(session_id, limits=limits)
    bench.assert_whole(preparation, session_id)
    preparation.discard()
    assert bench.portions(session_id) == 0 and bench.objects(session_id) == []


def clicks(count: int, *, first: int = 0) -> list[list[dict[str, Any]]]:
    """Return so many clicks on different things, three a batch."""
    items = [
        {"t_ms": first + n, "type": "click", "target": {"role": "button", "name": f"Item {chr(97 + n % 26)}"}}
        for n in range(count)
    ]
    return [items[n : n + 3] for n in range(0, count, 3)]


def frame(id: str, t_ms: int = 0, **members: Any) -> dict[str, Any]:
    """Return a frame of the shared object."""
    return {"id": id, "t_ms": t_ms, "shows": 0, "has_dom": True, "keyframe": None, **members}


def finish(preparation: BatchPreparation) -> int:
    """Prepare everything; returns the number of portions."""
    portions = 1
    while not preparation.advance():
        portions += 1
    return portions


def test_small_sessions_share_a_portion_and_files(bench: Bench) -> None:
    ids = [
        make_session(bench.runtime, clicks(2), [frame("frm_a")], workflow=name)
        for name in ("pay", "ship") * 2
    ]
    ids.append(make_session(bench.runtime, [], workflow="pay"))
    preparation = bench.start(*ids, limits=LARGE)
    assert finish(preparation) == 1
    bench.assert_whole(preparation, *ids)
    assert {kind: len(files) for kind, files in preparation.files.items()} == {
        "events": 2, "frames": 2, "sessions": 2, "steps": 2,
    }  # fmt: skip


def test_sessions_that_together_are_too_many_take_several_portions(bench: Bench) -> None:
    ids = [make_session(bench.runtime, clicks(2)) for _ in range(3)]
    large = make_session(bench.runtime, clicks(7))
    preparation = bench.start(*ids, large, limits=TINY)
    # Three of small sessions; of the large one three runs, three of events and one of steps.
    assert finish(preparation) == 3 + 7
    bench.assert_whole(preparation, *ids, large)


def test_many_pixels_are_prepared_in_portions(bench: Bench) -> None:
    # A frame of these tests has four pixels.
    limits = PortionLimits(pixels=12, digested_pixels=8, digest_wait_s=60)
    small = [make_session(bench.runtime, [], [frame("frm_a"), frame("frm_b")]) for _ in range(3)]
    large = make_session(bench.runtime, [], [frame(f"frm_{n}", n) for n in range(5)])
    whole = bench.start(*small, large, limits=LARGE)
    assert finish(whole) == 1
    preparation = bench.start(*small, large, limits=limits)
    # Three of small sessions; of the large one three of digests, no event twice, frames, and steps.
    assert finish(preparation) == 3 + 7
    bench.assert_whole(preparation, *small, large)


def test_a_run_goes_on_behind_the_portions_of_a_killed_one(bench: Bench) -> None:
    frames = [frame(f"frm_{n}", 2 * n, shows=n % 2) for n in range(5)]
    session_id = make_session(bench.runtime, clicks(11), frames)
    # The first preparation computes the digests, in portions of their own; later ones find them.
    for _ in range(2):
        whole = finish(bench.start(session_id))
        bench.execute(delete(SealPortionRow).where(col(SealPortionRow.session_id) == session_id))
    for portions in range(1, whole):
        killed = bench.start(session_id)
        for _ in range(portions):
            assert not killed.advance()
        killed.close()
        held = len(bench.held)
        successor = bench.start(session_id)
        assert finish(successor) == whole - portions
        assert len(bench.held) - held == whole - portions
        bench.assert_whole(successor, session_id)
        successor.discard()


def test_portions_of_another_day_are_not_gone_on_with(bench: Bench) -> None:
    session_id = make_session(bench.runtime, clicks(7))
    bench.start(session_id, date="2026-05-01").advance()
    preparation = bench.start(session_id)
    assert finish(preparation) == 7
    bench.assert_whole(preparation, session_id)


@pytest.mark.parametrize(("hours", "is_continued"), [(11, True), (13, False)])
def test_portions_with_files_of_half_a_day_ago_are_prepared_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, hours: int, is_continued: bool
) -> None:
    session_id = make_session(bench.runtime, clicks(7))
    killed, portions = bench.start(session_id), 0
    while not killed._units or not killed._units[0].files:
        killed.advance()
        portions += 1
    now_ms = clock.now_ms
    monkeypatch.setattr(clock, "now_ms", lambda: now_ms() + hours * 3_600_000)
    preparation = bench.start(session_id)
    assert finish(preparation) == 7 - portions * is_continued
    bench.assert_whole(preparation, session_id)


def test_portions_whose_files_are_gone_are_prepared_again(bench: Bench) -> None:
    session_id = make_session(bench.runtime, clicks(7), [frame("frm_a"), frame("frm_b"), frame("frm_c")])
    killed = bench.start(session_id)
    while not killed._units or not killed._units[0].files:
        killed.advance()
    (_, file) = killed._units[0].files[0]
    runtime = bench.runtime
    runtime.lake.stored_table("events", TENANT).open_file_system().delete_file(file.path)
    preparation = bench.start(session_id)
    finish(preparation)
    bench.assert_whole(preparation, session_id)


def test_a_session_whose_runs_are_gone_is_prepared_again(bench: Bench) -> None:
    session_id = make_session(bench.runtime, clicks(7))
    killed = bench.start(session_id)
    for _ in range(4):
        killed.advance()
    for key in bench.objects(session_id):
        bench.runtime.blobs.delete(key)
    with pytest.raises(KeyError):
        killed.advance()
    preparation = bench.start(session_id)
    assert finish(preparation) == 7
    bench.assert_whole(preparation, session_id)


def test_batches_that_all_overlap_are_decoded_once(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    batches = [[{"t_ms": 40 * n + batch, "type": "click"} for n in range(3)] for batch in range(40)]
    session_id = make_session(bench.runtime, batches)
    decoded: list[int] = []
    real = stored_events.decompress_stored_events

    def decompress(payload: bytes) -> bytes:
        decoded.append(len(payload))
        return real(payload)

    monkeypatch.setattr("recorder.recording.batch_items.decompress_stored_events", decompress)
    preparation = bench.start(session_id, limits=PortionLimits(**{**TINY.__dict__, "events": 12}))
    # Ten runs of four batches, ten portions of events, one more that finds no event left, and the steps.
    assert finish(preparation) <= 22
    assert len(decoded) == 40
    bench.assert_whole(preparation, session_id)


def test_a_lost_lease_stores_nothing(bench: Bench, runtime: Runtime) -> None:
    session_id = make_session(runtime, clicks(7))

    def lose(db: DbSession) -> None:
        raise LeaseLost

    preparation = BatchPreparation(runtime, bench.pool, Batch([session_id]), require_lease=lose, limits=TINY)
    for _ in range(2):
        with pytest.raises(LeaseLost):
            preparation.advance()
    assert bench.portions(session_id) == 0


def test_after_an_error_of_the_database_the_portion_is_prepared_again(bench: Bench) -> None:
    session_id = make_session(bench.runtime, clicks(11), [frame(f"frm_{n}", n) for n in range(3)])
    calls = 0

    def fail_at_times(db: DbSession) -> None:
        nonlocal calls
        calls += 1
        if calls % 2:
            raise Unavailable("The database")

    preparation = BatchPreparation(
        bench.runtime, bench.pool, Batch([session_id]), require_lease=fail_at_times, limits=TINY
    )
    failed = 0
    while True:
        try:
            if preparation.advance():
                break
        except Unavailable:
            failed += 1
    assert failed > 5
    bench.assert_whole(preparation, session_id)


def damage(bench: Bench, session_id: str, payload: bytes) -> None:
    """Let a session's last batch hold other bytes."""
    with bench.runtime.database.transaction(write=True) as db:
        statement = select(EventBatchRow).where(EventBatchRow.session_id == session_id)
        row = db.exec(statement.order_by(col(EventBatchRow.first_position).desc())).first()
        assert row is not None
        if payload != b"no zstd":
            payload = zstandard.compress(payload.replace(b"%d", b"%d" % row.t_min))
        row.payload = payload
        row.n, row.t_max = 1, row.t_min
        db.add(row)


@pytest.mark.parametrize(
    "payload",
    [
        b"no zstd",
        b"{",
        b"[]",
        b'{"events":[{"t_ms":1}]}',
        b'{"events":[{"t_ms":%d,"type":"click","input":7}]}',
        b'{"events":[{"t_ms":77,"type":"click"}]}',
        b'{"events":[{"t_ms":9223372036854775807,"type":"click"}]}',
        b'{"events":[' + b"[" * 900 + b"]" * 900 + b"]}",
    ],
    ids=["not packed", "cut", "no object", "member missing", "odd type", "other events", "time over", "deep"],
)
@pytest.mark.parametrize("count", [3, 7], ids=["small", "large"])
def test_a_damaged_session_is_set_aside_and_the_others_go_on(
    bench: Bench, payload: bytes, count: int
) -> None:
    ids = [make_session(bench.runtime, clicks(count), [frame("frm_a")]) for _ in range(3)]
    damage(bench, ids[1], payload)
    preparation = bench.start(*ids, limits=PortionLimits(**{**TINY.__dict__, "events": 6}))
    finish(preparation)
    assert [(failure.session_id, failure.code) for failure in preparation.failures] == [
        (ids[1], "content_unreadable")
    ]
    assert "Restore" in preparation.failures[0].message
    bench.assert_whole(preparation, ids[0], ids[2])
    assert bench.portions(ids[1]) == 0 and bench.objects(ids[1]) == []


@pytest.mark.parametrize("count", [3, 7], ids=["small", "large"])
def test_a_session_whose_pictures_are_gone_is_set_aside(bench: Bench, count: int) -> None:
    ids = [make_session(bench.runtime, clicks(count), [frame("frm_a")]) for _ in range(2)]
    bench.execute(
        update(FrameRow)
        .where(col(FrameRow.session_id) == ids[0])
        .values(object="frames/none", dom_object=None, sha256=ids[0])
    )
    preparation = bench.start(*ids, limits=PortionLimits(**{**TINY.__dict__, "events": 6}))
    finish(preparation)
    assert [(failure.session_id, failure.code) for failure in preparation.failures] == [
        (ids[0], "content_missing")
    ]
    bench.assert_whole(preparation, ids[1])


@pytest.mark.parametrize("count", [3, 13], ids=["small", "large"])
def test_a_session_that_is_deleted_is_left_out_at_any_time(bench: Bench, count: int) -> None:
    limits = PortionLimits(**{**TINY.__dict__, "events": 6})
    for before in range(4):
        ids = [make_session(bench.runtime, clicks(count)) for _ in range(2)]
        preparation = bench.start(*ids, limits=limits)
        is_done = False
        for _ in range(before):
            is_done = preparation.advance()
        if is_done:
            preparation.leave_out([ids[0]])
        bench.delete(ids[0])
        finish(preparation)
        assert preparation.left_out == [ids[0]] and preparation.failures == []
        bench.assert_whole(preparation, ids[1])
        assert bench.portions(ids[0]) == 0


def test_a_session_that_was_purged_meanwhile_is_left_out(bench: Bench) -> None:
    session_id = make_session(bench.runtime, clicks(7), [frame("frm_a")])
    preparation = bench.start(session_id)
    preparation.advance()
    for table in (EventBatchRow, FrameRow):
        bench.execute(delete(table).where(col(table.session_id) == session_id))
    bench.execute(delete(SessionRow).where(col(SessionRow.id) == session_id))
    finish(preparation)
    assert (preparation.left_out, preparation.failures, preparation.sessions) == ([session_id], [], [])
    assert all(files == [] for files in preparation.files.values())


def test_progress_of_sessions_that_no_longer_wait_is_deleted(bench: Bench) -> None:
    ids = [make_session(bench.runtime, clicks(7), [frame(f"frm_{n}") for n in range(3)]) for _ in range(2)]
    for session_id in ids:
        bench.start(session_id).advance()
    bench.delete(ids[0])
    assert discard_leftover_portions(bench.runtime, bench.hold) >= 1
    assert (bench.portions(ids[0]), bench.objects(ids[0])) == (0, [])
    assert bench.portions(ids[1]) == 1 and len(bench.objects(ids[1])) == 1


def test_a_path_is_read_from_the_first_steps(bench: Bench) -> None:
    session_id = make_session(bench.runtime, clicks(11))
    (full,) = (bench.start(session_id, limits=LARGE),)
    finish(full)
    steps = full.sessions[0].steps
    assert len(steps) == 11
    for limits in (PortionLimits(steps=5), PortionLimits(**{**TINY.__dict__, "steps": 5})):
        preparation = bench.start(session_id, limits=limits)
        finish(preparation)
        assert preparation.sessions[0].steps == steps[:5]
        assert sum(file.rows for file in preparation.files["steps"]) == 5
        assert preparation.sessions[0].event_count == 11
