"""Rows for training: every row once, the same order again, and resumed to the row. docs/loading.md."""

import io
import itertools
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import recorder
from recorder.datasets.errors import NotInDataset, StateRefused
from recorder.loading.training_state import LoadedPosition, TrainingState, advance_training_state
from tests.support.databases import part_is_missing

FORMATS = ["parquet", "jsonl", "arrow", "webdataset"]
FINEST = {"parquet": "frames", "jsonl": "events", "arrow": "events", "webdataset": "samples"}


def key(row: Any) -> str:
    """Return the id of a row and the colour of its picture, if it has one: the transform of these tests."""
    name = row.get("event_id") or row["frame_id"]
    picture = row.get("image")
    return name if picture is None else f"{name} {Image.open(io.BytesIO(picture['bytes'])).getpixel((0, 0))}"


def test_every_row_comes_once_whatever_the_ranks_and_workers(exports: dict[str, Path]) -> None:
    dataset = recorder.open_export(exports["parquet"])
    expected = sorted(key(row) for row in dataset.torch("events"))
    assert len(set(expected)) == dataset.rows
    for world_size, shuffle in itertools.product((1, 3, 7), (False, True)):
        ranks = [
            dataset.torch("events", shuffle=shuffle, seed=3, rank=rank, world_size=world_size)
            for rank in range(world_size)
        ]
        assert sorted(key(row) for stream in ranks for row in stream) == expected
        assert sum(len(stream) for stream in ranks) == dataset.rows


def test_more_readers_than_rows_leave_some_with_nothing(exports: dict[str, Path]) -> None:
    dataset = recorder.open_export(exports["parquet"])
    readers = [dataset.torch(rank=rank, world_size=dataset.rows + 5) for rank in range(dataset.rows + 5)]
    assert sorted(len(stream) for stream in readers)[:6] == [0, 0, 0, 0, 0, 1]
    assert [len(list(stream)) for stream in readers[:3]] == [len(stream) for stream in readers[:3]]


