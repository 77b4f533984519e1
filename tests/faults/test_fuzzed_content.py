"""Damaged pictures and DOM snapshots: none raises, changes another's digest, or keeps a session unsealed.

`make faults` takes 10,000 of each; `make test-faults` some hundred. The seed is printed.
`RECORDER_FAULT_LAG_S` says within how many seconds of their stop other sessions must be sealed: 5, more on a
loaded machine.
"""

import itertools
import os
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import pytest
from sqlmodel import col, select

from recorder import clock
from recorder.models.frame import FrameRow
from recorder.recording.session_stops import stop_session
from recorder.runtime import Runtime
from recorder.sealing import frame_digests
from recorder.sealing.digest_pool import DigestPool
from recorder.sealing.failures import ContentError
from recorder.storage.blobs import Blobs
from recorder.tenant import Tenant
from tests.faults.results import add_result, skip_if_done
from tests.faults.sealing_runs import sealing_runs, wait_until_sealed
from tests.support.factories import picture
from tests.support.frame_contents import digest_alone, store_frames
from tests.support.fuzzed_pictures import FuzzedPicture, storable_pictures
from tests.support.fuzzed_snapshots import fuzzed_snapshots, make_page, pack_snapshot, snapshot_bomb
from tests.support.recorded_sessions import assert_sealed_exactly_once, open_desk, png_item, session_row
from tests.support.sealed_sessions import make_runtime

CONTENTS = int(os.environ.get("RECORDER_FAULT_CONTENTS", "120"))  # noqa: TID251
SEED = int(os.environ.get("RECORDER_FAULT_SEED", "1"))  # noqa: TID251
_LOAD = max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
LONGEST_LAG_S = float(os.environ.get("RECORDER_FAULT_LAG_S", str(5 * _LOAD)))  # noqa: TID251
_IN_SESSION = 40
#: The errors that were caught by name once.
_NAMED = (OSError, SyntaxError, ValueError)
_PATIENCE_S = 600.0
_QUIET = "wsp_01k0000000000000000000000b"

_Item = TypeVar("_Item")


@pytest.fixture
def blobs(tmp_path: Path) -> Blobs:
    """Return an empty blob store in a folder."""
    return Blobs(str(tmp_path / "blobs"))


@pytest.fixture
def runtime(database_url: str, tmp_path: Path) -> Iterator[Runtime]:
    """Yield a deployment on each engine."""
    opened = make_runtime(tmp_path, database_url=database_url)
    yield opened
    opened.close()


