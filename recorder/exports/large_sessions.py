"""Events of sessions that are too large to hold in memory, read from the lake in portions. Spec §4.3."""

from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from itertools import pairwise
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from recorder.datasets.schemas import EVENTS
from recorder.errors import RecorderError
from recorder.storage.lake import Lake
from recorder.storage.lake_schemas import LAYOUTS, LakeKind
from recorder.tenant import Tenant

#: Columns of an event that the lake's table has.
_LAKE_COLUMNS = ("event_id", "seq", "t_ms", "ts", "type", "frame_id", "frame_seq", "is_action", "payload")
#: Columns with one value per session in a plan.
_PLAN_COLUMNS = ("workflow", "date", "session_id", "outcome", "actor_kind", "split")
#: Payloads of the events that are bound to some frames and held together, and the most of a single frame.
SAMPLES_BYTES = 32 * 1024 * 1024
SAMPLE_BYTES = 256 * 1024 * 1024
#: How often the payloads of a session may be read for its samples. Events name their frames: those that are
#: held together may be anywhere in the session, and reading it for each portion would take hours.
MOST_READS = 16


class SampleTooLarge(RecorderError):
    """The events that are bound to one frame are too large for a sample of a WebDataset."""

    code = "sample_too_large"
    title = "Sample too large"

    def __init__(self, session_id: str, frame_id: str, size: int) -> None:
        super().__init__(
            f"Frame {frame_id} of session {session_id} has {size // 2**20:,} MiB of events bound to it; a "
            f"sample of a WebDataset holds {SAMPLE_BYTES // 2**20} MiB at most. Choose another format, or "
            "leave the session out with exclude_session_ids."
        )


class SamplesScattered(RecorderError):
    """The events of neighbouring samples of a WebDataset are too far apart to be read together."""

    code = "samples_scattered"
    title = "Samples scattered"

    def __init__(self, session_id: str) -> None:
        super().__init__(
            f"The events of session {session_id} name frames in another order than that of their times, so "
            f"they would be read more than {MOST_READS} times for a WebDataset. Choose another format, or "
            "leave the session out with exclude_session_ids."
        )


def iterate_session_events(lake: Lake, tenant: Tenant, session: dict[str, Any]) -> Iterator[pl.DataFrame]:
    """Yield the events of a session in their order, some megabytes at a time.

    Args:
        lake: the lake.
        tenant: workspace and mode.
        session: row of a plan's sessions.

    Yields:
        Rows with the columns of `schemas.EVENTS`.
    """
    columns = ("seq", "frame_id")
    with closing(_read_lake_batches(lake, tenant, "frames", session, columns)) as batches:
        parts = [pl.DataFrame(batch.select(columns)) for batch in batches]
    empty = pl.DataFrame(schema={"seq": pl.Int32, "frame_id": pl.String})
    frames = pl.concat([empty, *parts]).rename({"seq": "frame_seq", "frame_id": "bound_frame_id"})
    with closing(_read_lake_batches(lake, tenant, "events", session, _LAKE_COLUMNS)) as batches:
        for batch in batches:
            yield _complete_events(pl.DataFrame(batch), tenant, session, frames)


def iterate_session_samples(
    lake: Lake, tenant: Tenant, session: dict[str, Any], frames: pl.DataFrame
) -> Iterator[tuple[pl.DataFrame, pl.DataFrame]]:
    """Yield the frames of a session in their order, each time with all events that are bound to them.

    Args:
        lake: the lake.
        tenant: workspace and mode.
        session: row of a plan's sessions.
        frames: its selected frames, with `seq` and `frame_id`, in the order of `seq`.

    Raises:
        SampleTooLarge: if the events that are bound to one frame are more than memory holds.
        SamplesScattered: if the events would be read too often.
    """
    bound = _measure_bound_events(lake, tenant, session, frames)
    too_large = bound.filter(pl.col("size") > SAMPLE_BYTES)
    if not too_large.is_empty():
        raise SampleTooLarge(session["session_id"], *too_large.select("frame_id", "size").row(0))
    names = frames.select(pl.col("seq").alias("frame_seq"), pl.col("frame_id").alias("bound_frame_id"))
    portions = list(pairwise(_cut_by_size(bound["size"].to_list())))
    spans = (_measure_span(bound[start:end]) for start, end in portions)
    if sum(spans) > MOST_READS * _measure_span(bound):
        raise SamplesScattered(session["session_id"])
    for start, end in portions:
        times = bound[start:end].select(pl.col("first_ms").min(), pl.col("last_ms").max()).row(0)
        rows = _read_bound_events(lake, tenant, session, names["frame_seq"][start:end], times)
        yield frames[start:end], _complete_events(rows, tenant, session, names[start:end])


