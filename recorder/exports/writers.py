"""What writing some shards needs to know. Spec §4.3."""

from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType

import numpy as np
import polars as pl

from recorder.datasets import arrow, jsonl, parquet, webdataset
from recorder.datasets.formats import FileKind, FormatName
from recorder.datasets.rows import Output
from recorder.datasets.schemas import EVENTS, FRAMES
from recorder.errors import RecorderError
from recorder.exports.destinations import Target, open_target
from recorder.exports.planning.plan import Sampling, select_frames
from recorder.exports.planning.sharding import PlannedShard
from recorder.storage.blobs import Blobs
from recorder.storage.lake import Lake
from recorder.storage.lake_schemas import Kind
from recorder.tenant import Tenant


@dataclass(frozen=True)
class WrittenShard:
    """A file as it was published."""

    path: str
    rows: int
    size_bytes: int
    sha256: str
    #: The export of which it was copied.
    reused_from: str | None = None


@dataclass(frozen=True, kw_only=True)
class ShardTask:
    """Some shards and where all that they hold comes from; it can be sent to another process."""

    workspace_id: str
    mode: str
    format: FormatName
    #: Shards of one kind and workflow, by bucket: they are read together.
    shards: list[PlannedShard]
    #: Pinned version of each lake table; None where the table did not exist.
    versions: dict[str, int | None]
    sampling: Sampling
    lake_url: str
    blob_url: str
    target: Target

    @property
    def tenant(self) -> Tenant:
        """Workspace and mode of the export."""
        return Tenant(self.workspace_id, self.mode)


#: Rows of one file, as tables: its events or frames, or its samples' frames and the events bound to them.
ShardRows = tuple[pl.DataFrame, ...]

#: What the rows of a session have in common. It comes from the plan, once the lake's own columns are sorted.
_OF_SESSION = ("workspace", "workflow", "date", "session_id", "outcome", "actor_kind", "split")
#: Looked up in the frames of the session.
_BOUND = "bound_frame_id"
_EVENT_COLUMNS = [name for name in EVENTS.names if name not in (*_OF_SESSION, _BOUND)]
_FRAME_COLUMNS = [
    *(name for name in FRAMES.names if name not in (*_OF_SESSION, "image")),
    *("object", "offset", "length"),
]
_PLACE = "session_place"
# Sessions of a task are in the order of their ids within each shard, and `seq` numbers a session's rows by
# (t_ms, id): together they are the files' sort key as one integer, which sorts twice as fast as the strings.
_ORDER = pl.col(_PLACE).cast(pl.Int64) * 2**32 + pl.col("seq")


def read_rows(task: ShardTask) -> list[ShardRows]:
    """What the files of a task are made of, one entry for each.

    Tables have the columns of `schemas.EVENTS`, or those of `schemas.FRAMES` with `object`, `offset` and
    `length` instead of `image`.
    """
    tables = [_cut(rows, task.shards) for rows in _tables(task)]
    return list(zip(*tables, strict=True))


def _tables(task: ShardTask) -> list[pl.DataFrame]:
    match task.shards[0].kind:
        case "events":
            return [_events(_scan("events", task), task)]
        case "frames":
            return [_frames(task)]
        case "samples":
            bound = _scan("events", task).filter(pl.col("frame_seq").is_not_null())
            return [_frames(task), _events(bound, task)]


def _events(rows: pl.LazyFrame, task: ShardTask) -> pl.DataFrame:
    """Return the event rows of the task, each with the id of the frame that it is bound to."""
    events = _sorted(rows.select("session_id", *_EVENT_COLUMNS), task)
    if events["frame_seq"].null_count() == events.height:
        return events.with_columns(pl.lit(None, pl.String).alias(_BOUND))
    frames = _scan("frames", task).select("session_id", "seq", "frame_id").collect()
    places = _places(frames["session_id"], _sessions(task)["session_id"])
    known = frames.with_columns(places).select(_ORDER.alias("frame"), pl.col("frame_id").alias(_BOUND))
    frame = pl.col(_PLACE).cast(pl.Int64) * 2**32 + pl.col("frame_seq")
    found = events.with_columns(frame.alias("frame")).join(
        known, on="frame", how="left", maintain_order="left"
    )
    return found.drop("frame")


def _frames(task: ShardTask) -> pl.DataFrame:
    rows = select_frames(_scan("frames", task), task.sampling)
    hashes = pl.col("dhash").reinterpret(signed=False)
    return _sorted(rows.with_columns(hashes).select("session_id", *_FRAME_COLUMNS), task)


