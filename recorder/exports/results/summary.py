"""Summary of a finished dataset: counts, lengths, first rows. Design §1."""

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import polars as pl

from recorder.datasets.formats import FormatName
from recorder.datasets.jsonl import jsonl_text_schema
from recorder.datasets.manifest import Shard
from recorder.datasets.schemas import SCHEMAS
from recorder.datasets.tables import scan_dataset_tables
from recorder.datasets.webdataset import read_tar_members
from recorder.exports.destinations import Destination

#: The recording's contents stay in the files: a summary is shown where erasure does not rewrite.
_FIELDS = {
    field.name: str(field.type)
    for field in SCHEMAS["jsonl"]["events"]
    if field.name not in ("workspace", "payload")
}
PREVIEW_COLUMNS = list(_FIELDS)
_TYPES = 10
_EVENTS_AT_ONCE = 50_000


@dataclass(frozen=True)
class DatasetSummary:
    """Figures for a reader; the manifest has the exact ones."""

    #: outcome (null as `none`), sessions
    outcomes: pl.DataFrame
    #: split, sessions
    splits: pl.DataFrame
    #: type, events; most frequent first, at most ten
    types: pl.DataFrame
    #: Seconds from start to last event, one per session.
    lengths_s: pl.Series
    preview: pl.DataFrame


class _PartSummary(NamedTuple):
    """Summary of some events."""

    #: session_id, outcome, split, t_ms of the last event
    sessions: pl.DataFrame
    #: type, events
    types: pl.DataFrame
    first_rows: pl.DataFrame


def summarize_dataset(
    destination: Destination, shards: list[Shard], *, format: FormatName = "parquet", rows: int = 8
) -> DatasetSummary | None:
    """Return figures read from the files, one after the other; None where there are no files.

    The figures of a WebDataset are those of the events in its samples.

    Args:
        destination: directory of the export.
        shards: files of events, or of samples, as the manifest lists them; others are not read.
        format: format of the shards.
        rows: number of rows in the preview.

    Raises:
        KeyError: if a file is missing, or has other bytes than are listed.
    """
    if not shards:
        return None
    ordered = sorted(shards, key=lambda shard: shard.path)
    parts = [part for shard in ordered for part in _summarize_file(destination, shard, format, rows)]
    ended = pl.concat(part.sessions for part in parts).group_by("session_id")
    sessions = ended.agg(pl.col("outcome", "split").first(), pl.col("t_ms").max()).sort("session_id")
    types = pl.concat(part.types for part in parts).group_by("type").agg(pl.col("events").sum())
    return DatasetSummary(
        outcomes=sessions.group_by(pl.col("outcome").fill_null("none")).len("sessions").sort("outcome"),
        splits=sessions.group_by("split").len("sessions").sort("split"),
        types=types.sort(["events", "type"], descending=[True, False]).head(_TYPES),
        lengths_s=sessions["t_ms"] / 1000,
        preview=pl.concat(part.first_rows for part in parts).head(rows),
    )


def _summarize_file(
    destination: Destination, shard: Shard, format: FormatName, rows: int
) -> Iterator[_PartSummary]:
    """Yield counts and first rows of a shard, which is copied from the destination."""
    # One copy at a time: together they may be larger than the disk.
    with tempfile.TemporaryDirectory(prefix="recorder-summary-") as folder:
        path = destination.fetch(shard.path, Path(folder), size_bytes=shard.size_bytes, sha256=shard.sha256)
        if format == "webdataset":
            for events in _read_events_for_summary(path):
                yield _summarize_part(events.lazy(), rows)
        else:
            yield _summarize_part(scan_dataset_tables([path], format, _FIELDS), rows)


def _summarize_part(events: pl.LazyFrame, rows: int) -> _PartSummary:
    """Return the sessions, the counts of event types and the first rows of some events."""
    sessions = events.group_by("session_id").agg(pl.col("outcome", "split").first(), pl.col("t_ms").max())
    types = events.group_by("type").len("events")
    first_rows = events.select(PREVIEW_COLUMNS).head(rows)
    ended, counted, first = pl.collect_all([sessions, types, first_rows], engine="streaming")
    return _PartSummary(ended, counted.cast({"events": pl.Int64}), first)


def _read_events_for_summary(path: Path) -> Iterator[pl.DataFrame]:
    """Yield the events of an archive, some at a time; pictures are skipped."""
    schema = pl.Schema(jsonl_text_schema(_FIELDS))
    decoder = msgspec.json.Decoder(list[dict[str, Any]])
    held: list[dict[str, Any]] = []
    with path.open("rb") as file:
        for name, size in read_tar_members(file):
            if name.endswith(".events.json"):
                held += decoder.decode(file.read(size))
            if len(held) >= _EVENTS_AT_ONCE:
                yield pl.DataFrame(held, schema=schema)
                held = []
    yield pl.DataFrame(held, schema=schema)
