"""Plan of an export: sessions, buckets, sampled frames, versions of the writing libraries. Spec §4.3."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import deltalake
import orjson
import polars as pl
import pyarrow as pa

from recorder.datasets.formats import FORMATS, FileKind, Format, FormatName
from recorder.hashing import canonical_json
from recorder.row_digests import row_set_sha256
from recorder.version import __version__

#: Columns of the lake's frames that the sampling reads.
FACTS = ("session_id", "seq", "t_ms", "is_keyframe", "n_events", "has_action")


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """Rule that selects frames: `frame_sampling` of a resolved request, without the database's models."""

    mode: str
    #: Of `every_n_ms`; the other modes take none.
    interval_ms: int | None = None
    keep_action_frames: bool = False


def select_frames(frames: pl.LazyFrame, sampling: Sampling) -> pl.LazyFrame:
    """Return the frames that the sampling selects, in no particular order.

    Args:
        frames: one row per frame with at least `FACTS`, whole sessions, any order.
        sampling: rule that selects the frames.
    """
    chosen = _make_sampling_filter(sampling)
    if sampling.keep_action_frames:
        chosen = chosen | pl.col("has_action")
    return frames.filter(chosen)


def _make_sampling_filter(sampling: Sampling) -> pl.Expr:
    match sampling.mode:
        case "event_only":
            return pl.col("n_events") > 0
        case "every_n_ms":
            assert sampling.interval_ms is not None
            slot = pl.col("t_ms") // sampling.interval_ms
            # `seq` follows (t_ms, frame_id), so that frames of one instant do not tie.
            return pl.col("seq") == pl.col("seq").min().over("session_id", slot)
        case "keyframes_only":
            return pl.col("is_keyframe")
        case "all":
            return pl.lit(True)
        case unknown:
            raise ValueError(f"No sampling is called {unknown}.")


#: Stored plans of another version are replaced: they describe other files.
PLAN_VERSION = 3
#: A shard is kept below this size, by the estimate of `bucket_bits`.
SHARD_BYTES = 128 * 1024 * 1024
#: Estimated size of a row, unless the payloads of its session are larger.
BYTES_PER_EVENT = 512
#: Bits of the hash that assigns a session to a bucket.
HASH_BITS = 16
#: Columns of `SESSIONS` with the rows of each kind and their digests.
ROWS: dict[FileKind, str] = {"events": "rows", "frames": "frames", "samples": "frames"}
DIGESTS: dict[FileKind, str] = {
    "events": "rows_sha256",
    "frames": "frames_sha256",
    "samples": "samples_sha256",
}

#: One row per session of a plan, ordered by workflow, bucket and id.
SESSIONS = pl.Schema(
    {
        "session_id": pl.String,
        "workflow": pl.String,
        "date": pl.String,
        "bucket": pl.Int32,
        "outcome": pl.String,
        "actor_kind": pl.String,
        "split": pl.String,
        "rows": pl.Int64,
        # Of all its payloads together.
        "payload_bytes": pl.Int64,
        "actions": pl.Int64,
        "rows_sha256": pl.String,
        "frames": pl.Int64,
        "image_bytes": pl.Int64,
        "frames_sha256": pl.String,
        # Of a WebDataset only: its samples with their events, and the number of actions among these.
        "samples_sha256": pl.String,
        "sample_actions": pl.Int64,
    }
)
#: Estimated size of the events of sessions.
EVENT_BYTES = pl.max_horizontal(pl.col("rows") * BYTES_PER_EVENT, "payload_bytes").sum()


def list_library_versions() -> dict[str, str]:
    """Return the versions of the libraries that the bytes of a file depend on."""
    return {
        "service": __version__,
        "polars": pl.__version__,
        "pyarrow": pa.__version__,
        "deltalake": deltalake.__version__,
    }