def _scan(kind: Kind, task: ShardTask) -> pl.LazyFrame:
    """The rows of the task's sessions; partition, bucket and id let the reader skip what lies elsewhere."""
    first, _ = task.shards[0].bucket_range
    _, end = task.shards[-1].bucket_range
    sessions = _sessions(task)
    table = Lake(task.lake_url).scan(kind, task.tenant, version=task.versions[kind])
    return table.filter(
        (pl.col("workflow") == task.shards[0].workflow)
        & pl.col("date").is_in(sessions["date"].unique().to_list())
        & pl.col("bucket").is_between(first, end - 1)
        # Rows that are not wanted are left in the files: a join would read them first.
        & pl.col("session_id").is_in(sessions["session_id"].implode())
    )


def _sessions(task: ShardTask) -> pl.DataFrame:
    """The sessions of the task's shards, in the order of their rows."""
    return pl.concat(shard.sessions for shard in task.shards)


def _sorted(rows: pl.LazyFrame, task: ShardTask) -> pl.DataFrame:
    """The rows in the order of the files, with what the plan says of their sessions and their place."""
    sessions = _sessions(task).with_columns(workspace=pl.lit(task.workspace_id))
    found = rows.collect()
    places = _places(found["session_id"], sessions["session_id"])
    ordered = found.drop("session_id").with_columns(places).sort(_ORDER)
    del found  # the rows as they were read would stay until their constants are there
    return ordered.hstack(sessions.select(pl.col(_OF_SESSION).gather(ordered[_PLACE])))


def _places(ids: pl.Series, sessions: pl.Series) -> pl.Series:
    """For each row the place of its session among them; the lake keeps a session's rows together."""
    runs = ids.rle().struct.unnest()
    known = pl.DataFrame({"value": sessions}).with_row_index(_PLACE)
    found = runs.join(known, on="value", how="left", maintain_order="left")
    return pl.Series(_PLACE, np.repeat(found[_PLACE].to_numpy(), found["len"].to_numpy()), pl.UInt32)


def _cut(rows: pl.DataFrame, shards: list[PlannedShard]) -> Iterator[pl.DataFrame]:
    """The rows of each shard, cut where the places of its sessions end."""
    start = end_place = 0
    for shard in shards:
        end_place += shard.sessions.height
        end = rows[_PLACE].search_sorted(end_place)
        yield rows.slice(start, end - start).drop(_PLACE)
        start = end


#: A writer of rows has `write_events` and `write_frames`, the one of samples `write_samples`.
_WRITERS: dict[FormatName, ModuleType] = {
    "parquet": parquet,
    "jsonl": jsonl,
    "arrow": arrow,
    "webdataset": webdataset,
}


class RowsMissing(RecorderError):
    """The lake gave other rows than were planned."""

    code = "rows_missing"
    title = "Rows missing"

    def __init__(self, path: str, *, planned: int, found: int) -> None:
        super().__init__(f"{path} was planned with {planned} rows and the lake holds {found}.")


def write_shards(task: ShardTask) -> Iterator[WrittenShard]:
    """Write and publish the files of a task, one after the other.

    Two runners of one task write equal bytes, so that repeating it is harmless.

    Raises:
        RowsMissing: if the lake holds other rows than the plan.
    """
    # A generator: nothing is read before the first file is asked for, by whoever asks.
    yield from write_rows(task, read_rows(task))


def write_rows(task: ShardTask, rows: list[ShardRows]) -> Iterator[WrittenShard]:
    """Write and publish the files of a task whose rows have been read.

    Args:
        rows: what `read_rows` gave for this task; it is emptied, so that the last file ends their memory.

    Raises:
        RowsMissing: if these are other rows than were planned.
    """
    destination = open_target(task.target)
    rows.reverse()
    for shard in task.shards:
        tables = rows.pop()
        # The first table holds the rows of the file; the events of samples stand within them.
        if tables[0].height != shard.rows:
            raise RowsMissing(shard.path, planned=shard.rows, found=tables[0].height)
        with destination.create(shard.path) as file:
            _write(task, shard.kind, tables, file)
        yield WrittenShard(shard.path, shard.rows, file.size_bytes, file.sha256)


def _write(task: ShardTask, kind: FileKind, tables: ShardRows, file: Output) -> None:
    writer = _WRITERS[task.format]
    match kind:
        case "events":
            writer.write_events(*tables, file)
        case "frames":
            writer.write_frames(*tables, Blobs(task.blob_url), file)
        case "samples":
            writer.write_samples(*tables, Blobs(task.blob_url), file)
