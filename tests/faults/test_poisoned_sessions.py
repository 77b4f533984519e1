"""Sessions whose content cannot be sealed, among many others, in running sealing processes. Contract §2.

`RECORDER_FAULT_SESSIONS` says how many sessions are recorded in 5 workspaces; every twentieth is poisoned.
`RECORDER_FAULT_AWAY_S` says for how long the store of frames is away.
"""

import io
import os
import random
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

import psutil
import pytest
import zstandard
from PIL import Image
from sqlmodel import select

from recorder.models.frame import FrameRow
from recorder.recording.session_stops import stop_session
from recorder.runtime import Runtime
from recorder.sealing.set_aside import list_sessions_set_aside
from recorder.tenant import Tenant
from tests.faults.results import add_result, skip_if_done
from tests.faults.sealing_runs import SealingRun, sealing_runs, wait_until_sealed
from tests.support.factories import picture
from tests.support.recorded_sessions import (
    assert_sealed_exactly_once,
    execute,
    open_desk,
    png_item,
    session_row,
)
from tests.support.sealed_sessions import make_runtime

SESSIONS = int(os.environ.get("RECORDER_FAULT_SESSIONS", "100"))  # noqa: TID251
AWAY_S = float(os.environ.get("RECORDER_FAULT_AWAY_S", "10"))  # noqa: TID251
SEED = int(os.environ.get("RECORDER_FAULT_SEED", "1"))  # noqa: TID251
WORKSPACES = [f"wsp_01k000000000000000000000{letter}0" for letter in "abcde"]
_PATIENCE_S = 300.0
#: Memory of a digest worker above which the test kills it, as a machine that runs out of memory would.
_WORKER_BYTES = 180_000_000
POISONS = {
    "content_unreadable": lambda runtime, session_id: damage_events(runtime, session_id),
    "content_missing": lambda runtime, session_id: remove_pictures(runtime, session_id),
    "over_budget": lambda runtime, session_id: bloat_snapshot(runtime, session_id),
    "worker_killed": lambda runtime, session_id: None,
}


def damage_events(runtime: Runtime, session_id: str) -> None:
    """Overwrite a stored event batch."""
    statement = "UPDATE event_batches SET payload = :junk WHERE session_id = :id"
    execute(runtime, statement, junk=b"\x28\xb5\x2f\xfdjunk", id=session_id)


def remove_pictures(runtime: Runtime, session_id: str) -> None:
    """Delete the objects that hold a session's frames."""
    with runtime.database.transaction(write=False) as db:
        keys = set(db.exec(select(FrameRow.object).where(FrameRow.session_id == session_id)))
    for key in keys:
        runtime.blobs.delete(key)


def bloat_snapshot(runtime: Runtime, session_id: str) -> None:
    """Put a snapshot in the place of a frame's that unpacks to far more than any upload may hold."""
    bomb = zstandard.ZstdCompressor().compress(b"[" * (64 * 1024 * 1024))
    with runtime.database.transaction(write=True) as db:
        (frame,) = db.exec(select(FrameRow).where(FrameRow.session_id == session_id))
        key = f"{frame.object}.bomb"
        runtime.blobs.put(key, bomb)
        frame.dom_object, frame.dom_offset, frame.dom_length = key, 0, len(bomb)
        db.add(frame)


@cache
def large_picture() -> bytes:
    """Return a picture that takes 190 MB to decode."""
    buffer = io.BytesIO()
    Image.new("RGBA", (7_000, 7_000), (10, 20, 30, 255)).save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()


@contextmanager
def large_workers_killed(runs: Sequence[SealingRun]) -> Iterator[None]:
    """Kill each digest worker that needs much memory."""
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(0.01):
            for run in runs:
                with suppress(psutil.Error):
                    for worker in psutil.Process(run.pid).children(recursive=True):
                        with suppress(psutil.Error):
                            if worker.memory_info().rss > _WORKER_BYTES:
                                worker.kill()

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@pytest.fixture
def runtime(database_url: str, tmp_path: Path) -> Iterator[Runtime]:
    """Yield a deployment on each engine."""
    opened = make_runtime(tmp_path, database_url=database_url)
    yield opened
    opened.close()


