"""Writing of shards: tasks, their rows from the lake, and their files. Spec §4.3."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from types import ModuleType

import numpy as np
import polars as pl

from recorder.datasets import arrow, jsonl, parquet, webdataset
from recorder.datasets.formats import FormatName
from recorder.datasets.row_values import RowOutput
from recorder.datasets.schemas import EVENTS, FRAMES
from recorder.errors import RecorderError
from recorder.exports.destinations import ExportLocation, open_destination_directory
from recorder.exports.large_sessions import iterate_session_events, iterate_session_samples
from recorder.exports.planning.plan import Sampling, select_frames
from recorder.exports.planning.sharding import PlannedShard, cut_sessions_by_size, is_large_portion
from recorder.storage.blobs import Blobs
from recorder.storage.lake import Lake
from recorder.storage.lake_reads import retry_lake_read
from recorder.storage.lake_schemas import LakeKind
from recorder.tenant import Tenant


@dataclass(frozen=True)
class WrittenShard:
    """A published file."""

    path: str
    rows: int
    size_bytes: int
    sha256: str
    #: The export from which it was copied.
    reused_from: str | None = None


@dataclass(frozen=True, kw_only=True)
class ShardTask:
    """Some shards and the sources of their rows; it can be sent to another process."""

    tenant: Tenant
    format: FormatName
    #: Shards of one kind and workflow, by bucket and split: they are read together.
    shards: list[PlannedShard]
    sampling: Sampling
    lake_url: str
    blob_url: str
    #: Address of archived frames.
    cold_url: str
    target: ExportLocation
    #: Whether files with the same paths and other bytes are replaced.
    replaces_files: bool = False


#: Rows of one file, as tables: its events or frames, or its samples' frames and the events bound to them.
#: A large shard has none: it is read while it is written.
ShardRows = tuple[pl.DataFrame, ...]

#: Columns with one value per session. They are taken from the plan after the lake's own columns are sorted.
_SESSION_COLUMNS = ("workspace", "workflow", "date", "session_id", "outcome", "actor_kind", "split")
#: Joined from the frames of the session.
_BOUND = "bound_frame_id"
_EVENT_COLUMNS = [name for name in EVENTS.names if name not in (*_SESSION_COLUMNS, _BOUND)]
_FRAME_COLUMNS = [
    *(name for name in FRAMES.names if name not in (*_SESSION_COLUMNS, "image")),
    *("object", "offset", "length"),
]
_INDEX = "session_index"
# Sessions of a task are in the order of their ids within each shard, and `seq` numbers a session's rows by
# (t_ms, id): together they are the files' sort key as one integer, which sorts twice as fast as the strings.
_ORDER = pl.col(_INDEX).cast(pl.Int64) * 2**32 + pl.col("seq")


def read_shard_task_rows(task: ShardTask) -> list[ShardRows]:
    """Return the rows of a task's files, one entry for each file.

    Tables have the columns of `schemas.EVENTS`, or those of `schemas.FRAMES` with `object`, `offset` and
    `length` instead of `image`.
    """
    return [() for _ in task.shards] if task.shards[0].is_large else _read_shard_rows(task)


def _read_shard_rows(task: ShardTask) -> list[ShardRows]:
    tables = [
        _cut_rows_into_shards(rows, task.shards)
        for rows in retry_lake_read(lambda: _read_shard_task_tables(task))
    ]
    return list(zip(*tables, strict=True))


def _read_shard_task_tables(task: ShardTask) -> list[pl.DataFrame]:
    match task.shards[0].kind:
        case "events":
            return [_read_shard_task_events(_scan_task_rows("events", task), task)]
        case "frames":
            return [_read_shard_task_frames(task)]
        case "samples":
            bound = _scan_task_rows("events", task).filter(pl.col("frame_seq").is_not_null())
            return [_read_shard_task_frames(task), _read_shard_task_events(bound, task)]


def _read_shard_task_events(rows: pl.LazyFrame, task: ShardTask) -> pl.DataFrame:
    """Return the event rows of the task, each with the id of the frame that it is bound to."""
    events = _sort_shard_task_rows(rows.select("session_id", *_EVENT_COLUMNS), task)
    if events["frame_seq"].null_count() == events.height:
        return events.with_columns(pl.lit(None, pl.String).alias(_BOUND))
    frames = _scan_task_rows("frames", task).select("session_id", "seq", "frame_id").collect()
    indexes = _number_shard_task_sessions(frames["session_id"], _list_task_sessions(task)["session_id"])
    known = frames.with_columns(indexes).select(_ORDER.alias("frame"), pl.col("frame_id").alias(_BOUND))
    frame = pl.col(_INDEX).cast(pl.Int64) * 2**32 + pl.col("frame_seq")
    joined = events.with_columns(frame.alias("frame")).join(
        known, on="frame", how="left", maintain_order="left"
    )
    return joined.drop("frame")


def _read_shard_task_frames(task: ShardTask) -> pl.DataFrame:
    rows = select_frames(_scan_task_rows("frames", task), task.sampling)
    hashes = pl.col("dhash").reinterpret(signed=False)
    return _sort_shard_task_rows(rows.with_columns(hashes).select("session_id", *_FRAME_COLUMNS), task)


def _scan_task_rows(kind: LakeKind, task: ShardTask) -> pl.LazyFrame:
    """Return the rows of the task's sessions; filters let the reader skip other files and row groups."""
    first, _ = task.shards[0].bucket_range
    _, end = task.shards[-1].bucket_range
    sessions = _list_task_sessions(task)
    # The newest version, since files of older ones are deleted: sealed rows never change.
    table = Lake(task.lake_url).scan(kind, task.tenant)
    return table.filter(
        (pl.col("workflow") == task.shards[0].workflow)
        & pl.col("date").is_in(sessions["date"].unique().to_list())
        & pl.col("bucket").is_between(first, end - 1)
        # Other rows are not read: a join would read them first.
        & pl.col("session_id").is_in(sessions["session_id"].implode())
    )


