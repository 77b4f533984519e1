"""Shards of an export: their rows as files, written and published. Spec §4.3."""

from collections.abc import Iterator
from types import ModuleType

from recorder.errors import RecorderError
from recorder.exports.destinations import open_target
from recorder.exports.formats import FileKind, FormatName
from recorder.exports.manifest import WrittenShard
from recorder.exports.writers import arrow, jsonl, parquet, webdataset
from recorder.exports.writers.lake_rows import ShardRows, read_rows
from recorder.exports.writers.rows import Output
from recorder.exports.writers.tasks import ShardTask
from recorder.storage.blobs import Blobs

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
