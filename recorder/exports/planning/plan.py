"""What an export will hold, fixed before its first shard: sessions and how they are dealt. Spec §4.3."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import deltalake
import orjson
import polars as pl
import pyarrow as pa

from recorder.digest import canonical_json
from recorder.exports.formats import FORMATS, FileKind, Format, FormatName
from recorder.exports.planning.sampling import Sampling
from recorder.rowset import row_set_sha256
from recorder.version import __version__

#: Stored plans of another version are made anew: what they say of files no longer holds.
PLAN_VERSION = 3
#: A shard is kept below this size, by the estimate of `bucket_bits`.
SHARD_BYTES = 128 * 1024 * 1024
#: What a row is taken for, unless the payloads of its session have more.
BYTES_PER_EVENT = 512
#: Of a session id: what it is dealt to buckets by.
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
        # Of its payloads, all together.
        "payload_bytes": pl.Int64,
        "actions": pl.Int64,
        "rows_sha256": pl.String,
        "frames": pl.Int64,
        "image_bytes": pl.Int64,
        "frames_sha256": pl.String,
        # Of a WebDataset alone: its samples with their events, and how many of these are actions.
        "samples_sha256": pl.String,
        "sample_actions": pl.Int64,
    }
)
#: About how many bytes the events of sessions are.
EVENT_BYTES = pl.max_horizontal(pl.col("rows") * BYTES_PER_EVENT, "payload_bytes").sum()


def writer_versions() -> dict[str, str]:
    """The libraries whose behaviour is in the bytes of a file."""
    return {
        "service": __version__,
        "polars": pl.__version__,
        "pyarrow": pa.__version__,
        "deltalake": deltalake.__version__,
    }


def canonical_spec(spec: dict[str, Any]) -> dict[str, Any]:
    """A resolved request in the one form that equal requests share."""
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
    """The row set of an export, pinned: the same plan gives the same files."""

    format: FormatName
    #: The canonical, resolved request.
    spec: dict[str, Any]
    #: Pinned version of each lake table; None where the table did not exist.
    versions: dict[str, int | None]
    #: Version of each workflow's graph in which a `path` was looked for.
    graph: dict[str, int]
    #: Per workflow: its sessions are spread over `2 ** bits` buckets.
    bucket_bits: dict[str, int]
    sessions: pl.DataFrame

    @property
    def sampling(self) -> Sampling:
        """Which frames are taken."""
        return Sampling(**self.spec["frame_sampling"])

    @property
    def files(self) -> Format:
        """What its files are."""
        return FORMATS[self.format]

    @property
    def rows(self) -> int:
        """Rows of the dataset: events, or the samples of a WebDataset."""
        return int(self.sessions[ROWS[self.files.kinds[0]]].sum())

    def to_json(self) -> bytes:
        """The stored form; its SHA-256 is `plan_sha256`."""
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
        """The plan that was stored; None for one of another version."""
        stored = orjson.loads(text)
        if stored.pop("plan_version") != PLAN_VERSION:
            return None
        return cls(**stored | {"sessions": pl.DataFrame(stored["sessions"], schema=SESSIONS)})

    def row_set_sha256(self) -> str:
        """The digest of all rows, as `verify` will find it in the files."""
        return row_set_sha256(
            pl.concat(
                self.sessions.select(
                    pl.lit(kind).alias("kind"),
                    "session_id",
                    pl.col(ROWS[kind]).alias("n_rows"),
                    pl.col(DIGESTS[kind]).alias("digest"),
                )
                for kind in self.files.kinds
            )
        )


def make_plan(
    *,
    format: FormatName,
    spec: dict[str, Any],
    versions: dict[str, int | None],
    graph: dict[str, int],
    sessions: pl.DataFrame,
) -> Plan:
    """The plan for these sessions, with as few buckets as keep its shards small.

    Args:
        sessions: columns of `SESSIONS`, any order.
    """
    ordered = sessions.select(SESSIONS.names()).cast(SESSIONS).sort("workflow", "bucket", "session_id")
    images = pl.col("image_bytes").sum() if FORMATS[format].carries_images else 0
    sizes = ordered.group_by("workflow", maintain_order=True).agg(EVENT_BYTES + images)
    bits = {workflow: bucket_bits(size) for workflow, size in sizes.iter_rows()}
    return Plan(
        format=format,
        spec=canonical_spec(spec),
        versions=versions,
        graph=graph,
        bucket_bits=bits,
        sessions=ordered,
    )


def bucket_bits(total_bytes: int) -> int:
    """The smallest k for which `2 ** k` buckets share these bytes in portions of at most `SHARD_BYTES`.

    It depends on the row set alone, not on history; k + 1 splits each shard in two.
    """
    bits = 0
    while bits < HASH_BITS and total_bytes > SHARD_BYTES << bits:
        bits += 1
    return bits


def without_sessions(plan: Plan, gone: Iterable[str]) -> Plan:
    """The plan without these sessions; the buckets stay, so that other shards keep their content."""
    return replace(plan, sessions=plan.sessions.filter(~pl.col("session_id").is_in(list(gone))))
