"""Shards of a plan: files with the sessions of one workflow, hash bucket and split, in one kind.

Design §4 (shards).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import polars as pl

from recorder.datasets.formats import FileKind
from recorder.datasets.schemas import fingerprint_dataset_schema
from recorder.exports.planning.plan import (
    BYTES_PER_EVENT,
    DIGESTS,
    EVENT_BYTES,
    HASH_BITS,
    ROWS,
    SHARD_BYTES,
    Plan,
    list_library_versions,
)
from recorder.hashing import compute_sha256

#: Bytes that one task reads and sorts in memory: two full shards. Larger shards are read in portions.
BYTES_AT_ONCE = 2 * SHARD_BYTES


@dataclass(frozen=True, kw_only=True)
class PlannedShard:
    """One file to write: the sessions of one workflow in one hash bucket, in one kind.

    If the request divides rows into splits, each file holds one of them.
    """

    kind: FileKind
    ending: str
    workflow: str
    bucket: int
    bucket_bits: int
    #: `train`, `validation` or `test`; None where the request has no shares for the other two.
    split: str | None
    #: Digest of everything that its bytes depend on: equal keys, equal bytes.
    content_key: str
    rows: int
    #: Rows of `SESSIONS` that have rows of this kind, ordered by id.
    sessions: pl.DataFrame

    @property
    def path(self) -> str:
        """Path of the file, relative to the manifest."""
        kind = self.kind if self.split is None else f"{self.kind}-{self.split}"
        name = f"{kind}-{self.bucket:05d}-of-{2**self.bucket_bits:05d}.{self.ending}"
        return f"data/workflow={self.workflow}/{name}"

    @property
    def bytes_read(self) -> int:
        """Estimated bytes of the lake's rows in memory while the file is written."""
        events = int(self.sessions.select(EVENT_BYTES).item()) if self.kind != "frames" else 0
        return events + (self.rows * BYTES_PER_EVENT if self.kind != "events" else 0)

    @property
    def is_large(self) -> bool:
        """True if the events are read and written in portions, since they are too many to hold.

        It follows from the sessions alone, as the content key does: row groups of large shards end elsewhere.
        """
        return self.kind != "frames" and self.bytes_read > BYTES_AT_ONCE

    @property
    def bucket_range(self) -> tuple[int, int]:
        """Hash values of the bucket: from the first up to, not including, the second."""
        width = 2 ** (HASH_BITS - self.bucket_bits)
        return self.bucket * width, (self.bucket + 1) * width


def plan_shards(plan: Plan) -> list[PlannedShard]:
    """Return the files of a plan, by kind, workflow, bucket and split; empty ones are left out."""
    shards = [shard for kind in plan.file_format.kinds for shard in _plan_shards_of_kind(plan, kind)]
    return sorted(shards, key=lambda shard: (shard.kind, shard.workflow, shard.bucket, shard.split or ""))


def group_neighbouring_shards(shards: list[PlannedShard]) -> Iterator[list[PlannedShard]]:
    """Yield neighbouring shards in portions that one read of the lake can hold.

    A lake file has sessions of all buckets, so that each read covers more than one shard needs.
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


def cut_sessions_by_size(sessions: pl.DataFrame) -> Iterator[pl.DataFrame]:
    """Yield neighbouring sessions whose events can be read together, or a single session with more."""
    start = held = 0
    for index, session in enumerate(sessions.iter_slices(1)):
        size = int(session.select(EVENT_BYTES).item())
        if index > start and held + size > SHARD_BYTES:
            yield sessions[start:index]
            start, held = index, 0
        held += size
    yield sessions[start:]


def is_large_portion(sessions: pl.DataFrame) -> bool:
    """Return whether a result of `cut_sessions_by_size` is a session whose events are not read together."""
    return int(sessions.select(EVENT_BYTES).item()) > SHARD_BYTES


def _plan_shards_of_kind(plan: Plan, kind: FileKind) -> Iterator[PlannedShard]:
    base = {
        "format": plan.format,
        "kind": kind,
        "schema": fingerprint_dataset_schema(kind, plan.format),
        "writer": list_library_versions(),
    }
    if kind != "events":
        base["sampling"] = plan.spec["frame_sampling"]
    split = (pl.col("split") if plan.is_split else pl.lit(None, pl.String)).alias("file_split")
    for workflow, bits in plan.bucket_bits.items():
        members = plan.sessions.filter((pl.col("workflow") == workflow) & (pl.col(ROWS[kind]) > 0))
        groups = members.sort("session_id").group_by(
            pl.col("bucket") // 2 ** (HASH_BITS - bits), split, maintain_order=True
        )
        for (number, part), sessions in groups:
            yield PlannedShard(
                kind=kind,
                ending=plan.file_format.ending,
                workflow=workflow,
                bucket=int(number),
                bucket_bits=bits,
                split=part,
                content_key=compute_sha256({**base, "sessions": _list_shard_content(kind, sessions)}),
                rows=int(sessions[ROWS[kind]].sum()),
                sessions=sessions,
            )


def _list_shard_content(kind: FileKind, sessions: pl.DataFrame) -> list[tuple[Any, ...]]:
    """Return, for each session, the values that decide the bytes of a shard of this kind."""
    facts = ["session_id", "split", "rows_sha256"]
    if kind != "frames":  # events stand in both
        facts += ["date", "outcome", "actor_kind"]
    if kind != "events":
        facts.append(DIGESTS[kind])
    return sessions.select(facts).rows()
