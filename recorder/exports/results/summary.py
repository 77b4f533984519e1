"""What a finished dataset looks like at a glance: counts, lengths, first rows. Design §1."""

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import polars as pl

from recorder.exports.destinations import Destination
from recorder.exports.formats import FormatName
from recorder.exports.schemas import SCHEMAS
from recorder.exports.verify.archives import members_of

#: The recording's contents stay in the files: a summary is shown in places that erasure does not rewrite.
PREVIEW_COLUMNS = [
    field.name for field in SCHEMAS["jsonl"]["events"] if field.name not in ("workspace", "payload")
]
_TYPES = 10
_EVENTS_AT_ONCE = 50_000
_JSON_TYPES: dict[str, pl.DataType] = {
    "seq": pl.Int32(),
    "t_ms": pl.Int64(),
    "frame_seq": pl.Int32(),
    "is_action": pl.Boolean(),
}
#: As JSON has them.
_EVENT = pl.Schema({name: _JSON_TYPES.get(name, pl.String()) for name in PREVIEW_COLUMNS})


@dataclass(frozen=True)
class DatasetSummary:
    """Figures for people; the manifest has the exact ones."""

    #: outcome (null as `none`), sessions
    outcomes: pl.DataFrame
    #: split, sessions
    splits: pl.DataFrame
    #: type, events; most frequent first, at most ten
    types: pl.DataFrame
    #: Seconds from start to last event, one per session.
    lengths_s: pl.Series
    preview: pl.DataFrame


class _Part(NamedTuple):
    """Some events, summed up."""

    #: session_id, outcome, split, t_ms of the last event
    sessions: pl.DataFrame
    #: type, events
    types: pl.DataFrame
    first_rows: pl.DataFrame


def summarize(
    destination: Destination, paths: list[str], *, format: FormatName = "parquet", rows: int = 8
) -> DatasetSummary | None:
    """Read the figures back from the files, one after the other; None where there are none.

    Of a WebDataset they are those of the events in its samples.

    Args:
        paths: paths of the shards of events, or of samples, relative to the manifest.
        rows: how many rows the preview shows.
    """
    if not paths:
        return None
    parts = list(_parts(destination, sorted(paths), format, rows))
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


def _parts(destination: Destination, paths: list[str], format: FormatName, rows: int) -> Iterator[_Part]:
    with tempfile.TemporaryDirectory(prefix="recorder-summary-") as folder:
        for path in paths:
            if format == "webdataset":
                for events in _bound_events(destination, path):
                    yield _summed(events.lazy(), rows)
            else:
                yield _summed(_scan(destination.fetch(path, Path(folder)), format), rows)


def _scan(path: Path, format: FormatName) -> pl.LazyFrame:
    match format:
        case "parquet":
            return pl.scan_parquet(path, hive_partitioning=False)
        case "arrow":
            return pl.scan_ipc(path, hive_partitioning=False)
        case _:
            # Types that are guessed from the first rows are wrong where these have nulls alone.
            return pl.scan_ndjson(path, schema=_EVENT)


def _summed(events: pl.LazyFrame, rows: int) -> _Part:
    sessions = events.group_by("session_id").agg(pl.col("outcome", "split").first(), pl.col("t_ms").max())
    types = events.group_by("type").len("events")
    first_rows = events.select(PREVIEW_COLUMNS).head(rows)
    ended, counted, first = pl.collect_all([sessions, types, first_rows], engine="streaming")
    return _Part(ended, counted.cast({"events": pl.Int64}), first)


def _bound_events(destination: Destination, path: str) -> Iterator[pl.DataFrame]:
    """The events of an archive, some at a time; pictures are passed over."""
    decoder = msgspec.json.Decoder(list[dict[str, Any]])
    held: list[dict[str, Any]] = []
    with destination.open(path) as file:
        for name, size in members_of(file):
            if name.endswith(".events.json"):
                held += decoder.decode(file.read(size))
            if len(held) >= _EVENTS_AT_ONCE:
                yield pl.DataFrame(held, schema=_EVENT)
                held = []
    yield pl.DataFrame(held, schema=_EVENT)
