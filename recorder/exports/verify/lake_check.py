"""Check of an export against the lake: select, count and hash its sessions again. Spec §4.3."""

import hashlib
import random
import secrets
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby, islice
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import orjson
import polars as pl

from recorder.datasets.errors import DatasetUnreadable
from recorder.datasets.manifest import Shard
from recorder.datasets.sources import FILE_ERRORS, copy_source_file
from recorder.datasets.webdataset import read_webdataset_samples
from recorder.exports.destinations import Destination, open_destination
from recorder.exports.large_sessions import iterate_session_events
from recorder.exports.planning.plan import SESSIONS, Sampling, select_frames
from recorder.exports.planning.sharding import cut_sessions_by_size, is_large_portion
from recorder.exports.verify.checked_rows import read_checked_events, read_checked_frames
from recorder.exports.verify.lake_selection import select_lake_check_sessions
from recorder.exports.verify.manifest_check import ANOTHER_MANIFEST, open_dataset_for_check
from recorder.models.export import ExportRow
from recorder.row_digests import (
    EventsDigest,
    compute_frames_digest,
    compute_samples_digest,
)
from recorder.runtime import Runtime
from recorder.storage.lake_reads import retry_lake_read
from recorder.storage.lake_schemas import LakeKind

_KEY = ("event_id", "t_ms", "ts", "type", "frame_id", "payload")
#: Columns outside the row digest, as a row of a file has them.
_BINDING = ("bound_frame_id", "frame_seq", "is_action")
#: With the largest payloads 64 MiB.
_ROWS_AT_ONCE = 1_024

_Result = TypeVar("_Result")


class LakeCheckReader:
    """Reader of the lake at the versions that the export pinned, or the newest once their files are gone.

    Purges and maintenance delete files of older versions; sealed rows never change.
    """

    def __init__(self, runtime: Runtime, row: ExportRow, manifest: dict[str, Any]) -> None:
        self._runtime = runtime
        self._row = row
        self._versions = {
            kind: table["delta_version"] for kind, table in manifest["source"]["tables"].items()
        }
        self._workflows = manifest["spec"]["workflow"]
        self._sampling = Sampling(**manifest["spec"]["frame_sampling"])

    def select_present(self, session_ids: set[str]) -> set[str]:
        """Return the sessions among these that were in the lake."""
        sessions = self._read(
            lambda: (
                self._select_sessions(self._scan_table("sessions"), session_ids)
                .select("session_id")
                .collect()
            )
        )
        return set(sessions["session_id"])

    def counts(self, kind: str, session_ids: set[str]) -> pl.DataFrame:
        """Return the number of rows of each of these sessions that has any: session_id, workflow, n."""
        return self._read(lambda: self._count_rows(kind, session_ids))

    def digests(self, kind: str, session_ids: set[str]) -> dict[str, str]:
        """Return the digest of the rows of each of these sessions, computed from the rows.

        Of a large session only some rows are in memory at once.
        """
        if kind != "events":
            return self._read(lambda: self._digest_rows(kind, session_ids))
        digests: dict[str, str] = {}
        for sessions in cut_sessions_by_size(self._read(lambda: self._measure_sessions(session_ids))):
            if is_large_portion(sessions):
                [session] = sessions.iter_rows(named=True)
                digests[session["session_id"]] = self._digest_large_session(session)
            else:
                digests |= self._read(partial(self._digest_rows, kind, set(sessions["session_id"])))
        return digests

    def _measure_sessions(self, session_ids: set[str]) -> pl.DataFrame:
        """Return these sessions with the columns of a plan; those that the lake lacks are null."""
        rows = self._select_sessions(self._scan_table("sessions"), session_ids)
        known = rows.with_columns(rows=pl.col("event_count")).sort("session_id").collect()
        return known.select(
            (pl.col(name) if name in known.columns else pl.lit(None)).cast(kind).alias(name)
            for name, kind in SESSIONS.items()
        )

    def _digest_large_session(self, session: dict[str, Any]) -> str:
        """Return the digest of the events of one session, of the newest version: sealed rows never change."""
        portions = iterate_session_events(self._runtime.lake, self._row.tenant, session)
        instant = pl.col("ts").dt.epoch("us")
        members = (
            row
            for portion in portions
            for row in portion.with_columns(instant).select(*_KEY, *_BINDING).iter_rows()
        )
        return _digest_lake_events(members)

    def _read(self, read: Callable[[], _Result]) -> _Result:
        """Return the result of a read, of the newest versions if files of the pinned ones are gone."""
        try:
            return read()
        except FileNotFoundError:
            self._versions = {}
            return retry_lake_read(read)

    def _count_rows(self, kind: str, session_ids: set[str]) -> pl.DataFrame:
        """Return the rows that the lake has of each session for files of this kind."""
        rows = self._select_sessions(
            self._scan_table("events") if kind == "events" else self._scan_frames(), session_ids
        )
        return rows.group_by("session_id", "workflow").agg(pl.len().cast(pl.Int64).alias("n")).collect()

    def _digest_rows(self, kind: str, session_ids: set[str]) -> dict[str, str]:
        """Return the digest of each session's lake rows, to be compared with that of its exported rows."""
        match kind:
            case "events":
                rows = self._select_sessions(self._scan_table("events"), session_ids)
                frames = self._scan_table("frames").select(
                    "session_id",
                    pl.col("seq").alias("frame_seq"),
                    pl.col("frame_id").alias("bound_frame_id"),
                )
                bound = rows.join(frames, on=["session_id", "frame_seq"], how="left")
                members = bound.sort("session_id", "t_ms", "event_id").select("session_id", *_KEY, *_BINDING)
                return _digest_rows_by_session(
                    members.with_columns(pl.col("ts").dt.epoch("us")).collect(), _digest_lake_events
                )
            case "frames":
                rows = self._select_sessions(self._scan_frames(), session_ids).sort(
                    "session_id", "t_ms", "frame_id"
                )
                return _digest_rows_by_session(
                    rows.select("session_id", "frame_id", "sha256").collect(), compute_frames_digest
                )
            case _:
                return _digest_rows_by_session(
                    self._select_sampled_frames(session_ids), compute_samples_digest
                )

    def _select_sampled_frames(self, session_ids: set[str]) -> pl.DataFrame:
        """Return the sampled frames with the ids of the events bound to them, in their order."""
        bound = (
            self._select_sessions(self._scan_table("events"), session_ids)
            .sort("session_id", "t_ms", "event_id")
            .group_by("session_id", pl.col("frame_seq").alias("seq"), maintain_order=True)
            .agg("event_id")
        )
        rows = self._select_sessions(self._scan_frames(), session_ids).join(
            bound, on=["session_id", "seq"], how="left"
        )
        columns = ("session_id", "frame_id", "sha256", pl.col("event_id").fill_null([]))
        return rows.sort("session_id", "t_ms", "frame_id").select(*columns).collect()

    def _scan_frames(self) -> pl.LazyFrame:
        return select_frames(self._scan_table("frames"), self._sampling)

    def _select_sessions(self, rows: pl.LazyFrame, session_ids: set[str]) -> pl.LazyFrame:
        wanted = pl.LazyFrame({"session_id": sorted(session_ids)}, schema={"session_id": pl.String})
        return rows.join(wanted, on="session_id", how="semi")

    def _scan_table(self, kind: LakeKind) -> pl.LazyFrame:
        rows = self._runtime.lake.scan(kind, self._row.tenant, version=self._versions.get(kind))
        return rows.filter(pl.col("workflow").is_in(self._workflows))


