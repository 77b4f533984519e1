"""A sealing run that is killed anywhere is done again: rows once, events once. Design §3 (sealing)."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event as sqlalchemy_event
from sqlalchemy.engine import Engine
from sqlmodel import col, select

from recorder import clock
from recorder.errors import Unavailable
from recorder.models.frame import FrameRow
from recorder.models.memory import SessionPathRow
from recorder.models.session import TagCreate
from recorder.recording.tags import add_tag
from recorder.runtime import Runtime
from recorder.sealing import SealedBatch, Sealer, open_sealer
from recorder.sealing.lane_scheduling import SealingTimes
from recorder.storage.lake import Lake, LakeFile
from recorder.storage.lake_schemas import LakeKind
from recorder.storage.leases import LeaseLost
from recorder.tenant import Tenant
from tests.support.factories import picture
from tests.support.recorded_sessions import (
    WORKSPACE,
    assert_sealed_exactly_once,
    delete,
    let_lease_run_out,
    open_desk,
    outbox_types,
    png_item,
    session_row,
)
from tests.support.sealed_sessions import open_on_either_engine
from tests.support.sealing import seal_all

#: Of the statements of a run on SQLite each one of so many is its last; `make faults` takes every one. On
#: PostgreSQL, where a round takes longer, it is each ninth at most.
STRIDE = int(os.environ.get("RECORDER_FAULT_STRIDE", "6"))  # noqa: TID251
Act = Callable[[], Any]


class Killed(BaseException):
    """End of the process, which no code catches."""


class HookedLake(Lake):
    """A lake that does something before or after it takes the rows of a kind, once."""

    def __init__(self, url: str, kind: LakeKind, act: Act, *, is_after: bool) -> None:
        super().__init__(url)
        self._hook: tuple[LakeKind, Act] | None = (kind, act)
        self._is_after = is_after

    def commit(
        self,
        kind: LakeKind,
        tenant: Tenant,
        files: Sequence[LakeFile],
        *,
        lane: str,
        number: int,
    ) -> bool:
        """Commit, with the hook."""
        act = None
        if self._hook is not None and self._hook[0] == kind:
            act, self._hook = self._hook[1], None
        if act is not None and not self._is_after:
            act()
        was_added = super().commit(kind, tenant, files, lane=lane, number=number)
        if act is not None and self._is_after:
            act()
        return was_added


@pytest.fixture
def runtime(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Runtime]:
    """Yield a deployment of its own: on SQLite, or on PostgreSQL where the test asks for it."""
    yield from open_on_either_engine(request, tmp_path)


both_engines = pytest.mark.parametrize("runtime", ["sqlite", "postgresql"], indirect=True)


def record(runtime: Runtime, count: int = 2) -> list[str]:
    """Return stopped sessions with two events and a frame each."""
    with open_desk(runtime) as desk:
        return [desk.record(frames=[png_item(1, picture(n))]) for n in range(count)]


def hooked(runtime: Runtime, kind: LakeKind, act: Act, *, is_after: bool) -> Runtime:
    """Return the same deployment with a hook in its lake."""
    return replace(runtime, lake=HookedLake(runtime.lake.url, kind, act, is_after=is_after))


@contextmanager
def sealing(runtime: Runtime, owner: str) -> Iterator[Sealer]:
    """Yield a run that holds the lease; it gives nothing back if it is killed."""
    sealer = Sealer(runtime, owner=owner, times=SealingTimes(store_retry_after=timedelta(0)))
    assert sealer.take()
    try:
        yield sealer
    except Killed:
        abandon(sealer)
        raise
    sealer.release()


def abandon(killed: Sealer) -> None:
    """End the threads of a killed run, which die with a process; no lease is given back."""
    killed._scheduler._keeper.stop()
    killed._writers.shutdown()
    killed._digests.close()


def kill() -> None:
    """End the process."""
    raise Killed


@pytest.mark.parametrize("is_after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("kind", ["events", "frames", "steps", "sessions"])
def test_a_run_killed_at_a_lake_write_is_done_again(runtime: Runtime, kind: LakeKind, is_after: bool) -> None:
    ids = record(runtime)
    with pytest.raises(Killed), sealing(hooked(runtime, kind, kill, is_after=is_after), "killed") as sealer:
        sealer.seal_batch()
    assert {session_row(runtime, session_id).status for session_id in ids} == {"stopped"}
    ids += record(runtime, 1)
    let_lease_run_out(runtime)
    seal_all(runtime)
    assert_sealed_exactly_once(runtime, ids)


@both_engines
@pytest.mark.parametrize("kind", ["events", "frames", "steps", "sessions"])
def test_a_session_that_only_the_second_attempt_can_read_is_sealed_with_its_rows(
    runtime: Runtime, kind: LakeKind
) -> None:
    ids = record(runtime)
    with runtime.database.transaction(write=False) as db:
        objects = dict(db.exec(select(FrameRow.session_id, FrameRow.object)).all())
    file = Path(runtime.blobs.url) / objects[ids[0]]
    aside = file.rename(file.with_name("aside"))
    file.mkdir()  # it cannot be read, while its store answers
    with pytest.raises(Killed), sealing(hooked(runtime, kind, kill, is_after=True), "killed") as sealer:
        sealer.seal_batch()
    file.rmdir()
    aside.rename(file)
    let_lease_run_out(runtime)
    seal_all(runtime)
    assert_sealed_exactly_once(runtime, ids)
    assert all(outbox_types(runtime, each).count("session.sealed") == 1 for each in ids)


@both_engines
def test_a_lane_goes_on_at_once_when_the_clock_is_set_back(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = record(runtime)
    now, now_ms, ahead = clock.now, clock.now_ms, timedelta(hours=3)

    def fail() -> None:
        raise Unavailable("The lake")

    with monkeypatch.context() as patch:
        patch.setattr(clock, "now", lambda: now() + ahead)
        patch.setattr(clock, "now_ms", lambda: now_ms() + ahead // timedelta(milliseconds=1))
        with open_sealer(hooked(runtime, "events", fail, is_after=False), "ahead") as sealer:
            assert sealer is not None
            with pytest.raises(Unavailable):
                sealer.seal_batch()
            assert sealer.seal_batch() is None
    seal_all(runtime)
    assert_sealed_exactly_once(runtime, ids)


@both_engines
def test_a_run_killed_at_any_statement_is_done_again(runtime: Runtime) -> None:
    ids: list[str] = []
    killed = 0
    for index in range(0, 200, STRIDE if runtime.database.is_sqlite else max(STRIDE, 9)):
        ids += record(runtime, 1)
        was_killed = seal_until_statement(runtime, index)
        let_lease_run_out(runtime)
        seal_all(runtime)
        if not was_killed:
            break
        killed += 1
    assert killed >= 4, "the statements of a run were not found"
    assert_sealed_exactly_once(runtime, ids)


def seal_until_statement(runtime: Runtime, index: int) -> bool:
    """Seal one batch and die before the statement of this number; whether there were so many."""
    seen = 0

    def count(*_: Any) -> None:
        nonlocal seen
        seen += 1
        if seen > index:
            raise Killed

    sealer = Sealer(runtime, owner="killed")
    assert sealer.take()
    sqlalchemy_event.listen(Engine, "before_cursor_execute", count)
    try:
        sealer.seal_batch()
    except Killed:
        return True
    finally:
        sqlalchemy_event.remove(Engine, "before_cursor_execute", count)
        abandon(sealer)
    return False


def test_a_store_that_is_away_leaves_the_batch_open(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = record(runtime)

    def fail() -> None:
        raise Unavailable("The lake")

    with sealing(hooked(runtime, "frames", fail, is_after=False), "first") as sealer:
        with pytest.raises(Unavailable):
            sealer.seal_batch()
        batch = sealer.seal_batch()
        assert batch is not None and batch.sessions == 2
    assert_sealed_exactly_once(runtime, ids)


@both_engines
@pytest.mark.parametrize("is_after", [False, True], ids=["before", "after"])
def test_a_run_that_was_overtaken_marks_nothing(runtime: Runtime, is_after: bool) -> None:
    ids = record(runtime)

    def overtake() -> None:
        let_lease_run_out(runtime)
        seal_all(runtime, owner="overtaker")

    slow = Sealer(hooked(runtime, "sessions", overtake, is_after=is_after), owner="slow")
    assert slow.take()
    with pytest.raises(LeaseLost):
        slow.seal_batch()
    assert slow.seal_batch() is None
    slow.release()
    assert_sealed_exactly_once(runtime, ids)


@pytest.mark.parametrize("kind", ["events", "sessions"])
def test_a_run_that_was_left_behind_writes_nothing(runtime: Runtime, kind: LakeKind) -> None:
    ids = record(runtime)

    def leave_behind() -> None:
        let_lease_run_out(runtime)
        seal_all(runtime, owner="overtaker")
        ids.extend(record(runtime, 1))
        seal_all(runtime, owner="overtaker")

    slow = Sealer(hooked(runtime, kind, leave_behind, is_after=False), owner="slow")
    assert slow.take()
    with pytest.raises(LeaseLost):
        slow.seal_batch()
    slow.release()
    assert_sealed_exactly_once(runtime, ids)


def test_a_batch_that_takes_longer_than_the_lease_keeps_it(runtime: Runtime) -> None:
    ids = record(runtime)
    taken: list[SealedBatch | None] = []
    brief = replace(runtime, settings=replace(runtime.settings, seal_lease_seconds=1.5))

    def linger() -> None:
        with sealing(brief, "impatient") as other:
            for _ in range(6):
                time.sleep(0.3)
                taken.append(other.seal_batch())

    with sealing(hooked(brief, "events", linger, is_after=False), "slow") as sealer:
        assert sealer.seal_batch() is not None
    assert taken == [None] * 6
    assert_sealed_exactly_once(runtime, ids)


def test_no_more_runs_seal_than_there_are_places(runtime: Runtime) -> None:
    with sealing(runtime, "first"), sealing(runtime, "second"):
        third = Sealer(runtime, owner="third")
        assert not third.take()
        third.release()
    with sealing(runtime, "third"):
        pass


@both_engines
def test_a_session_deleted_while_it_is_sealed_stays_gone(runtime: Runtime) -> None:
    ids = record(runtime)

    def hook() -> None:
        delete(runtime, ids[0])

    with sealing(hooked(runtime, "sessions", hook, is_after=True), "run") as sealer:
        assert sealer.seal_batch() is not None
    assert "session.sealed" not in outbox_types(runtime, ids[0])
    assert session_row(runtime, ids[0]).deleted_at is not None
    assert_sealed_exactly_once(runtime, ids[1:])
    assert paths_of(runtime) == {ids[1]: "abandoned"}


@both_engines
def test_a_tag_that_comes_while_a_session_is_sealed_reaches_the_graph(runtime: Runtime) -> None:
    (session_id,) = record(runtime, 1)

    def tag() -> None:
        with runtime.database.transaction(write=True) as db:
            add_tag(db, Tenant(WORKSPACE, "live"), session_id, TagCreate(name="success"))

    with sealing(hooked(runtime, "events", tag, is_after=True), "run") as sealer:
        assert sealer.seal_batch() is not None
    assert session_row(runtime, session_id).outcome == "success"
    assert paths_of(runtime) == {session_id: "success"}
    assert_sealed_exactly_once(runtime, [session_id])


def test_a_deleted_session_is_never_sealed(runtime: Runtime) -> None:
    ids = record(runtime)
    delete(runtime, ids[0])
    seal_all(runtime)
    assert session_row(runtime, ids[0]).status == "stopped"
    assert (
        runtime.lake.scan("sessions", Tenant(WORKSPACE, "live")).collect()["session_id"].to_list() == ids[1:]
    )


def paths_of(runtime: Runtime) -> dict[str, str]:
    """Return the outcome of each session in its graph."""
    with runtime.database.transaction(write=False) as db:
        current = select(SessionPathRow).where(col(SessionPathRow.removed_version).is_(None))
        return {row.session_id: row.outcome for row in db.exec(current)}