def _measure_bound_events(
    lake: Lake, tenant: Tenant, session: dict[str, Any], frames: pl.DataFrame
) -> pl.DataFrame:
    """Return each frame with the bytes of the events that are bound to it, and the times of these events.

    `first_byte` and `last_byte` say where they are in the payloads of the session. These and the times are
    null where there are no such events.
    """
    columns = ("frame_seq", "t_ms", "payload")
    parts, before = [], 0
    with closing(_read_lake_batches(lake, tenant, "events", session, columns)) as batches:
        for batch in batches:
            sizes = pl.DataFrame(batch.select(["frame_seq", "t_ms"])).with_columns(
                size=pl.Series(pc.binary_length(batch["payload"])).cast(pl.Int64)
            )
            ends = before + pl.col("size").cum_sum()
            located = sizes.select(
                "frame_seq",
                "size",
                pl.col("t_ms").alias("first_ms"),
                pl.col("t_ms").alias("last_ms"),
                (ends - pl.col("size")).alias("first_byte"),
                ends.alias("last_byte"),
            )
            before += int(sizes["size"].sum())
            parts.append(_add_up_by_frame(located))
    numbers = ("size", "first_ms", "first_byte", "last_ms", "last_byte")
    empty = pl.DataFrame(schema={"frame_seq": pl.Int32, **dict.fromkeys(numbers, pl.Int64)})
    by_frame = _add_up_by_frame(pl.concat([empty, *parts]))
    return (
        frames.select("seq", "frame_id")
        .join(by_frame, left_on="seq", right_on="frame_seq", how="left", maintain_order="left")
        .with_columns(pl.col("size").fill_null(0))
    )


def _measure_span(bound: pl.DataFrame) -> int:
    """Return the bytes from the first to the last event of some frames, with all events in between."""
    last, first = bound.select(pl.col("last_byte").max(), pl.col("first_byte").min()).row(0)
    return 0 if last is None else int(last - first)


def _add_up_by_frame(rows: pl.DataFrame) -> pl.DataFrame:
    """Return size, first and last time of the events of each frame, from partial sums."""
    return rows.group_by("frame_seq").agg(
        pl.col("size").sum(), pl.col("first_ms", "first_byte").min(), pl.col("last_ms", "last_byte").max()
    )


def _cut_by_size(sizes: Sequence[int]) -> Iterator[int]:
    """Yield the bounds of neighbouring frames whose events are held together: 0, then each end."""
    yield 0
    held = 0
    for index, size in enumerate(sizes):
        if held and held + size > SAMPLES_BYTES:
            yield index
            held = 0
        held += size
    if sizes:
        yield len(sizes)


def _read_bound_events(
    lake: Lake,
    tenant: Tenant,
    session: dict[str, Any],
    frame_seqs: pl.Series,
    times: tuple[int | None, int | None],
) -> pl.DataFrame:
    """Return the events that are bound to some frames, in their order."""
    fields = [LAYOUTS["events"].schema.field(name) for name in _LAKE_COLUMNS]
    parts = [pl.DataFrame(pa.schema(fields).empty_table())]
    first_ms, last_ms = times
    after = None if first_ms is None else (first_ms - 1, "")
    with closing(_read_lake_batches(lake, tenant, "events", session, _LAKE_COLUMNS, after=after)) as batches:
        for batch in batches if last_ms is not None else ():
            if batch["t_ms"][0].as_py() > last_ms:
                break
            parts.append(pl.DataFrame(batch).filter(pl.col("frame_seq").is_in(frame_seqs.implode())))
    return pl.concat(parts)


def _complete_events(
    events: pl.DataFrame, tenant: Tenant, session: dict[str, Any], frames: pl.DataFrame
) -> pl.DataFrame:
    """Return events with the columns of `schemas.EVENTS`: those of the plan, and the ids of their frames."""
    values = {"workspace": tenant.workspace_id, **{name: session[name] for name in _PLAN_COLUMNS}}
    added = [pl.lit(value, pl.String).alias(name) for name, value in values.items()]
    joined = events.join(frames, on="frame_seq", how="left", maintain_order="left")
    return joined.with_columns(added).select(EVENTS.names)


def _read_lake_batches(
    lake: Lake,
    tenant: Tenant,
    kind: LakeKind,
    session: dict[str, Any],
    columns: Sequence[str],
    *,
    after: tuple[int, str] | None = None,
) -> Generator[pa.RecordBatch, None, None]:
    return lake.read_session_batches(
        kind,
        tenant,
        workflow=session["workflow"],
        date=session["date"],
        session_id=session["session_id"],
        after=after,
        columns=columns,
    )
