"""Digests in worker processes: equal to those computed alone, whatever another session's frames hold."""

import itertools
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager
from pathlib import Path

import pytest

from recorder.memory.steps.screens import NO_SCREEN, Screen
from recorder.models.frame import FrameRow
from recorder.sealing.digest_pool import DigestBudget, DigestPool
from recorder.sealing.digest_submissions import DigestSubmissionCache
from recorder.sealing.failures import ContentError
from recorder.storage.blobs import Blobs
from tests.support.deployment_processes import ROOT
from tests.support.factories import picture
from tests.support.frame_contents import digest_alone, store_frames
from tests.support.fuzzed_pictures import png_with_late_profile, scan_bomb, storable_pictures
from tests.support.fuzzed_snapshots import fuzzed_snapshots, make_page, pack_snapshot, snapshot_bomb
from tests.support.waiting import wait_for

PATIENCE_S = 60.0
#: Digested in a minute if nothing stops it, and small as pixels go.
ENDLESS = scan_bomb(1_500, 20_000)
PATIENT = DigestBudget(picture_seconds=600)


@pytest.fixture
def blobs(tmp_path: Path) -> Blobs:
    """Return an empty blob store in a folder."""
    return Blobs(str(tmp_path / "blobs"))


@pytest.fixture
def pool(blobs: Blobs) -> Iterator[DigestPool]:
    """Return a pool of two processes."""
    with DigestPool(blobs.url, processes=2) as pool:
        yield pool