def _list_task_sessions(task: ShardTask) -> pl.DataFrame:
    """Return the sessions of the task's shards, in the order of their rows."""
    return pl.concat(shard.sessions for shard in task.shards)


def _sort_shard_task_rows(rows: pl.LazyFrame, task: ShardTask) -> pl.DataFrame:
    """Return the rows in the order of the files, with the columns of their sessions in the plan."""
    sessions = _list_task_sessions(task).with_columns(workspace=pl.lit(task.tenant.workspace_id))
    collected = rows.collect()
    indexes = _number_shard_task_sessions(collected["session_id"], sessions["session_id"])
    ordered = collected.drop("session_id").with_columns(indexes).sort(_ORDER)
    del collected  # frees the unsorted rows before the session columns are added
    return ordered.hstack(sessions.select(pl.col(_SESSION_COLUMNS).gather(ordered[_INDEX])))


def _number_shard_task_sessions(ids: pl.Series, sessions: pl.Series) -> pl.Series:
    """Return the index of each row's session; in the lake the rows of a session are neighbours."""
    runs = ids.rle().struct.unnest()
    known = pl.DataFrame({"value": sessions}).with_row_index(_INDEX)
    joined = runs.join(known, on="value", how="left", maintain_order="left")
    return pl.Series(_INDEX, np.repeat(joined[_INDEX].to_numpy(), joined["len"].to_numpy()), pl.UInt32)


def _cut_rows_into_shards(rows: pl.DataFrame, shards: list[PlannedShard]) -> Iterator[pl.DataFrame]:
    """Yield the rows of each shard, cut after its last session."""
    start = end_index = 0
    for shard in shards:
        end_index += shard.sessions.height
        end = rows[_INDEX].search_sorted(end_index)
        yield rows.slice(start, end - start).drop(_INDEX)
        start = end


def _iterate_large_shard_events(task: ShardTask, shard: PlannedShard) -> Iterator[pl.DataFrame]:
    """Yield the event rows of a shard in their order, in portions that memory holds.

    Raises:
        RowsMissing: after the last portion, if the lake holds other rows than the plan.
    """
    count = 0
    for sessions in cut_sessions_by_size(shard.sessions):
        for portion in _iterate_event_portions(task, shard, sessions):
            count += portion.height
            yield portion
    if count != shard.rows:
        raise RowsMissing(shard.path, planned=shard.rows, in_lake=count)


def _iterate_event_portions(
    task: ShardTask, shard: PlannedShard, sessions: pl.DataFrame
) -> Iterator[pl.DataFrame]:
    """Yield the events of sessions of a shard: a large session in portions, small ones at once."""
    if is_large_portion(sessions):
        yield from iterate_session_events(Lake(task.lake_url), task.tenant, sessions.row(0, named=True))
    else:
        [(events,)] = _read_shard_rows(_narrow_shard_task(task, shard, sessions))
        yield events.select(EVENTS.names)