def test_uneven_rows_can_be_left_out_so_that_ranks_keep_step(exports: dict[str, Path]) -> None:
    dataset = recorder.open_export(exports["parquet"])
    ranks = [dataset.torch(rank=rank, world_size=7, drop_uneven=True) for rank in range(7)]
    assert {len(list(stream)) for stream in ranks} == {dataset.rows // 7}


@pytest.mark.parametrize("format", FORMATS)
def test_a_part_is_the_rows_of_its_sessions(exports: dict[str, Path], format: str) -> None:
    dataset = recorder.open_export(exports[format])
    everything = list(dataset.torch())
    for part in ("train", "validation", "test"):
        stream = dataset.torch(split=part)
        expected = [row for row in everything if row["split"] == part]
        assert 0 < len(stream) == len(expected) < len(everything)
        assert list(stream) == expected
        ranks = [dataset.torch(split=part, rank=rank, world_size=5) for rank in range(5)]
        assert [row for stream in ranks for row in stream] == expected


def test_formats_give_the_same_rows(exports: dict[str, Path]) -> None:
    opened = {format: recorder.open_export(exports[format]) for format in FORMATS}
    events = [list(opened[format].torch("events")) for format in ("parquet", "jsonl", "arrow")]
    assert events[0] == events[1] == events[2]
    frames = list(opened["parquet"].torch("frames"))
    samples = list(opened["webdataset"].torch())
    without = [{name: row[name] for name in frames[0]} for row in samples]
    assert frames == without == list(opened["arrow"].torch("frames"))
    bound = [event for row in samples for event in row["events"]]
    assert [event for event in events[0] if event in bound] == bound


def test_shuffling_depends_on_seed_and_epoch_alone(exports: dict[str, Path]) -> None:
    dataset = recorder.open_export(exports["arrow"])
    stream = dataset.torch(shuffle=True, seed=5, window=16, transform=key)
    first = list(stream)
    assert first == list(stream) == list(pickle.loads(pickle.dumps(stream)))
    stream.set_epoch(1)
    second = list(stream)
    assert (sorted(second), second != first) == (sorted(first), True)
    assert first != list(dataset.torch(shuffle=True, seed=6, window=16, transform=key))


def test_columns_choose_what_is_read(exports: dict[str, Path]) -> None:
    for format in FORMATS:
        row = next(iter(recorder.open_export(exports[format]).torch(columns=["t_ms", "seq"], split="train")))
        assert list(row) == ["t_ms", "seq"]


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("format", FORMATS)
def test_resumed_twice_in_an_epoch_the_sequence_is_the_same(
    exports: dict[str, Path], format: str, shuffle: bool
) -> None:
    dataset = recorder.open_export(exports[format])
    chosen: dict[str, Any] = {"shuffle": shuffle, "seed": 11, "window": 16, "transform": key}
    whole = dataset.torch(FINEST[format], split="train", **chosen)
    whole.set_epoch(4)
    expected = list(whole)
    results: list[str] = []
    state = whole.state_dict() | {"consumed": {}}
    for count in (13, 24, len(expected)):
        stream = dataset.torch(FINEST[format], split="train", **chosen)
        stream.load_state_dict(pickle.loads(pickle.dumps(state)))
        results += itertools.islice(stream, count)
        state = stream.state_dict()
    assert results == expected


def loader(stream: Any, workers: int) -> Any:
    """Return a plain DataLoader in batches of four."""
    from torch.utils.data import DataLoader

    return DataLoader(stream, batch_size=4, num_workers=workers, collate_fn=list)


@pytest.fixture
def torch() -> Iterator[Any]:
    """Yield the library torch, where it is installed."""
    try:
        import torch
    except ImportError:
        part_is_missing("torch is not installed (pip install torch==2.13.0).")
    yield torch


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("workers", [0, 2])
def test_a_data_loader_resumed_twice_in_an_epoch_gives_the_same_batches(
    torch: Any, exports: dict[str, Path], format: str, workers: int
) -> None:
    dataset = recorder.open_export(exports[format])

    def stream() -> Any:
        return dataset.torch(FINEST[format], shuffle=True, seed=2, window=8, transform=key)

    expected = list(loader(stream(), workers))
    state = None
    results: list[Any] = []
    for count in (3, 6, None):
        resumed = stream()
        if state is not None:
            resumed.load_state_dict(state)
        batches = list(itertools.islice(loader(resumed, workers), count))
        results += batches
        state = resumed.state_after(len(batches), batch_size=4, num_workers=workers)
    assert results == expected
    assert len({name for batch in results for name in batch}) == len(stream())


@pytest.mark.parametrize("seeded", [False, True])
@pytest.mark.parametrize(("workers", "persistent"), [(0, False), (2, False), (2, True)])
def test_only_the_next_iteration_begins_at_a_loaded_position(
    torch: Any, exports: dict[str, Path], workers: int, persistent: bool, seeded: bool
) -> None:
    from torch.utils.data import DataLoader

    dataset = recorder.open_export(exports["parquet"])
    saved = dataset.torch().state_after(5, batch_size=4, num_workers=workers)
    stream = dataset.torch(transform=key)
    stream.load_state_dict(saved)
    batches = DataLoader(
        stream, batch_size=4, num_workers=workers, persistent_workers=persistent, collate_fn=list
    )

    def iterate(count: int | None) -> list[list[str]]:
        if seeded:
            torch.manual_seed(7)
        return list(itertools.islice(batches, count))

    expected = list(loader(dataset.torch(transform=key), workers))
    resumed = iterate(3)
    assert resumed == expected[5:8]
    assert stream.state_after(3, batch_size=4, num_workers=workers)["consumed"] == (
        {"0": 16, "1": 16} if workers else {"0": 32}
    )
    for _ in range(2):
        assert iterate(None) == expected
        state = stream.state_after(2, batch_size=4, num_workers=workers)
        assert state["consumed"] == ({"0": 4, "1": 4} if workers else {"0": 8})


@pytest.mark.parametrize("epoch", [0, 3])
def test_a_state_is_right_after_each_batch_of_a_resumed_epoch(exports: dict[str, Path], epoch: int) -> None:
    dataset = recorder.open_export(exports["parquet"])
    first = dataset.torch()
    first.set_epoch(epoch)
    size = next(size for size in range(7, 20) if len(first) % size)
    resumed = dataset.torch()
    resumed.load_state_dict(first.state_after(2, batch_size=size))
    rows, done = iter(resumed), 2 * size
    for count in itertools.count(1):
        # As a DataLoader fetches: the last batch is short, and ends the iterator.
        batch = list(itertools.islice(rows, size))
        if not batch:
            break
        done += len(batch)
        state = resumed.state_after(count, batch_size=size)
        assert (state["epoch"], state["consumed"]) == (epoch, {"0": done})
        assert resumed.state_dict()["consumed"] == {"0": done}
    assert done == len(first) and len(batch) < size
    iter(resumed)
    assert resumed.state_after(1, batch_size=size)["consumed"] == {"0": size}
    assert resumed.state_dict()["consumed"] == {}


def test_workers_that_outlive_an_epoch_see_the_next_one(torch: Any, exports: dict[str, Path]) -> None:
    from torch.utils.data import DataLoader

    stream = recorder.open_export(exports["parquet"]).torch(shuffle=True, transform=key)
    batches = DataLoader(stream, batch_size=None, num_workers=2, persistent_workers=True)
    first = list(batches)
    stream.set_epoch(1)
    second = list(batches)
    assert (sorted(first), first != second) == (sorted(second), True)


def test_after_a_worker_without_rows_the_turn_goes_on_from_the_one_that_had_some() -> None:
    def advance(batches: int) -> TrainingState:
        return advance_training_state(
            TrainingState(epoch=2), [1, 3, 3], batches, batch_size=1, drop_last=False
        )

    # The first worker is skipped from its second turn on.
    assert [advance(count).next_worker for count in range(8)] == [0, 1, 2, 0, 2, 0, 2, 0]
    assert advance(5) == TrainingState(epoch=2, consumed={0: 1, 1: 2, 2: 2}, workers=3, next_worker=0)
    with pytest.raises(StateRefused, match="does not have 8 more batches of 1"):
        advance(8)


def test_a_state_of_another_sequence_is_refused(exports: dict[str, Path]) -> None:
    dataset = recorder.open_export(exports["parquet"])
    state = dataset.torch(shuffle=True, seed=1).state_dict()
    for other in (dataset.torch(), dataset.torch(shuffle=True, seed=2), dataset.torch("frames")):
        with pytest.raises(StateRefused, match="another sequence"):
            other.load_state_dict(state)
    with pytest.raises(StateRefused, match="not a state"):
        dataset.torch().load_state_dict({"epoch": 1})
    two = dataset.torch()
    two.load_state_dict(two.state_after(2, batch_size=4, num_workers=2))
    with pytest.raises(StateRefused, match="saved with 2 workers, here are 1"):
        next(iter(two))
    more = LoadedPosition(TrainingState(consumed={0: 4, 1: 4}, workers=2), lambda count: [0] * count)
    with pytest.raises(StateRefused, match="saved with 2 workers, here are 3"):
        more.begin(0, 3, 0)
    with pytest.raises(StateRefused, match="more batches"):
        two.state_after(10_000, batch_size=4, num_workers=2)


def test_what_a_dataset_does_not_have_is_refused(exports: dict[str, Path]) -> None:
    dataset = recorder.open_export(exports["webdataset"])
    with pytest.raises(NotInDataset, match=r"webdataset has no rows of kind 'events'; it has samples"):
        dataset.torch("events")
    with pytest.raises(
        NotInDataset, match=r"takes an export of format webdataset, and this one has .* parquet"
    ):
        recorder.open_export(exports["parquet"]).webdataset()
    with pytest.raises(NotInDataset, match="train, validation, test"):
        dataset.torch(split="dev")
    with pytest.raises(NotInDataset, match="no table"):
        dataset.polars()
