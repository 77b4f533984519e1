"""Sorted runs of events: their merge is the sorted whole, from any place on. Design §3."""

import random
from itertools import pairwise

import pytest

from recorder.runtime import Runtime
from recorder.sealing.event_runs import (
    merge_event_runs,
    require_event_runs,
    take_events_of_runs,
    write_event_run,
)


@pytest.mark.parametrize("is_overlapping", [True, False])
def test_merged_runs_are_the_sorted_whole_from_any_place(runtime: Runtime, *, is_overlapping: bool) -> None:
    draws = random.Random(5)
    groups = [
        [
            (
                draws.randrange(9) + (0 if is_overlapping else 10 * n),
                draws.choice("abc"),
                20 * n + m,
                b"x" * m,
            )
            for m in range(20)
        ]
        for n in range(6)
    ]
    # A chunk holds three events, or fewer large ones.
    runs = [
        write_event_run(runtime.blobs, f"sealing/runs/{n}", items, chunk_events=3, chunk_bytes=40)
        for n, items in enumerate(groups)
    ]
    whole = sorted(item for items in groups for item in items)
    assert list(merge_event_runs(runtime.blobs, runs, None)) == whole
    for n in range(0, len(whole), 7):
        assert list(merge_event_runs(runtime.blobs, runs, whole[n][:3])) == whole[n + 1 :]
    assert all(
        before.offset + before.length == chunk.offset
        for run in runs
        for before, chunk in pairwise(run.chunks)
    )
    require_event_runs(runtime.blobs, runs)
    runtime.blobs.delete("sealing/runs/3")
    with pytest.raises(KeyError):
        require_event_runs(runtime.blobs, runs)


def test_items_are_taken_up_to_a_number_and_a_size() -> None:
    items = [(n, "a", n, b"12345") for n in range(5)]
    merged = iter(items)
    assert take_events_of_runs(merged, max_events=2, max_bytes=100) == (items[:2], True)
    assert take_events_of_runs(merged, max_events=9, max_bytes=1) == (items[2:3], True)
    assert take_events_of_runs(merged, max_events=9, max_bytes=100) == (items[3:], False)
