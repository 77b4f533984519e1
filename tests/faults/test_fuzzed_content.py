"""Damaged pictures and DOM snapshots in the digest pool: none raises, and none changes another's digest.

`make faults` takes 10,000 of each; `make system` some hundred. The seed is printed.
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

from recorder.models.frame import FrameRow
from recorder.sealing import pictures
from recorder.sealing.digest_pool import DigestPool
from recorder.sealing.failures import ContentError
from recorder.storage.blobs import Blobs
from tests.digesting import digest_alone, store_frames
from tests.factories import picture
from tests.fuzzed_pictures import FuzzedPicture, storable_pictures
from tests.fuzzed_snapshots import fuzzed_snapshots, make_page, pack_snapshot, snapshot_bomb

CONTENTS = int(os.environ.get("RECORDER_FAULT_CONTENTS", "300"))  # noqa: TID251
SEED = int(os.environ.get("RECORDER_FAULT_SEED", "1"))  # noqa: TID251
_IN_SESSION = 40
#: The errors that were caught by name once.
_NAMED = (OSError, SyntaxError, ValueError)
_PATIENCE_S = 600.0

_Item = TypeVar("_Item")


@pytest.fixture
def blobs(tmp_path: Path) -> Blobs:
    """Return an empty blob store in a folder."""
    return Blobs(str(tmp_path / "blobs"))


def test_fuzzed_pictures_cost_their_digest_alone(blobs: Blobs) -> None:
    fuzzed = list(itertools.islice(storable_pictures(SEED), CONTENTS))
    sessions = []
    for number, portion in enumerate(in_portions(fuzzed)):
        good = [picture(number % 256, size=(20 + n, 20 + number // 256)) for n in range(len(portion))]
        mixed = [data for one, other in zip(portion, good, strict=True) for data in (one.data, other)]
        sessions.append(store_frames(blobs, f"ses_{number}", mixed))
    seconds = digest_all(blobs, sessions, without_digest=range(0, 2 * _IN_SESSION, 2))
    found = [(one.recipe, failure) for one in fuzzed if (failure := find_failure(one)) is not None]
    failures = [failure for _, failure in found]
    variants, places = set(found), Counter(failures)
    unnamed = sum(count for (_, _, is_named), count in places.items() if not is_named)
    print(
        f"seed {SEED}: {len(fuzzed)} pictures that pass the checks at upload, {len(failures)} fail to decode "
        f"in {len(variants)} variants at {len(places)} places, {unnamed} with errors beyond the named ones; "
        f"{seconds:.0f} s"
    )
    assert len(variants) >= min(200, CONTENTS // 10)
    assert unnamed >= (200 if CONTENTS >= 10_000 else 1)


def test_fuzzed_snapshots_cost_their_screen_alone(blobs: Blobs) -> None:
    fuzzed = list(itertools.islice(fuzzed_snapshots(SEED), CONTENTS))
    sessions = []
    for number, portion in enumerate(in_portions(fuzzed)):
        good = [pack_snapshot(make_page(number * _IN_SESSION + n)) for n in range(len(portion))]
        mixed = [packed for one, other in zip(portion, good, strict=True) for packed in (one.packed, other)]
        sessions.append(store_frames(blobs, f"ses_{number}", [picture(1)] * len(mixed), mixed))
    bombs = [
        store_frames(blobs, f"ses_bomb{number}", [picture(1)], [snapshot_bomb(30_000_000 + number)])
        for number in range(max(1, CONTENTS // 100))
    ]
    seconds = digest_all(blobs, sessions, without_digest=(), over_budget=bombs)
    kinds = Counter(one.kind for one in fuzzed)
    print(
        f"seed {SEED}: {len(fuzzed)} snapshots of {len(kinds)} kinds, and {len(bombs)} bombs that fail their "
        f"sessions; {seconds:.0f} s"
    )
    assert len(kinds) >= 13


def digest_all(
    blobs: Blobs,
    sessions: Sequence[list[FrameRow]],
    *,
    without_digest: Collection[int],
    over_budget: Sequence[list[FrameRow]] = (),
) -> float:
    """Digest sessions and compare them with what each frame has alone; returns the seconds of the pool.

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
        missing = {place for place, one in enumerate(seen) if one.dhash is None}
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
            pictures._read_cells(fuzzed.data, 50_000_000)
    except Exception as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        return type(error).__name__, f"{Path(frame.filename).name}:{frame.lineno}", isinstance(error, _NAMED)
    return None
