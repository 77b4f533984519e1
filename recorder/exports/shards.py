"""Shards of an export: read their rows at the pinned lake version, sort them, write the files. Spec §4.3."""

from collections.abc import Iterator
from dataclasses import dataclass

import polars as pl

from recorder.errors import RecorderError
from recorder.exports.destinations import Destination
from recorder.exports.manifest import WrittenShard
from recorder.exports.plan import PlannedShard
from recorder.exports.sampling import select_frames
from recorder.exports.schemas import EVENTS, FRAMES
from recorder.exports.writers.parquet import write_events, write_frames
from recorder.models.export import FrameSampling
from recorder.storage.blobs import Blobs
from recorder.storage.lake import Lake

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
    #: Shards of one kind and workflow, by bucket: they are read together.
    shards: list[PlannedShard]
    version: int | None
    sampling: FrameSampling
    lake_url: str
    blob_url: str
    destination_url: str


def write_shards(task: ShardTask) -> Iterator[WrittenShard]:
    """Write and publish the files of a task, one after the other.

    Two runners of one task write equal bytes, so that repeating it is harmless.

    Raises:
        RowsMissing: if the lake holds other rows than the plan.
    """
    kind = task.shards[0].kind
    rows = _events(task) if kind == "events" else _frames(task)
    destination = Destination(task.destination_url)
    for shard, part in zip(task.shards, _parts(rows, task.shards), strict=True):
        if part.height != shard.rows:
            raise RowsMissing(shard.path, planned=shard.rows, found=part.height)
        with destination.create(shard.path) as file:
            if kind == "events":
                write_events(part, file)
            else:
                write_frames(part, Blobs(task.blob_url), file)
        yield WrittenShard(shard.path, part.height, file.size_bytes, file.sha256)


def _parts(rows: pl.DataFrame, shards: list[PlannedShard]) -> Iterator[pl.DataFrame]:
    """The rows of each shard, cut where the places of its sessions end."""
    start = end_place = 0
    for shard in shards:
        end_place += shard.sessions.height
        end = rows[_PLACE].search_sorted(end_place)
        yield rows.slice(start, end - start).drop(_PLACE)
        start = end


def _events(task: ShardTask) -> pl.DataFrame:
    rows = _scan(task).with_columns(workspace=pl.lit(task.workspace_id))
    return rows.select(*EVENTS.names, _PLACE).collect().sort(_ORDER)


def _frames(task: ShardTask) -> pl.DataFrame:
    facts = [name for name in FRAMES.names if name != "image"]
    rows = select_frames(_scan(task), task.sampling).with_columns(
        workspace=pl.lit(task.workspace_id), dhash=pl.col("dhash").reinterpret(signed=False)
    )
    return rows.select(*facts, "object", "offset", "length", _PLACE).collect().sort(_ORDER)


def _scan(task: ShardTask) -> pl.LazyFrame:
    """The rows of the task's sessions, each with the place of its session among them.

    Partition and bucket let the reader skip what lies elsewhere; the join takes the sessions themselves.
    """
    first, _ = task.shards[0].bucket_range
    _, end = task.shards[-1].bucket_range
    sessions = pl.concat(
        shard.sessions.select("session_id", "date", "outcome", "actor_kind", "split") for shard in task.shards
    ).with_row_index(_PLACE)
    table = Lake(task.lake_url).scan(task.shards[0].kind, task.workspace_id, task.mode, version=task.version)
    near = table.filter(
        (pl.col("workflow") == task.shards[0].workflow)
        & pl.col("date").is_in(sessions["date"].unique().to_list())
        & pl.col("bucket").is_between(first, end - 1)
    )
    return near.join(sessions.lazy().drop("date"), on="session_id", how="inner")
