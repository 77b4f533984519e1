"""What a finished dataset looks like at a glance: counts, lengths, first rows. Design §1."""

from dataclasses import dataclass

import polars as pl

from recorder.exports.destinations import Destination
from recorder.exports.schemas import EVENTS

#: The recording's contents stay in the files: a summary is shown in places that erasure does not rewrite.
PREVIEW_COLUMNS = [name for name in EVENTS.names if name not in ("workspace", "payload")]
_TYPES = 10


@dataclass(frozen=True)
class DatasetSummary:
    """Figures for people; the manifest has the exact ones."""

    #: outcome (null as `none`), sessions
    outcomes: pl.DataFrame
    #: type, events; most frequent first, at most ten
    types: pl.DataFrame
    #: Seconds from start to last event, one per session.
    lengths_s: pl.Series
    preview: pl.DataFrame


def summarize(destination: Destination, event_paths: list[str], *, rows: int = 8) -> DatasetSummary | None:
    """Read the figures back from the events files; None where there are none.

    Args:
        event_paths: paths of the events shards, relative to the manifest.
        rows: how many rows the preview shows.
    """
    if not event_paths:
        return None
    events = pl.scan_parquet(
        [destination.address(path) for path in sorted(event_paths)], hive_partitioning=False
    )
    sessions = events.group_by("session_id").agg(pl.col("outcome").first(), pl.col("t_ms").max())
    ended, types, preview = pl.collect_all(
        [
            sessions.sort("session_id"),
            events.group_by("type")
            .len("events")
            .sort(["events", "type"], descending=[True, False])
            .head(_TYPES),
            events.select(PREVIEW_COLUMNS).head(rows),
        ]
    )
    outcomes = ended.group_by(pl.col("outcome").fill_null("none")).len("sessions").sort("outcome")
    return DatasetSummary(outcomes, types, ended["t_ms"] / 1000, preview)