def test_fuzzed_pictures_cost_their_digest_alone(blobs: Blobs) -> None:
    fuzzed = list(itertools.islice(storable_pictures(SEED), CONTENTS))
    sessions = []
    for number, portion in enumerate(in_portions(fuzzed)):
        good = [picture(number % 256, size=(20 + n, 20 + number // 256)) for n in range(len(portion))]
        mixed = [data for content, other in zip(portion, good, strict=True) for data in (content.data, other)]
        sessions.append(store_frames(blobs, f"ses_{number}", mixed))
    seconds = digest_all(blobs, sessions, without_digest=range(0, 2 * _IN_SESSION, 2))
    variants = [
        (content.recipe, failure) for content in fuzzed if (failure := find_failure(content)) is not None
    ]
    failures = [failure for _, failure in variants]
    variant_count, locations = len(set(variants)), Counter(failures)
    unnamed = sum(count for (_, _, is_named), count in locations.items() if not is_named)
    print(
        f"seed {SEED}: {len(fuzzed)} pictures that pass the checks at upload, {len(failures)} fail to decode "
        f"in {variant_count} variants at {len(locations)} code locations, "
        f"{unnamed} with errors beyond the named ones; "
        f"{seconds:.0f} s"
    )
    assert variant_count >= min(200, CONTENTS // 10)
    assert unnamed >= (200 if CONTENTS >= 10_000 else 1)


def test_fuzzed_snapshots_cost_their_screen_alone(blobs: Blobs) -> None:
    fuzzed = list(itertools.islice(fuzzed_snapshots(SEED), CONTENTS))
    sessions = []
    for number, portion in enumerate(in_portions(fuzzed)):
        good = [pack_snapshot(make_page(number * _IN_SESSION + n)) for n in range(len(portion))]
        mixed = [
            packed for content, other in zip(portion, good, strict=True) for packed in (content.packed, other)
        ]
        sessions.append(store_frames(blobs, f"ses_{number}", [picture(1)] * len(mixed), mixed))
    bombs = [
        store_frames(blobs, f"ses_bomb{number}", [picture(1)], [snapshot_bomb(30_000_000 + number)])
        for number in range(max(1, CONTENTS // 100))
    ]
    seconds = digest_all(blobs, sessions, without_digest=(), over_budget=bombs)
    kinds = Counter(snapshot.kind for snapshot in fuzzed)
    print(
        f"seed {SEED}: {len(fuzzed)} snapshots of {len(kinds)} kinds, and {len(bombs)} bombs that fail their "
        f"sessions; {seconds:.0f} s"
    )
    assert len(kinds) >= 13


# Readers warn of damaged pictures, and warnings are errors in tests.
@pytest.mark.filterwarnings("ignore::UserWarning:PIL")
def test_sessions_with_fuzzed_content_are_sealed_and_keep_no_other_waiting(
    runtime: Runtime, tmp_path: Path
) -> None:
    name = f"fuzzed contents sealed on {'SQLite' if runtime.database.is_sqlite else 'PostgreSQL'}"
    skip_if_done(name, CONTENTS)
    images = list(itertools.islice(storable_pictures(SEED), CONTENTS))
    snapshots = fuzzed_snapshots(SEED)
    fuzzed: list[str] = []
    quiet: list[str] = []
    with sealing_runs(runtime, tmp_path, 2):
        for portion in in_portions(images):
            with open_desk(runtime) as desk:
                frames = [
                    png_item(n, image.data, content_type=image.content_type)
                    for n, image in enumerate(portion)
                ]
                fuzzed.append(desk.record(frames=frames, is_stopped=False))
                put_snapshots(runtime, fuzzed[-1], [next(snapshots).packed for _ in portion])
                with runtime.database.transaction(write=True) as db:
                    stop_session(db, Tenant(desk.caller.workspace_id, "live"), fuzzed[-1])
            with open_desk(runtime, workspace_id=_QUIET) as desk:
                quiet.append(desk.record())
        late = wait_until_sealed(runtime, [*fuzzed, *quiet])
    lags = []
    for session_id in quiet:
        row = session_row(runtime, session_id)
        assert row.stopped_at is not None
        lags.append(((row.sealed_at or clock.now()) - row.stopped_at).total_seconds())
    print(
        f"seed {SEED}: {CONTENTS} pictures and as many snapshots in {len(fuzzed)} sessions, all sealed; "
        f"others within {max(lags):.1f} s of their stop"
    )
    add_result(name, CONTENTS, longest_s=max(lags))
    assert late == [], f"seed {SEED}"
    assert max(lags) <= LONGEST_LAG_S, f"seed {SEED}"
    assert_sealed_exactly_once(runtime, [*fuzzed, *quiet])


def put_snapshots(runtime: Runtime, session_id: str, packed: Sequence[bytes]) -> None:
    """Put a snapshot to each frame of a session, as an upload that was damaged on disk would have it."""
    key = f"damaged/{session_id}"
    runtime.blobs.put(key, b"".join(packed))
    with runtime.database.transaction(write=True) as db:
        rows = db.exec(select(FrameRow).where(FrameRow.session_id == session_id).order_by(col(FrameRow.t_ms)))
        offset = 0
        for frame, snapshot in zip(rows.all(), packed, strict=True):
            frame.dom_object, frame.dom_offset, frame.dom_length = key, offset, len(snapshot)
            offset += len(snapshot)
            db.add(frame)


def digest_all(
    blobs: Blobs,
    sessions: Sequence[list[FrameRow]],
    *,
    without_digest: Collection[int],
    over_budget: Sequence[list[FrameRow]] = (),
) -> float:
    """Check the digests of sessions against those of each frame alone; return the pool's seconds.

    Args:
        without_digest: places in each session whose pictures may have no digest.
        over_budget: sessions among them that have to fail.
    """
    began = time.monotonic()
    with DigestPool(blobs.url, processes=2) as pool:
        poisoned = [pool.submit(frames[0].session_id, frames) for frames in over_budget]
        futures = [pool.submit(frames[0].session_id, frames) for frames in sessions]
        results = [future.result(_PATIENCE_S) for future in futures]
        for future, frames in zip(poisoned, over_budget, strict=True):
            with pytest.raises(ContentError) as raised:
                future.result(_PATIENCE_S)
            assert (raised.value.session_id, raised.value.code) == (frames[0].session_id, "over_budget")
    seconds = time.monotonic() - began
    for frames, seen in zip(sessions, results, strict=True):
        assert seen == digest_alone(blobs, frames), f"seed {SEED}: {frames[0].session_id}"
        missing = {index for index, digest in enumerate(seen) if digest.dhash is None}
        assert missing <= set(without_digest), f"seed {SEED}: {frames[0].session_id}"
    return seconds


def in_portions(items: Sequence[_Item]) -> Iterator[Sequence[_Item]]:
    """Give the items of one session after the other."""
    for start in range(0, len(items), _IN_SESSION):
        yield items[start : start + _IN_SESSION]


def find_failure(fuzzed: FuzzedPicture) -> tuple[str, str, bool] | None:
    """Return the kind of error that a picture raises, its place, and whether it was once caught by name."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            frame_digests.decode_cells(fuzzed.data, 50_000_000)
    except Exception as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        return type(error).__name__, f"{Path(frame.filename).name}:{frame.lineno}", isinstance(error, _NAMED)
    return None
