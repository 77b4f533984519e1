"""Lanes that a run pauses between two portions of a batch, and resumes unless another run had them."""

import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event as sqlalchemy_event

from recorder import clock
from recorder.runtime import Runtime
from recorder.sealing import Sealer, open_sealer
from recorder.sealing.lane_scheduling import LaneScheduler, SealingTimes
from recorder.sealing.portions import PortionLimits
from tests.support.factories import picture
from tests.support.recorded_sessions import WORKSPACE, assert_sealed_exactly_once, open_desk, png_item
from tests.support.sealed_sessions import open_on_either_engine
from tests.support.sealing import seal_all

OTHER = "wsp_01k0000000000000000000000b"
SMALL = PortionLimits(events=3, digested_frames=2, frame_rows=3, events_at_once=2)


@pytest.fixture(params=["sqlite", "postgresql"])
def runtime(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Runtime]:
    """Yield a deployment of its own, on either engine."""
    yield from open_on_either_engine(request, tmp_path)


def record_large(runtime: Runtime) -> str:
    """Record a stopped session of several portions."""
    with open_desk(runtime) as desk:
        return desk.record(events=[{"t_ms": n, "type": "click"} for n in range(20)])


def prepare_and_pause(sealer: Sealer) -> None:
    """Let a run take the next lane, prepare a portion of its batch, and pause the batch."""
    work = sealer._scheduler.take_lane()
    assert work is not None
    preparation = sealer._resume_batch(work.batch) or sealer._open_preparation(work.batch)
    assert not preparation.advance()
    sealer._pause_batch(work, preparation)


def test_a_large_session_gives_its_lane_to_others_between_portions(runtime: Runtime) -> None:
    large = record_large(runtime)
    with open_desk(runtime, workspace_id=OTHER) as desk:
        quiet = desk.record()
    batches = seal_all(runtime, times=SealingTimes(lane_seconds=0), portion_limits=SMALL)
    assert [batch.tenant.workspace_id for batch in batches] == [OTHER, WORKSPACE]
    assert_sealed_exactly_once(runtime, [large, quiet])


def test_a_lane_is_given_to_others_while_its_pictures_are_digested(runtime: Runtime) -> None:
    with open_desk(runtime) as desk:
        pictured = desk.record(frames=[png_item(0, picture(size=(1_500, 1_500)))])
    with open_desk(runtime, workspace_id=OTHER) as desk:
        quiet = desk.record()
    sealed: list[str] = []
    with open_sealer(
        runtime, "run", times=SealingTimes(lane_seconds=0), portion_limits=PortionLimits(digest_wait_s=0)
    ) as sealer:
        assert sealer is not None
        # The first worker process takes longer to start than the other lane takes to be sealed.
        until = time.monotonic() + 60
        while len(sealed) < 2 and time.monotonic() < until:
            if (batch := sealer.seal_batch()) is not None:
                sealed.append(batch.tenant.workspace_id)
    assert sealed == [OTHER, WORKSPACE]
    assert_sealed_exactly_once(runtime, [pictured, quiet])


def test_another_run_goes_on_with_a_large_session_that_was_left(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = record_large(runtime)
    clock_ahead = timedelta(0)
    now = clock.now
    monkeypatch.setattr(clock, "now", lambda: now() + clock_ahead)
    with (
        open_sealer(runtime, "first", portion_limits=SMALL) as first,
        open_sealer(runtime, "second", portion_limits=SMALL) as second,
    ):
        assert first is not None and second is not None
        prepare_and_pause(first)
        assert second._scheduler.take_lane() is None  # reserved for the first run
        clock_ahead = SealingTimes().reserved_for
        assert second._scheduler.take_lane() is not None
        second._scheduler.pause()
        assert second.seal_batch() is not None
        assert first.seal_batch() is None
    assert_sealed_exactly_once(runtime, [large])


def test_a_run_leaves_alone_a_lane_that_another_run_paused_after_it(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = record_large(runtime)
    clock_ahead = timedelta(0)
    now = clock.now
    monkeypatch.setattr(clock, "now", lambda: now() + clock_ahead)

    with (
        open_sealer(runtime, "first", portion_limits=SMALL) as first,
        open_sealer(runtime, "second", portion_limits=SMALL) as second,
    ):
        assert first is not None and second is not None
        prepare_and_pause(first)
        clock_ahead = SealingTimes().reserved_for
        prepare_and_pause(second)
        # The first run still keeps its preparation, but the lane is reserved for the second one now.
        assert first.seal_batch() is None
        work = second._scheduler.take_lane()
        assert work is not None and second._resume_batch(work.batch) is not None
        second._scheduler.pause()
        assert second.seal_batch() is not None
    assert_sealed_exactly_once(runtime, [large])


def test_a_run_that_finds_a_lane_reserved_meanwhile_does_not_keep_the_other_from_resuming(
    runtime: Runtime,
) -> None:
    large = record_large(runtime)
    engine = runtime.database._engine
    with open_sealer(runtime, "first", portion_limits=SMALL) as first:
        assert first is not None
        second, listed = LaneScheduler(runtime, "second"), list[bool]()

        def take_meanwhile(_: Any) -> None:
            # Directly after the second run has listed the lanes with work.
            if not listed:
                listed.append(True)
                prepare_and_pause(first)

        sqlalchemy_event.listen(engine, "commit", take_meanwhile)
        assert second.take_lane() is None
        sqlalchemy_event.remove(engine, "commit", take_meanwhile)
        work = first._scheduler.take_lane()
        assert work is not None and first._resume_batch(work.batch) is not None
        first._scheduler.pause()
        assert first.seal_batch() is not None
    assert_sealed_exactly_once(runtime, [large])