def _iterate_large_shard_samples(
    task: ShardTask, shard: PlannedShard
) -> Iterator[tuple[pl.DataFrame, pl.DataFrame]]:
    """Yield frames of a shard in their order, each time with all events that are bound to them.

    Raises:
        RowsMissing: after the last portion, if the lake holds other frames than the plan.
        SampleTooLarge: if the events that are bound to one frame are more than memory holds.
    """
    count = 0
    for sessions in cut_sessions_by_size(shard.sessions):
        for frames, events in _iterate_sample_portions(_narrow_shard_task(task, shard, sessions), sessions):
            count += frames.height
            yield frames, events
    if count != shard.rows:
        raise RowsMissing(shard.path, planned=shard.rows, in_lake=count)


def _iterate_sample_portions(
    task: ShardTask, sessions: pl.DataFrame
) -> Iterator[tuple[pl.DataFrame, pl.DataFrame]]:
    if is_large_portion(sessions):
        frames = retry_lake_read(lambda: _read_shard_task_frames(task)).drop(_INDEX)
        session = sessions.row(0, named=True)
        yield from iterate_session_samples(Lake(task.lake_url), task.tenant, session, frames)
    else:
        [(frames, events)] = _read_shard_rows(task)
        yield frames, events


def _narrow_shard_task(task: ShardTask, shard: PlannedShard, sessions: pl.DataFrame) -> ShardTask:
    """Return the task of some neighbouring sessions of a shard."""
    return replace(task, shards=[replace(shard, sessions=sessions)])


#: A writer of rows has `write_events`, `write_event_portions` and `write_frames`, the one of samples
#: `write_samples` and `write_sample_portions`.
_WRITERS: dict[FormatName, ModuleType] = {
    "parquet": parquet,
    "jsonl": jsonl,
    "arrow": arrow,
    "webdataset": webdataset,
}


class RowsMissing(RecorderError):
    """The lake has other rows than were planned."""

    code = "rows_missing"
    title = "Rows missing"

    def __init__(self, path: str, *, planned: int, in_lake: int) -> None:
        super().__init__(f"{path} was planned with {planned} rows and the lake holds {in_lake}.")


def write_shards(task: ShardTask) -> Iterator[WrittenShard]:
    """Write and publish the files of a task, one after the other.

    Two runners of one task write equal bytes, so that repeating it is harmless.

    Raises:
        RowsMissing: if the lake holds other rows than the plan.
    """
    # A generator: nothing is read before the first result is requested.
    yield from write_rows(task, read_shard_task_rows(task))


def write_rows(task: ShardTask, rows: list[ShardRows]) -> Iterator[WrittenShard]:
    """Write and publish the files of a task whose rows have been read.

    Args:
        task: shards to write.
        rows: result of `read_shard_task_rows` for this task; it is emptied to free memory file by file.

    Raises:
        RowsMissing: if the number of rows is not the planned one.
    """
    destination = open_destination_directory(task.target)
    rows.reverse()
    for shard in task.shards:
        tables = rows.pop()
        # The first table holds the rows of the file; the events of samples stand within them.
        if tables and tables[0].height != shard.rows:
            raise RowsMissing(shard.path, planned=shard.rows, in_lake=tables[0].height)
        with destination.create(shard.path, replace=task.replaces_files) as file:
            _write_shard_file(task, shard, tables, file)
        yield WrittenShard(shard.path, shard.rows, file.size_bytes, file.sha256)


def _write_shard_file(task: ShardTask, shard: PlannedShard, tables: ShardRows, file: RowOutput) -> None:
    writer = _WRITERS[task.format]
    frames = Blobs(task.blob_url, archive_url=task.cold_url)
    match shard.kind:
        case "events" if shard.is_large:
            writer.write_event_portions(_iterate_large_shard_events(task, shard), file)
        case "samples" if shard.is_large:
            writer.write_sample_portions(_iterate_large_shard_samples(task, shard), frames, file)
        case "events":
            writer.write_events(*tables, file)
        case "frames":
            writer.write_frames(*tables, frames, file)
        case "samples":
            writer.write_samples(*tables, frames, file)
