"""Screens of DOM snapshots: none of what is damaged, an error of what is over its budget. Design §3."""

import itertools

import msgspec
import pytest
import zstandard

from recorder.memory.steps.screens import describe_screen
from recorder.sealing.digest_messages import DigestBudget
from recorder.sealing.frame_digests import SnapshotOverBudget, compute_snapshot_screen
from tests.support.fuzzed_snapshots import fuzzed_snapshots, make_page, pack_snapshot, snapshot_bomb

BUDGET = DigestBudget()


def test_a_snapshot_has_the_screen_of_its_dom() -> None:
    for seed in range(5):
        page = make_page(seed)
        expected = describe_screen(dom=page, url=None, title=None, cells=None)
        assert compute_snapshot_screen(pack_snapshot(page), BUDGET) == expected


def test_damaged_snapshots_count_as_none_and_none_raises() -> None:
    read = {True: 0, False: 0}
    for snapshot in itertools.islice(fuzzed_snapshots(seed=3), 400):
        read[compute_snapshot_screen(snapshot.packed, BUDGET) is not None] += 1
    assert min(read.values()) > 100


def test_a_bomb_is_over_the_budget_before_it_is_unpacked() -> None:
    bomb = snapshot_bomb(BUDGET.snapshot_bytes + 1)
    assert len(bomb) < 10_000
    with pytest.raises(SnapshotOverBudget):
        compute_snapshot_screen(bomb, BUDGET)
    assert compute_snapshot_screen(snapshot_bomb(BUDGET.snapshot_bytes), BUDGET) is None


def test_a_small_frame_that_declares_an_impossible_size_is_damaged() -> None:
    # Magic, a header with eight bytes of size, and nothing behind it.
    assert (
        compute_snapshot_screen(zstandard.FRAME_HEADER + b"\xe0" + (2**40).to_bytes(8, "little"), BUDGET)
        is None
    )


@pytest.mark.parametrize("limit", ["snapshot_packed_bytes", "snapshot_bytes", "snapshot_nodes"])
def test_each_limit_of_a_snapshot_is_a_budget(limit: str) -> None:
    # 5,001 arrays and 2 objects; the brackets in its texts are none.
    page = {"format": "nodes", "html": ["html", {}, *[["a", "[{"]] * 5_000]}
    packed = pack_snapshot(page)
    exact = {"snapshot_packed_bytes": len(packed), "snapshot_nodes": 5_003}
    exact["snapshot_bytes"] = zstandard.get_frame_parameters(packed).content_size
    within = msgspec.structs.replace(BUDGET, **{limit: exact[limit]})
    assert compute_snapshot_screen(packed, within) is not None
    with pytest.raises(SnapshotOverBudget):
        compute_snapshot_screen(packed, msgspec.structs.replace(BUDGET, **{limit: exact[limit] - 1}))