def pictures(count: int, *, first: int = 0) -> list[bytes]:
    """Return distinct pictures."""
    return [picture(number % 256, size=(40 + number // 256, 30)) for number in range(first, first + count)]


def is_computing(pool: DigestPool) -> bool:
    """Return whether a worker has fetched an item and computes it."""
    return any(worker.todo for worker in list(pool._scheduler.workers))


def is_running(pid: int) -> bool:
    """Return whether a process exists and has not ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in ("Z", "X")
    except FileNotFoundError:
        return False


def test_digests_are_those_computed_alone_in_their_order(blobs: Blobs, pool: DigestPool) -> None:
    snapshots = [pack_snapshot(make_page(seed % 7)) if seed % 3 else None for seed in range(50)]
    frames = store_frames(blobs, "ses_a", [*pictures(30), *pictures(20)], snapshots)
    frames += store_frames(blobs, "ses_a", pictures(40, first=20), upload="second")
    frames[3].url, frames[77].url = "https://a.example/x/7", "https://b.example/"
    frames.reverse()
    assert pool.digest("ses_a", frames) == digest_alone(blobs, frames)


def test_a_session_without_frames_starts_no_process(pool: DigestPool) -> None:
    assert pool.digest("ses_a", []) == []
    assert pool.worker_pids == [] and pool._thread is None


def test_a_worker_imports_neither_database_nor_lake_nor_orchestrator() -> None:
    program = "import sys, recorder.sealing.digest_worker; print(*sys.modules)"
    run = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, check=True, capture_output=True, text=True
    )
    heavy = {
        "dagster",
        "sqlalchemy",
        "sqlmodel",
        "polars",
        "pyarrow",
        "deltalake",
        "numpy",
        "pydantic",
        "fastapi",
    }
    assert heavy & set(run.stdout.split()) == set()


def test_pictures_that_do_not_decode_cost_their_digest(blobs: Blobs, pool: DigestPool) -> None:
    damaged = [storable_picture.data for storable_picture in itertools.islice(storable_pictures(seed=2), 150)]
    mixed = [data for pair in zip(damaged, pictures(150), strict=True) for data in pair]
    frames = store_frames(blobs, "ses_a", [png_with_late_profile(), *mixed])
    seen = pool.digest("ses_a", frames)
    assert seen == digest_alone(blobs, frames)
    assert seen[0].dhash is None and None not in [item.dhash for item in seen[2::2]]


def test_snapshots_that_do_not_read_count_as_none(blobs: Blobs, pool: DigestPool) -> None:
    damaged = [fuzzed_snapshot.packed for fuzzed_snapshot in itertools.islice(fuzzed_snapshots(seed=2), 60)]
    frames = store_frames(blobs, "ses_a", pictures(60), damaged)
    assert pool.digest("ses_a", frames) == digest_alone(blobs, frames)


def test_a_picture_over_its_time_costs_its_digest_and_no_other(blobs: Blobs) -> None:
    good = pictures(14)
    frames = store_frames(blobs, "ses_a", [*good[:7], ENDLESS, *good[7:]])
    with DigestPool(blobs.url, processes=1) as pool:
        seen = pool.digest("ses_a", frames)
        # Known by now: it is not decoded again.
        again = store_frames(blobs, "ses_b", [ENDLESS])
        assert pool.digest("ses_b", again)[0].dhash is None
    others = [frame for frame in frames if frame is not frames[7]]
    assert seen[7].dhash is None
    assert [*seen[:7], *seen[8:]] == digest_alone(blobs, others)


def test_a_picture_over_the_memory_costs_its_digest_and_no_other(blobs: Blobs) -> None:
    large = picture(9, size=(6_000, 6_000))
    frames = store_frames(blobs, "ses_a", [*pictures(5), large, *pictures(5, first=5)])
    with DigestPool(blobs.url, processes=1, budget=DigestBudget(memory_bytes=80_000_000)) as small:
        seen = small.digest("ses_a", frames)
    assert seen[5].dhash is None and [item.dhash for item in seen].count(None) == 1
    with DigestPool(blobs.url, processes=1) as pool:
        assert pool.digest("ses_a", frames)[5].dhash is not None


@pytest.mark.parametrize("limits", [{"picture_pixels": 39 * 30}, {"picture_bytes": 30}])
def test_a_picture_over_its_pixels_or_bytes_costs_its_digest(blobs: Blobs, limits: dict[str, int]) -> None:
    frames = store_frames(blobs, "ses_a", pictures(3))
    with DigestPool(blobs.url, processes=1, budget=DigestBudget(**limits)) as pool:
        assert [item.dhash for item in pool.digest("ses_a", frames)] == [None] * 3


@pytest.mark.parametrize("what", ["bomb", "nodes", "time"])
def test_a_snapshot_over_its_budget_fails_its_session_alone(blobs: Blobs, what: str) -> None:
    wide = pack_snapshot({"format": "nodes", "html": ["html", {}, *[["a", {"id": "x"}]] * 200_000]})
    budget = {
        "bomb": DigestBudget(),
        "nodes": DigestBudget(snapshot_nodes=200_000),
        "time": DigestBudget(snapshot_seconds=0.05),
    }[what]
    content = snapshot_bomb(budget.snapshot_bytes + 1) if what == "bomb" else wide
    bad = store_frames(blobs, "ses_a", pictures(2), [None, content])
    same = store_frames(blobs, "ses_b", pictures(2), [content, None])
    good = store_frames(blobs, "ses_c", pictures(3), [pack_snapshot(make_page(1))] * 3)
    with DigestPool(blobs.url, processes=2, budget=budget) as pool:
        futures = [pool.submit(frames[0].session_id, frames) for frames in (bad, same, good)]
        for session_id, future in zip(("ses_a", "ses_b"), futures, strict=False):
            with pytest.raises(ContentError) as raised:
                future.result(PATIENCE_S)
            assert (raised.value.session_id, raised.value.code) == (session_id, "over_budget")
        assert futures[2].result(PATIENCE_S) == digest_alone(blobs, good)


@pytest.mark.parametrize("what", ["missing", "short", "empty"])
def test_an_object_whose_pictures_are_all_known_is_checked_all_the_same(
    blobs: Blobs, pool: DigestPool, what: str
) -> None:
    known = store_frames(blobs, "ses_a", pictures(40))
    whole = blobs.get(known[0].object)
    digests = pool.digest("ses_a", known)
    frames = store_frames(blobs, "ses_b", pictures(40))
    assert pool.digest("ses_b", frames) == digests
    # Two uploads of one session with the same picture: each object is checked.
    twice = [*frames, *store_frames(blobs, "ses_b", pictures(1), upload="second")]
    for damaged in (frames[0].object, twice[-1].object):
        content = blobs.get(damaged)
        if what == "missing":
            blobs.delete(damaged)
        else:
            blobs.put(damaged, content[:-1] if what == "short" else b"")
        with pytest.raises(ContentError) as raised:
            pool.digest("ses_b", twice)
        assert (raised.value.session_id, raised.value.code) == ("ses_b", "content_missing")
        blobs.put(damaged, content)
    assert pool.digest("ses_b", twice)[:40] == digests and blobs.get(known[0].object) == whole


@pytest.mark.parametrize("what", ["missing", "short", "empty"])
def test_an_object_that_is_missing_or_short_fails_its_session_alone(blobs: Blobs, what: str) -> None:
    frames = store_frames(blobs, "ses_a", pictures(40))
    whole = blobs.get(frames[0].object)
    if what == "missing":
        blobs.delete(frames[0].object)
    else:
        blobs.put(frames[0].object, whole[:-1] if what == "short" else b"")
    good = store_frames(blobs, "ses_b", pictures(40))
    with DigestPool(blobs.url, processes=2) as pool:
        # Both have the same pictures: what one waits for from the other is computed from its own object.
        futures = [pool.submit(frames[0].session_id, frames) for frames in (frames, good)]
        with pytest.raises(ContentError) as raised:
            futures[0].result(PATIENCE_S)
        assert (raised.value.session_id, raised.value.code) == ("ses_a", "content_missing")
        assert futures[1].result(PATIENCE_S) == digest_alone(blobs, good)


def test_an_object_that_cannot_be_read_fails_its_session_alone(blobs: Blobs, pool: DigestPool) -> None:
    frames = store_frames(blobs, "ses_a", pictures(3))
    path = Path(blobs.url, frames[0].object)
    path.unlink()
    path.mkdir()  # reading it raises IsADirectoryError
    with pytest.raises(ContentError) as raised:
        pool.digest("ses_a", frames)
    assert (raised.value.session_id, raised.value.code) == ("ses_a", "content_unreadable")
    path.rmdir()
    assert pool.digest("ses_a", store_frames(blobs, "ses_a", pictures(3)))[0].dhash is not None


def test_a_snapshot_that_crashes_its_worker_fails_its_session_alone(blobs: Blobs) -> None:
    wide = pack_snapshot({"format": "nodes", "html": ["html", {}, *[["a", {"id": "x"}]] * 200_000]})
    bad = store_frames(blobs, "ses_a", pictures(2), [None, wide])
    good = store_frames(blobs, "ses_b", pictures(30), [pack_snapshot(make_page(1))] * 30)
    # The parser of this release crashes where the memory for its values runs out.
    with DigestPool(blobs.url, processes=1, budget=DigestBudget(memory_bytes=6_000_000)) as pool:
        futures = [pool.submit(frames[0].session_id, frames) for frames in (bad, good)]
        with pytest.raises(ContentError) as raised:
            futures[0].result(PATIENCE_S)
        assert raised.value.session_id == "ses_a"
        assert raised.value.code in ("worker_killed", "over_budget")
        assert futures[1].result(PATIENCE_S) == digest_alone(blobs, good)


@contextmanager
def killing(pool: DigestPool, frame: FrameRow, times: int) -> Iterator[None]:
    """Kill the worker that computes a frame's picture, and the one after it, so many times."""

    def find() -> list[int]:
        workers = [(worker.pid, list(worker.todo or ())) for worker in list(pool._scheduler.workers)]
        return [pid for pid, todo in workers if todo and todo[0].key == f"picture {frame.sha256}"]

    def kill() -> None:
        for _ in range(times):
            wait_for(find)
            (pid,) = find()
            os.kill(pid, signal.SIGKILL)
            wait_for(lambda gone=pid: gone not in pool.worker_pids)

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        yield
    finally:
        thread.join()


def test_a_content_that_ends_three_workers_fails_its_session_alone(blobs: Blobs) -> None:
    bad = store_frames(blobs, "ses_a", [ENDLESS, *pictures(15)])
    good = store_frames(blobs, "ses_b", pictures(30, first=9))
    with DigestPool(blobs.url, processes=1, budget=PATIENT) as pool:
        futures = [pool.submit(frames[0].session_id, frames) for frames in (bad, good)]
        with killing(pool, bad[0], 3), pytest.raises(ContentError) as raised:
            futures[0].result(PATIENCE_S)
        assert (raised.value.session_id, raised.value.code) == ("ses_a", "worker_killed")
        assert "frm_first0" in raised.value.message
        assert futures[1].result(PATIENCE_S) == digest_alone(blobs, good)


def test_a_worker_that_dies_once_costs_nothing(blobs: Blobs) -> None:
    slow = scan_bomb(1_500, 40)
    frames = store_frames(blobs, "ses_a", [slow, *pictures(40)])
    with DigestPool(blobs.url, processes=1, budget=PATIENT) as pool:
        future = pool.submit("ses_a", frames)
        with killing(pool, frames[0], 2):
            pass
        assert future.result(PATIENCE_S) == digest_alone(blobs, frames)


def test_a_worker_that_stands_still_is_replaced(blobs: Blobs) -> None:
    frames = store_frames(blobs, "ses_a", [scan_bomb(1_500, 40), *pictures(40)])
    with DigestPool(blobs.url, processes=1, budget=DigestBudget(stall_seconds=5)) as pool:
        future = pool.submit("ses_a", frames)
        wait_for(lambda: is_computing(pool))
        (stopped,) = pool.worker_pids
        os.kill(stopped, signal.SIGSTOP)
        assert future.result(PATIENCE_S) == digest_alone(blobs, frames)
        assert pool.worker_pids != [stopped] and not is_running(stopped)


def test_idle_workers_that_die_are_replaced(blobs: Blobs, pool: DigestPool) -> None:
    pool.digest("ses_a", store_frames(blobs, "ses_a", pictures(3)))
    for pid in pool.worker_pids:
        os.kill(pid, signal.SIGKILL)
    frames = store_frames(blobs, "ses_b", pictures(3, first=50))
    assert pool.digest("ses_b", frames) == digest_alone(blobs, frames)


def test_small_submissions_do_not_wait_for_large_ones(blobs: Blobs) -> None:
    frames = store_frames(blobs, "ses_a", pictures(1_600))
    small = store_frames(blobs, "ses_b", pictures(4, first=2_000))
    with DigestPool(blobs.url, processes=1) as pool:
        large = pool.submit("ses_a", frames)
        wait_for(lambda: is_computing(pool))
        assert len(pool.submit("ses_b", small).result(PATIENCE_S)) == 4
        assert not large.done()
        assert len(large.result(PATIENCE_S)) == 1_600


def test_many_sessions_of_one_workspace_take_turns_with_another_workspace(blobs: Blobs) -> None:
    # Each takes a moment, and so few pixels that none counts as large.
    slow = [store_frames(blobs, f"ses_{n}", [scan_bomb(1_000 + n, 60)]) for n in range(12)]
    quiet = store_frames(blobs, "ses_quiet", pictures(4))
    with DigestPool(blobs.url, processes=1, budget=PATIENT) as pool:
        flood = [pool.submit(frames[0].session_id, frames, workspace_id="wsp_a") for frames in slow]
        wait_for(lambda: is_computing(pool))
        other = pool.submit("ses_quiet", quiet, workspace_id="wsp_b")
        # Asked by the pool's own thread, since this one may wake up late.
        sealed_before: list[int] = []
        other.add_done_callback(lambda _: sealed_before.append(sum(digests.done() for digests in flood)))
        other.result(PATIENCE_S)
        wait_for(lambda: bool(sealed_before))
    assert sealed_before[0] <= 4


def test_an_item_that_takes_long_is_interrupted_between_its_pictures(blobs: Blobs) -> None:
    snapshots = [pack_snapshot(make_page(seed)) for seed in range(12)]
    frames = store_frames(blobs, "ses_a", pictures(12), snapshots)
    other = store_frames(blobs, "ses_b", pictures(1, first=50))
    with DigestPool(blobs.url, processes=1, budget=DigestBudget(item_seconds=0)) as pool:
        long = pool.submit("ses_a", frames, workspace_id="wsp_a")
        was_long_done: list[bool] = []
        short = pool.submit("ses_b", other, workspace_id="wsp_b")
        short.add_done_callback(lambda _: was_long_done.append(long.done()))
        assert long.result(PATIENCE_S) == digest_alone(blobs, frames)
        assert short.result(PATIENCE_S) == digest_alone(blobs, other)
        wait_for(lambda: bool(was_long_done))
    assert was_long_done == [False]


def test_large_pictures_leave_a_worker_to_others(blobs: Blobs) -> None:
    # Each takes some seconds; their pixels make them large ones.
    slow = [scan_bomb(2_100 + number, 60) for number in range(4)]
    large = store_frames(blobs, "ses_a", slow)
    small = store_frames(blobs, "ses_b", pictures(40))
    with DigestPool(blobs.url, processes=2, budget=PATIENT) as pool:
        first = pool.submit("ses_a", large)
        wait_for(lambda: is_computing(pool))
        assert len(pool.worker_pids) == 1
        second = pool.submit("ses_b", small)
        # Asked by the pool's own thread, since this one may wake up late.
        were_large_done: list[bool] = []
        second.add_done_callback(lambda _: were_large_done.append(first.done()))
        assert len(second.result(PATIENCE_S)) == 40
        wait_for(lambda: bool(were_large_done))
        assert were_large_done == [False]


def test_equal_contents_are_computed_once(blobs: Blobs, pool: DigestPool) -> None:
    page = pack_snapshot(make_page(1))
    frames = store_frames(blobs, "ses_a", pictures(3), [page, page, None])
    same = store_frames(blobs, "ses_b", pictures(3))
    blobs.put(same[0].object, bytes(len(blobs.get(same[0].object))))
    futures = [pool.submit(frames[0].session_id, frames) for frames in (frames, same)]
    # The second is never decoded: its pictures are under way, or known.
    assert [item.dhash for item in futures[1].result(PATIENCE_S)] == [
        item.dhash for item in futures[0].result(PATIENCE_S)
    ]
    screens = {id(item.screen) for item in futures[0].result()[:2]}
    again = store_frames(blobs, "ses_c", pictures(1), [page])
    assert screens == {id(pool.digest("ses_c", again)[0].screen)}


def test_the_cache_is_bounded_in_entries_and_bytes() -> None:
    cache = DigestSubmissionCache(max_entries=3, max_bytes=50_000)
    for key in ("a", "b", "c"):
        cache.put(key, 1)
    assert cache.get("a") == 1
    cache.put("d", None)
    assert ["b" in cache, "a" in cache, len(cache)] == [False, True, 3]
    cache.put("wide", Screen("s", tuple(range(1_024)), ()))
    assert "wide" in cache and cache.bytes <= 50_000
    cache.put("named", Screen("s", (), ("x" * 900,) * 10))
    assert "wide" not in cache and cache.bytes <= 50_000
    cache.put("huge", Screen("s", (), ("x" * 900,) * 1_000))
    assert "huge" not in cache and "named" in cache and cache.bytes <= 50_000
    cache.put("a", 1)
    cache.put("a", 2)
    assert (cache.get("a"), len(cache)) == (2, 2)


def test_a_cancelled_submission_leaves_others_what_they_wait_for(blobs: Blobs) -> None:
    frames = store_frames(blobs, "ses_a", pictures(640))
    same = store_frames(blobs, "ses_b", pictures(640))
    with DigestPool(blobs.url, processes=1) as pool:
        first = pool.submit("ses_a", frames)
        wait_for(lambda: is_computing(pool))
        second = pool.submit("ses_b", same)
        assert first.cancel()
        assert second.result(PATIENCE_S) == digest_alone(blobs, same)


def test_a_pool_that_is_closed_ends_its_workers_and_what_waits(blobs: Blobs) -> None:
    pool = DigestPool(blobs.url, processes=1, budget=PATIENT)
    future = pool.submit("ses_a", store_frames(blobs, "ses_a", [ENDLESS]))
    waiting = pool.submit("ses_b", store_frames(blobs, "ses_b", pictures(3)))
    wait_for(lambda: is_computing(pool))
    pids = pool.worker_pids
    pool.close()
    for item in (future, waiting):
        with pytest.raises(CancelledError):
            item.result(PATIENCE_S)
    assert not any(is_running(pid) for pid in pids)
    with pytest.raises(RuntimeError):
        pool.submit("ses_a", [])


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_workers_end_with_the_process_that_started_them(blobs: Blobs, how: signal.Signals) -> None:
    program = (
        "import sys, time; from recorder.sealing.digest_pool import DigestBudget, DigestPool\n"
        "from recorder.storage.blobs import Blobs; from tests.support.frame_contents import store_frames\n"
        "from tests.support.factories import picture; from tests.support.fuzzed_pictures import scan_bomb\n"
        "url = sys.argv[1]; pool = DigestPool(url, processes=2, budget=DigestBudget(picture_seconds=600))\n"
        "slow = store_frames(Blobs(url), 'ses_a', [scan_bomb(1_500, 20_000)])\n"
        "pool.submit('ses_a', slow); pool.digest('ses_b', store_frames(Blobs(url), 'ses_b', [picture(1)]))\n"
        "print(*pool.worker_pids, flush=True); time.sleep(600)\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", program, blobs.url], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    with parent, parent.stdout:
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        # One computes, one waits for work.
        assert len(pids) == 2 and all(map(is_running, pids))
        parent.send_signal(how)
        parent.wait()
        wait_for(lambda: not any(map(is_running, pids)))


def test_a_frame_with_nothing_to_read_has_no_screen(blobs: Blobs, pool: DigestPool) -> None:
    (seen,) = pool.digest("ses_a", store_frames(blobs, "ses_a", [b"no picture"], [b"no snapshot"]))
    assert seen == (NO_SCREEN, None)