def set_aside_of(runtime: Runtime, session_ids: Sequence[str]) -> dict[str, str]:
    """Return the codes of those of these sessions that were set aside."""
    with runtime.database.transaction(write=False) as db:
        return {
            session.session_id: session.code
            for session in list_sessions_set_aside(db)
            if session.session_id in session_ids
        }


def test_exactly_the_poisoned_sessions_are_set_aside(runtime: Runtime, tmp_path: Path) -> None:
    name = f"poisoned sessions on {'SQLite' if runtime.database.is_sqlite else 'PostgreSQL'}"
    skip_if_done(name, SESSIONS // 20)
    rng = random.Random(SEED)
    poisons = list(POISONS)
    poisoned: dict[str, str] = {}
    healthy: list[str] = []
    lags: dict[str, float] = {}
    with (
        sealing_runs(runtime, tmp_path, 2) as runs,
        large_workers_killed(runs),
    ):
        for number in range(SESSIONS):
            workspace_id = rng.choice(WORKSPACES)
            code = poisons[number // 20 % len(poisons)] if number % 20 == 10 else None
            data = large_picture() if code == "worker_killed" else picture(rng.randrange(40))
            with open_desk(runtime, workspace_id=workspace_id) as desk:
                workflow = rng.choice(["checkout", "ship", "refund"])
                session_id = desk.record(workflow=workflow, frames=[png_item(1, data)], is_stopped=False)
            if code is None:
                healthy.append(session_id)
            else:
                poisoned[session_id] = code
                POISONS[code](runtime, session_id)
            with runtime.database.transaction(write=True) as db:
                stop_session(db, Tenant(workspace_id, "live"), session_id)
        late = wait_until_sealed(runtime, healthy)
        until = time.monotonic() + _PATIENCE_S
        while True:
            codes = set_aside_of(runtime, [*healthy, *poisoned])
            if len(codes) >= len(poisoned) or time.monotonic() > until:
                break
            time.sleep(0.2)
    for session_id in healthy:
        row = session_row(runtime, session_id)
        if row.sealed_at is not None and row.stopped_at is not None:
            lags[session_id] = (row.sealed_at - row.stopped_at).total_seconds()
    longest = max(lags.values(), default=0.0)
    print(f"{name}: {len(poisoned)} of {SESSIONS}; the others were sealed within {longest:.1f} s")
    add_result(name, len(poisoned), sessions=SESSIONS, longest_s=longest)
    assert late == []
    assert codes == poisoned, f"RECORDER_FAULT_SEED={SEED}"
    assert_sealed_exactly_once(runtime, healthy)


def test_a_store_that_is_away_sets_no_session_aside(runtime: Runtime, tmp_path: Path) -> None:
    name = (
        f"seconds without the store of frames on {'SQLite' if runtime.database.is_sqlite else 'PostgreSQL'}"
    )
    skip_if_done(name, int(AWAY_S))
    folder, away = Path(runtime.settings.blob_url), tmp_path / "away"
    with sealing_runs(runtime, tmp_path, 2), open_desk(runtime) as desk:
        ids = [desk.record(frames=[png_item(1, picture(n))]) for n in range(10)]
        assert wait_until_sealed(runtime, ids) == []
        more = [desk.record(frames=[png_item(1, picture(n))], is_stopped=False) for n in range(10)]
        folder.rename(away)
        for session_id in more:
            with runtime.database.transaction(write=True) as db:
                stop_session(db, Tenant(desk.caller.workspace_id, "live"), session_id)
        time.sleep(AWAY_S)
        assert set_aside_of(runtime, more) == {}
        remains = tmp_path / "remains"
        if folder.exists():  # a probe may have made the folder anew
            folder.rename(remains)
        away.rename(folder)
        assert wait_until_sealed(runtime, more) == []
    assert_sealed_exactly_once(runtime, [*ids, *more])
    assert set_aside_of(runtime, [*ids, *more]) == {}
    add_result(name, int(AWAY_S))