def _digest_lake_events(rows: Iterable[tuple[Any, ...]]) -> str:
    """Return one digest of the row set's members of events and of the frames that they are bound to."""
    digest, bindings = EventsDigest(), hashlib.sha256()
    remaining = iter(rows)
    while portion := list(islice(remaining, _ROWS_AT_ONCE)):
        digest.update(row[: len(_KEY)] for row in portion)
        bindings.update(orjson.dumps([row[len(_KEY) :] for row in portion]))
    return digest.hexdigest() + bindings.hexdigest()


def _digest_rows_by_session(rows: pl.DataFrame, digest: Callable[[Any], str]) -> dict[str, str]:
    grouped = groupby(rows.iter_rows(), key=lambda row: row[0])
    return {session_id: digest(row[1:] for row in members) for session_id, members in grouped}


#: Rows after which no further file is hashed; smaller datasets are hashed whole.
ROWS_HASHED = 200_000
_MOST_NAMED = 5


@dataclass
class LakeReport:
    """Result of a comparison of a dataset with the lake."""

    #: Sessions that the request selects now, from the pinned lake.
    sessions: int = 0
    #: Workflow → rows that these have in the lake: events, or the samples of a WebDataset.
    rows: dict[str, int] = field(default_factory=dict)
    #: Seed that selected the hashed files: equal seeds select the same files.
    seed: int = 0
    files_hashed: int = 0
    files: int = 0
    sessions_hashed: int = 0
    rows_hashed: int = 0
    #: Differences, one sentence each; empty for a valid dataset.
    problems: list[str] = field(default_factory=list)


