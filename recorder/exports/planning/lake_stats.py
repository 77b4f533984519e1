"""Statistics of the chosen sessions in the lake at pinned versions: counts, sizes, digests. Spec §4.3."""

import math

import polars as pl

from recorder.errors import RecorderError
from recorder.exports.planning.plan import FACTS, Sampling, select_frames
from recorder.number_formats import format_count
from recorder.row_digests import compute_frames_digest, compute_samples_digest
from recorder.storage.lake import Lake
from recorder.storage.lake_schemas import LakeKind
from recorder.tenant import Tenant

_FRAMES_AT_ONCE = 500_000
_HASH_VALUES = 65_536
_FRAME_FACTS = {
    "frames": pl.Int64,
    "image_bytes": pl.Int64,
    "frames_sha256": pl.String,
    "samples_sha256": pl.String,
    "sample_actions": pl.Int64,
}


class LakeStatsMissing(RecorderError):
    """A sealed session has no row in the lake."""

    code = "rows_missing"
    title = "Rows missing"

    def __init__(self, count: int) -> None:
        super().__init__(f"The lake lacks the rows of {format_count(count, 'sealed session')}.")


class LakeStats:
    """Reader of the chosen sessions' statistics, at pinned versions, or the newest where none is given."""

    def __init__(
        self, lake: Lake, tenant: Tenant, versions: dict[str, int | None], chosen: pl.DataFrame
    ) -> None:
        self._lake = lake
        self._tenant = tenant
        self._versions = versions
        self._chosen = chosen

    def sessions(self) -> pl.DataFrame:
        """Return the chosen sessions with their bucket, counts and digest."""
        facts = self._scan_partitions("sessions").select(
            "session_id",
            "bucket",
            pl.col("event_count").cast(pl.Int64).alias("rows"),
            pl.col("action_count").cast(pl.Int64).alias("actions"),
            "rows_sha256",
            pl.col("frame_count").cast(pl.Int64),
            "payload_bytes",
        )
        joined = self._chosen.lazy().join(facts, on="session_id", how="inner", validate="1:1").collect()
        if joined.height != self._chosen.height:
            raise LakeStatsMissing(self._chosen.height - joined.height)
        return self._with_payload_bytes(joined)

    def add_frame_statistics(
        self, sessions: pl.DataFrame, sampling: Sampling, *, with_events: bool
    ) -> pl.DataFrame:
        """Return the sessions with the number, bytes and digest of their selected frames.

        Frames are read in slices of the hash range, so that only some hundred thousand are in memory.

        Args:
            sessions: result of `sessions`.
            sampling: rule that selects the frames.
            with_events: add the digest of the frames with the events bound to them, and the number of
                actions among these.
        """
        with_frames = sessions.filter(pl.col("frame_count") > 0)
        slices = 2 ** math.ceil(math.log2(max(1.0, with_frames["frame_count"].sum() / _FRAMES_AT_ONCE)))
        width = max(1, _HASH_VALUES // slices)
        parts = [
            self._aggregate_frames_by_session(with_frames, first, first + width - 1, sampling, with_events)
            for first in range(0, _HASH_VALUES, width)
            if not with_frames.is_empty()
        ]
        schema = pl.Schema({"session_id": pl.String, **_FRAME_FACTS})
        frames = pl.concat(parts) if parts else pl.DataFrame(schema=schema)
        return sessions.join(frames, on="session_id", how="left").with_columns(
            pl.col("frames", "image_bytes", "sample_actions").fill_null(0),
            pl.col("frames_sha256", "samples_sha256").fill_null(""),
        )

    def event_types(self) -> list[tuple[str, int]]:
        """Return the number of events of each type, most frequent first."""
        counts = self._scan_chosen_rows("events").group_by("type").len()
        return counts.sort(["len", "type"], descending=[True, False]).collect(engine="streaming").rows()

    def duration_ms(self) -> int:
        """Return the duration of all sessions together."""
        total = self._scan_chosen_rows("sessions").select(pl.col("duration_ms").sum()).collect()
        return int(total.item())

    def _with_payload_bytes(self, sessions: pl.DataFrame) -> pl.DataFrame:
        """Return the sessions with the bytes of their payloads, counted where sealing did not store them.

        The memory for a file depends on them. They are not estimated from the lake's files, which compaction
        rewrites: equal sessions must have equal plans.
        """
        unknown = sessions.filter(pl.col("payload_bytes").is_null())
        if unknown.is_empty():
            return sessions
        events = self._scan_partitions("events").join(unknown.lazy(), on="session_id", how="semi")
        size = pl.col("payload").str.len_bytes().cast(pl.Int64).sum().alias("counted")
        counted = events.group_by("session_id").agg(size).collect(engine="streaming")
        known = pl.coalesce("payload_bytes", "counted", pl.lit(0)).alias("payload_bytes")
        return sessions.join(counted, on="session_id", how="left").with_columns(known).drop("counted")

    def _scan_chosen_rows(self, kind: LakeKind) -> pl.LazyFrame:
        chosen = self._chosen.lazy().select("session_id")
        return self._scan_partitions(kind).join(chosen, on="session_id", how="semi")

    def _aggregate_frames_by_session(
        self, sessions: pl.DataFrame, first: int, last: int, sampling: Sampling, with_events: bool
    ) -> pl.DataFrame:
        frames = (
            self._scan_partitions("frames")
            .filter(pl.col("bucket").is_between(first, last))
            .join(sessions.lazy().select("session_id"), on="session_id", how="semi")
            .select(*FACTS, "frame_id", "sha256", "bytes")
        )
        chosen = select_frames(frames, sampling)
        if with_events:
            events = (
                self._scan_partitions("events")
                .filter(pl.col("bucket").is_between(first, last) & pl.col("frame_seq").is_not_null())
                .sort("session_id", "seq")
                .group_by("session_id", pl.col("frame_seq").alias("seq"), maintain_order=True)
                .agg("event_id", pl.col("is_action").sum().cast(pl.Int64).alias("actions"))
            )
            chosen = chosen.join(events, on=["session_id", "seq"], how="left")
        else:
            chosen = chosen.with_columns(
                event_id=pl.lit(None, pl.List(pl.String)), actions=pl.lit(0, pl.Int64)
            )
        by_session = (
            chosen.sort("session_id", "t_ms", "frame_id")
            .group_by("session_id", maintain_order=True)
            .agg(
                pl.len().cast(pl.Int64).alias("frames"),
                pl.col("bytes").cast(pl.Int64).sum().alias("image_bytes"),
                pl.col("actions").fill_null(0).sum().alias("sample_actions"),
                "frame_id",
                "sha256",
                pl.col("event_id").fill_null([]),
            )
            .collect()
        )
        digests = [
            compute_frames_digest(zip(frame_ids, hashes, strict=True))
            for frame_ids, hashes in by_session.select("frame_id", "sha256").iter_rows()
        ]
        samples = [
            compute_samples_digest(zip(*row, strict=True)) if with_events else ""
            for row in by_session.select("frame_id", "sha256", "event_id").iter_rows()
        ]
        digested = by_session.with_columns(
            pl.Series("frames_sha256", digests, pl.String), pl.Series("samples_sha256", samples, pl.String)
        )
        return digested.select("session_id", *_FRAME_FACTS)

    def _scan_partitions(self, kind: LakeKind) -> pl.LazyFrame:
        """Return the rows of a lake table in the workflows and dates of the chosen sessions."""
        table = self._lake.scan(kind, self._tenant, version=self._versions.get(kind))
        return table.filter(
            pl.col("workflow").is_in(self._chosen["workflow"].unique().to_list())
            & pl.col("date").is_in(self._chosen["date"].unique().to_list())
        ).drop("workflow", "date")
