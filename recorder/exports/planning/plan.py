"""What an export will hold, fixed before its first shard: sessions, buckets, shards. Spec §4.3."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import deltalake
import orjson
import polars as pl
import pyarrow as pa

from recorder import __version__
from recorder.digest import canonical_json, sha256_of
from recorder.exports.formats import FORMATS, Format
from recorder.exports.schemas import fingerprint
from recorder.models.export import ExportFormat, FrameSampling, ShardKind
from recorder.rowset import row_set_sha256

#: Stored plans of another version are made anew: what they say of files no longer holds.
PLAN_VERSION = 3
#: A shard is kept below this size, by the estimate of `bucket_bits`.
SHARD_BYTES = 128 * 1024 * 1024
#: What a row is taken for, unless the payloads of its session have more.
BYTES_PER_EVENT = 512
#: What one task reads and sorts in memory, unless a single shard has more.
BYTES_AT_ONCE = 400_000 * BYTES_PER_EVENT
_HASH_BITS = 16
_ROWS: dict[ShardKind, str] = {"events": "rows", "frames": "frames", "samples": "frames"}
_DIGESTS: dict[ShardKind, str] = {
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

    format: ExportFormat
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
    def sampling(self) -> FrameSampling:
        """Which frames are taken."""
        return FrameSampling.model_validate(self.spec["frame_sampling"])

    @property
    def files(self) -> Format:
        """What its files are."""
        return FORMATS[self.format]

    @property
    def rows(self) -> int:
        """Rows of the dataset: events, or the samples of a WebDataset."""
        return int(self.sessions[_ROWS[self.files.kinds[0]]].sum())

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
                "sessions": self.sessions.to_dict(as_series=False),
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
                    pl.col(_ROWS[kind]).alias("n_rows"),
                    pl.col(_DIGESTS[kind]).alias("digest"),
                )
                for kind in self.files.kinds
            )
        )


@dataclass(frozen=True, kw_only=True)
class PlannedShard:
    """One file to write: the sessions of one workflow in one hash bucket, in one kind."""

    kind: ShardKind
    ending: str
    workflow: str
    bucket: int
    bucket_bits: int
    #: Digest of all that its bytes depend on: equal keys, equal bytes.
    content_key: str
    rows: int
    #: Rows of `SESSIONS` that have rows of this kind, ordered by id.
    sessions: pl.DataFrame

    @property
    def path(self) -> str:
        """Where the file lies, relative to the manifest."""
        name = f"{self.kind}-{self.bucket:05d}-of-{2**self.bucket_bits:05d}.{self.ending}"
        return f"data/workflow={self.workflow}/{name}"

    @property
    def bytes_read(self) -> int:
        """About what of the lake is in memory to write it: its rows, and for samples the events as well."""
        events = int(self.sessions.select(EVENT_BYTES).item()) if self.kind != "frames" else 0
        return events + (self.rows * BYTES_PER_EVENT if self.kind != "events" else 0)

    @property
    def bucket_range(self) -> tuple[int, int]:
        """The hash values it holds: from the first up to, not including, the second."""
        width = 2 ** (_HASH_BITS - self.bucket_bits)
        return self.bucket * width, (self.bucket + 1) * width


def make_plan(
    *,
    format: ExportFormat,
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
    while bits < _HASH_BITS and total_bytes > SHARD_BYTES << bits:
        bits += 1
    return bits


def without_sessions(plan: Plan, gone: Iterable[str]) -> Plan:
    """The plan without these sessions; the buckets stay, so that other shards keep their content."""
    return replace(plan, sessions=plan.sessions.filter(~pl.col("session_id").is_in(list(gone))))


def plan_shards(plan: Plan) -> list[PlannedShard]:
    """The files that a plan needs, by kind, workflow and bucket; empty buckets need none."""
    shards = [shard for kind in plan.files.kinds for shard in _shards_of_kind(plan, kind)]
    return sorted(shards, key=lambda shard: (shard.kind, shard.workflow, shard.bucket))


def read_together(shards: list[PlannedShard]) -> Iterator[list[PlannedShard]]:
    """Neighbours among planned shards, in portions that one read of the lake can hold.

    A lake file holds sessions of all buckets, so each read touches more of it than it needs; a read that
    serves several shards does so once.
    """
    portion: list[PlannedShard] = []
    held = 0
    for shard in shards:
        size = shard.bytes_read
        belongs = portion and (portion[0].kind, portion[0].workflow) == (shard.kind, shard.workflow)
        if portion and not (belongs and held + size <= BYTES_AT_ONCE):
            yield portion
            portion, held = [], 0
        portion.append(shard)
        held += size
    if portion:
        yield portion


def _shards_of_kind(plan: Plan, kind: ShardKind) -> Iterator[PlannedShard]:
    base = {
        "format": plan.format,
        "kind": kind,
        "schema": fingerprint(kind, plan.format),
        "writer": writer_versions(),
    }
    if kind != "events":
        base["sampling"] = plan.spec["frame_sampling"]
    for workflow, bits in plan.bucket_bits.items():
        members = plan.sessions.filter((pl.col("workflow") == workflow) & (pl.col(_ROWS[kind]) > 0))
        bucket = pl.col("bucket") // 2 ** (_HASH_BITS - bits)
        for (number,), sessions in members.sort("session_id").group_by(bucket, maintain_order=True):
            yield PlannedShard(
                kind=kind,
                ending=plan.files.ending,
                workflow=workflow,
                bucket=int(number),
                bucket_bits=bits,
                content_key=sha256_of({**base, "sessions": _content(kind, sessions)}),
                rows=int(sessions[_ROWS[kind]].sum()),
                sessions=sessions,
            )


def _content(kind: ShardKind, sessions: pl.DataFrame) -> list[tuple[Any, ...]]:
    facts = ["session_id", "split", "rows_sha256"]
    if kind != "frames":  # events stand in both
        facts += ["date", "outcome", "actor_kind"]
    if kind != "events":
        facts.append(_DIGESTS[kind])
    return sessions.select(facts).rows()