def compare_export_with_lake(
    runtime: Runtime, row: ExportRow, *, seed: int | None = None, rows_hashed: int = ROWS_HASHED
) -> LakeReport:
    """Select, count and hash again the sessions that a completed export should hold.

    A session that was deleted since the export began may be in the files or not.

    Args:
        runtime: deployment.
        row: row of the export.
        seed: seed that selects the files to hash; by default a random one.
        rows_hashed: after so many rows no further file is hashed.

    Raises:
        Unavailable: if the lake or the destination does not answer.
    """
    destination = open_destination(row, runtime.settings)
    text = open_dataset_for_check(destination).read_manifest()
    report = LakeReport(seed=secrets.randbits(32) if seed is None else seed)
    if hashlib.sha256(text).hexdigest() != row.manifest_sha256:
        report.problems.append(ANOTHER_MANIFEST)
        return report
    manifest = orjson.loads(text)
    lake = LakeCheckReader(runtime, row, manifest)
    report.files = len(manifest["shards"])
    expected, doubtful = select_lake_check_sessions(runtime, row, manifest["spec"])
    in_lake = lake.select_present(expected | doubtful)
    expected, doubtful = expected & in_lake, doubtful & in_lake
    report.sessions = len(expected)
    for kind in sorted({"events", "frames"} if manifest["format"] != "webdataset" else {"samples"}):
        counts = lake.counts(kind, expected | doubtful)
        _check_counts_against_lake(report, manifest, kind, counts, doubtful)
    _check_rows_against_lake(report, destination, manifest, lake, expected | doubtful, rows_hashed)
    return report


def _check_counts_against_lake(
    report: LakeReport, manifest: dict[str, Any], kind: str, counts: pl.DataFrame, doubtful: set[str]
) -> None:
    """Compare the rows and sessions of each workflow in the manifest and in the lake."""
    for workflow in manifest["spec"]["workflow"]:
        entries = [
            shard for shard in manifest["shards"] if (shard["kind"], shard["workflow"]) == (kind, workflow)
        ]
        here = counts.filter(pl.col("workflow") == workflow)
        sure = here.filter(~pl.col("session_id").is_in(sorted(doubtful)))
        if kind != "frames":
            report.rows[workflow] = int(sure["n"].sum())
        for name, listed, least, most in (
            ("rows", sum(entry["rows"] for entry in entries), int(sure["n"].sum()), int(here["n"].sum())),
            ("sessions", sum(entry["sessions"] for entry in entries), sure.height, here.height),
        ):
            if not least <= listed <= most:
                lake = f"{least}" if least == most else f"{least} to {most}"
                report.problems.append(
                    f"{kind} of {workflow}: the dataset has {listed} {name}, the lake has {lake}."
                )


def _check_rows_against_lake(
    report: LakeReport,
    destination: Destination,
    manifest: dict[str, Any],
    lake: LakeCheckReader,
    expected: set[str],
    rows_hashed: int,
) -> None:
    """Hash the rows of randomly selected files, and those of their sessions in the lake."""
    entries = sorted(manifest["shards"], key=lambda entry: str(entry["path"]))
    random.Random(report.seed).shuffle(entries)  # noqa: S311  # a sample, no secret
    hashed: set[str] = set()
    for entry in entries:
        if report.rows_hashed >= rows_hashed:
            break
        try:
            digests = _read_file_digests_for_lake(destination, entry, manifest["format"])
        except (DatasetUnreadable, *FILE_ERRORS):
            report.problems.append(f"{entry['path']} cannot be read.")
            continue
        report.files_hashed += 1
        report.rows_hashed += entry["rows"]
        hashed |= set(digests)
        report.sessions_hashed = len(hashed)
        in_lake = lake.digests(entry["kind"], set(digests))
        strange = set(digests) - expected
        changed = {
            session_id
            for session_id, digest in digests.items()
            if session_id not in strange and in_lake.get(session_id) != digest
        }
        for wrong, words in (
            (strange, "sessions that the request does not take"),
            (changed, "sessions whose rows are not those of the lake"),
        ):
            if wrong:
                named = ", ".join(sorted(wrong)[:_MOST_NAMED]) + (" …" if len(wrong) > _MOST_NAMED else "")
                report.problems.append(f"{entry['path']} holds {len(wrong)} {words}: {named}.")


def _read_file_digests_for_lake(
    destination: Destination, entry: dict[str, Any], format: Any
) -> dict[str, str]:
    """Return the digest of each session in a file, computed from its rows.

    Raises:
        FileGone, DatasetUnreadable: if it is missing, broken, or another file than was listed.
    """
    with tempfile.TemporaryDirectory(prefix="recorder-lake-check-") as folder:
        path = copy_source_file(
            open_dataset_for_check(destination), msgspec.convert(entry, Shard), Path(folder)
        )
        with path.open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != entry["sha256"]:
                raise DatasetUnreadable("has another SHA-256 than the manifest says")
        match entry["kind"]:
            case "events":
                return dict(
                    _digest_sorted_rows_by_session(
                        read_checked_events(path, format), slice(1, None), _digest_lake_events
                    )
                )
            case "frames":
                return dict(
                    _digest_sorted_rows_by_session(
                        read_checked_frames(path, format), slice(1, 3), compute_frames_digest
                    )
                )
            case _:
                return dict(
                    _digest_sorted_rows_by_session(
                        read_webdataset_samples(path), slice(1, 4), compute_samples_digest
                    )
                )


def _digest_sorted_rows_by_session(
    rows: Iterator[Any], members: slice, digest: Callable[[Any], str]
) -> Iterator[tuple[str, str]]:
    for session_id, of_session in groupby(rows, key=lambda row: row.session_id):
        yield session_id, digest(tuple(row)[members] for row in of_session)