def canonical_export_spec(spec: dict[str, Any]) -> dict[str, Any]:
    """Return a resolved request in the form that equal requests share."""
    filters = dict(spec["filter"])
    if "exclude_session_ids" in filters:
        filters["exclude_session_ids"] = sorted(set(filters["exclude_session_ids"]))
    return {
        "workflow": sorted(set(spec["workflow"])),
        "filter": filters,
        "frame_sampling": spec["frame_sampling"],
        "split": spec["split"],
    }


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The pinned row set of an export: the same plan gives the same files."""

    format: FormatName
    #: The canonical, resolved request.
    spec: dict[str, Any]
    #: Pinned version of each lake table; None where the table did not exist.
    versions: dict[str, int | None]
    #: Version of each workflow's graph in which a `path` was searched.
    graph: dict[str, int]
    #: Per workflow: its sessions are spread over `2 ** bits` buckets.
    bucket_bits: dict[str, int]
    sessions: pl.DataFrame

    @property
    def sampling(self) -> Sampling:
        """Rule that selects the frames."""
        return Sampling(**self.spec["frame_sampling"])

    @property
    def is_split(self) -> bool:
        """True if rows are divided into splits; otherwise all are `train`."""
        return bool(self.spec["split"]["validation"] or self.spec["split"]["test"])

    @property
    def file_format(self) -> Format:
        """Format of the files."""
        return FORMATS[self.format]

    @property
    def rows(self) -> int:
        """Rows of the dataset: events, or the samples of a WebDataset."""
        return int(self.sessions[ROWS[self.file_format.kinds[0]]].sum())

    def to_json(self) -> bytes:
        """Return the stored form; its SHA-256 is `plan_sha256`."""
        return canonical_json(
            {
                "plan_version": PLAN_VERSION,
                "format": self.format,
                "spec": self.spec,
                "versions": self.versions,
                "graph": self.graph,
                "bucket_bits": self.bucket_bits,
                # Column by column: as Python's objects a million sessions take a gigabyte.
                "sessions": {
                    column.name: orjson.Fragment(canonical_json(column.to_list())) for column in self.sessions
                },
            }
        )

    @classmethod
    def from_json(cls, text: bytes) -> "Plan | None":
        """Return the plan of a stored form; None for one of another version."""
        stored = orjson.loads(text)
        if stored.pop("plan_version") != PLAN_VERSION:
            return None
        return cls(**stored | {"sessions": pl.DataFrame(stored["sessions"], schema=SESSIONS)})

    def row_set_sha256(self) -> str:
        """Return the digest of all rows, which `verify` computes from the files."""
        return row_set_sha256(
            pl.concat(
                self.sessions.select(
                    pl.lit(kind).alias("kind"),
                    "session_id",
                    pl.col(ROWS[kind]).alias("n_rows"),
                    pl.col(DIGESTS[kind]).alias("digest"),
                )
                for kind in self.file_format.kinds
            )
        )


def make_export_plan(
    *,
    format: FormatName,
    spec: dict[str, Any],
    versions: dict[str, int | None],
    graph: dict[str, int],
    sessions: pl.DataFrame,
) -> Plan:
    """Return the plan for some sessions, with as few buckets as keep its shards small.

    Args:
        format: format of the files.
        spec: resolved request.
        versions: pinned version of each lake table.
        graph: version of each workflow's graph in which a `path` was searched.
        sessions: columns of `SESSIONS`, any order.
    """
    ordered = sessions.select(SESSIONS.names()).cast(SESSIONS).sort("workflow", "bucket", "session_id")
    images = pl.col("image_bytes").sum() if FORMATS[format].carries_images else 0
    sizes = ordered.group_by("workflow", maintain_order=True).agg(EVENT_BYTES + images)
    bits = {workflow: bucket_bits(size) for workflow, size in sizes.iter_rows()}
    return Plan(
        format=format,
        spec=canonical_export_spec(spec),
        versions=versions,
        graph=graph,
        bucket_bits=bits,
        sessions=ordered,
    )


def bucket_bits(total_bytes: int) -> int:
    """Return the smallest k for which `2 ** k` buckets divide these bytes into at most `SHARD_BYTES` each.

    It depends on the row set alone, not on history; k + 1 splits each shard in two.
    """
    bits = 0
    while bits < HASH_BITS and total_bytes > SHARD_BYTES << bits:
        bits += 1
    return bits


def plan_without_sessions(plan: Plan, gone: Iterable[str]) -> Plan:
    """Return the plan without some sessions; the buckets stay, so that other shards keep their content."""
    return replace(plan, sessions=plan.sessions.filter(~pl.col("session_id").is_in(list(gone))))
