"""Shards of an export: read their rows at the pinned lake version, sort them, write the files. Spec §4.3."""

from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType

import polars as pl

from recorder.errors import RecorderError
from recorder.exports.destinations import Target, open_target
from recorder.exports.manifest import WrittenShard
from recorder.exports.planning.sampling import select_frames
from recorder.exports.planning.sharding import PlannedShard
from recorder.exports.schemas import EVENTS, FRAMES
from recorder.exports.writers import arrow, jsonl, parquet, webdataset
from recorder.exports.writers.rows import Output
from recorder.models.export import ExportFormat, FrameSampling, ShardKind
from recorder.storage.blobs import Blobs
from recorder.storage.lake import Lake
from recorder.storage.lake_schemas import Kind

#: A writer of rows has `write_events` and `write_frames`, the one of samples `write_samples`.
_WRITERS: dict[ExportFormat, ModuleType] = {
    "parquet": parquet,
    "jsonl": jsonl,
    "arrow": arrow,
    "webdataset": webdataset,
}
_PLACE = "session_place"
# Sessions of a task are in the order of their ids within each shard, and `seq` numbers a session's rows by
# (t_ms, id): together they are the files' sort key as one integer, which sorts twice as fast as the strings.
_ORDER = pl.col(_PLACE).cast(pl.Int64) * 2**32 + pl.col("seq")


class RowsMissing(RecorderError):
    """The lake gave other rows than were planned."""

    code = "rows_missing"
    title = "Rows missing"

    def __init__(self, path: str, *, planned: int, found: int) -> None:
        super().__init__(f"{path} was planned with {planned} rows and the lake holds {found}.")


@dataclass(frozen=True, kw_only=True)
class ShardTask:
    """All that writing some shards needs; it can be sent to another process."""

    workspace_id: str
    mode: str
    format: ExportFormat
    #: Shards of one kind and workflow, by bucket: they are read together.
    shards: list[PlannedShard]
    #: Pinned version of each lake table; None where the table did not exist.
    versions: dict[str, int | None]
    sampling: FrameSampling
    lake_url: str
    blob_url: str
    target: Target


def write_shards(task: ShardTask) -> Iterator[WrittenShard]:
    """Write and publish the files of a task, one after the other.

    Two runners of one task write equal bytes, so that repeating it is harmless.

    Raises:
        RowsMissing: if the lake holds other rows than the plan.
    """
    destination = open_target(task.target)
    tables = [_parts(rows, task.shards) for rows in _read(task)]
    for shard, *parts in zip(task.shards, *tables, strict=True):
        # The first table holds the rows of the file; the events of samples stand within them.
        if parts[0].height != shard.rows:
            raise RowsMissing(shard.path, planned=shard.rows, found=parts[0].height)
        with destination.create(shard.path) as file:
            _write(task, shard.kind, parts, file)
        yield WrittenShard(shard.path, shard.rows, file.size_bytes, file.sha256)


def _read(task: ShardTask) -> list[pl.DataFrame]:
    """What the files of a task are made of."""
    match task.shards[0].kind:
        case "events":
            return [_events(task)]
        case "frames":
            return [_frames(task)]
        case "samples":
            return [_frames(task), _bound_events(task)]


def _write(task: ShardTask, kind: ShardKind, parts: list[pl.DataFrame], file: Output) -> None:
    writer = _WRITERS[task.format]
    match kind:
        case "events":
            writer.write_events(*parts, file)
        case "frames":
            writer.write_frames(*parts, Blobs(task.blob_url), file)
        case "samples":
            writer.write_samples(*parts, Blobs(task.blob_url), file)


def _parts(rows: pl.DataFrame, shards: list[PlannedShard]) -> Iterator[pl.DataFrame]:
    """The rows of each shard, cut where the places of its sessions end."""
    start = end_place = 0
    for shard in shards:
        end_place += shard.sessions.height
        end = rows[_PLACE].search_sorted(end_place)
        yield rows.slice(start, end - start).drop(_PLACE)
        start = end


def _events(task: ShardTask) -> pl.DataFrame:
    rows = _scan("events", task).with_columns(workspace=pl.lit(task.workspace_id))
    return rows.select(*EVENTS.names, _PLACE).collect().sort(_ORDER)


def _bound_events(task: ShardTask) -> pl.DataFrame:
    """The events that happened on some frame, with its `frame_seq`."""
    rows = _scan("events", task).filter(pl.col("frame_seq").is_not_null())
    with_workspace = rows.with_columns(workspace=pl.lit(task.workspace_id))
    return with_workspace.select(*EVENTS.names, "frame_seq", _PLACE).collect().sort(_ORDER)


def _frames(task: ShardTask) -> pl.DataFrame:
    facts = [name for name in FRAMES.names if name != "image"]
    rows = select_frames(_scan("frames", task), task.sampling).with_columns(
        workspace=pl.lit(task.workspace_id), dhash=pl.col("dhash").reinterpret(signed=False)
    )
    return rows.select(*facts, "object", "offset", "length", _PLACE).collect().sort(_ORDER)


def _scan(kind: Kind, task: ShardTask) -> pl.LazyFrame:
    """The rows of the task's sessions, each with the place of its session among them.

    Partition and bucket let the reader skip what lies elsewhere; the join takes the sessions themselves.
    """
    first, _ = task.shards[0].bucket_range
    _, end = task.shards[-1].bucket_range
    sessions = pl.concat(
        shard.sessions.select("session_id", "date", "outcome", "actor_kind", "split") for shard in task.shards
    ).with_row_index(_PLACE)
    table = Lake(task.lake_url).scan(kind, task.workspace_id, task.mode, version=task.versions[kind])
    near = table.filter(
        (pl.col("workflow") == task.shards[0].workflow)
        & pl.col("date").is_in(sessions["date"].unique().to_list())
        & pl.col("bucket").is_between(first, end - 1)
    )
    return near.join(sessions.lazy().drop("date"), on="session_id", how="inner")
