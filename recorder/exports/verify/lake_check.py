"""Whether a dataset holds what the lake holds: sessions chosen, rows counted and hashed anew. Spec §4.3.

It looks at the request, the lake at the pinned versions, and the files. Plan, shard rows and what sealing
noted of sessions are not asked, so that what is wrong in them shows.
"""

import hashlib
import random
import secrets
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

import msgspec
import orjson
import polars as pl

from recorder.exports.destinations import Destination, open_destination
from recorder.exports.verify.archives import read_samples
from recorder.exports.verify.checking import ANOTHER_MANIFEST
from recorder.exports.verify.contents import Unreadable, read_events, read_frames
from recorder.exports.verify.lake_side import PinnedLake, choose_sessions
from recorder.exports.verify.listing import Entry
from recorder.exports.verify.places import NotFetched, open_place
from recorder.models.export_rows import ExportRow
from recorder.rowset import events_digest, frames_digest, samples_digest
from recorder.runtime import Runtime

#: Files are hashed anew, in random order, until so many rows were; smaller datasets are hashed whole.
ROWS_HASHED = 200_000
_NAMED = 5


@dataclass
class LakeReport:
    """What a comparison of a dataset with the lake found."""

    #: Sessions that the request takes now, from the pinned lake.
    sessions: int = 0
    #: Workflow → rows that these have in the lake: events, or the samples of a WebDataset.
    rows: dict[str, int] = field(default_factory=dict)
    #: Which files were drawn to be hashed: equal seeds draw alike.
    seed: int = 0
    files_hashed: int = 0
    files: int = 0
    sessions_hashed: int = 0
    rows_hashed: int = 0
    #: What differs, one sentence each; empty if all is well.
    problems: list[str] = field(default_factory=list)


def compare_with_lake(
    runtime: Runtime, row: ExportRow, *, seed: int | None = None, rows_hashed: int = ROWS_HASHED
) -> LakeReport:
    """Choose, count and hash again what a completed export should hold.

    A session that was deleted since the export began may be in the files or not.

    Args:
        seed: draws the files that are hashed; a fresh one unless told.
        rows_hashed: after so many rows no further file is hashed.

    Raises:
        Unavailable: if the lake or the destination does not answer.
    """
    destination = open_destination(row, runtime.settings)
    text = open_place(destination).manifest()
    report = LakeReport(seed=secrets.randbits(32) if seed is None else seed)
    if hashlib.sha256(text).hexdigest() != row.manifest_sha256:
        report.problems.append(ANOTHER_MANIFEST)
        return report
    manifest = orjson.loads(text)
    lake = PinnedLake(runtime, row, manifest)
    report.files = len(manifest["shards"])
    taken, doubtful = choose_sessions(runtime, row, manifest["spec"], lake.session_ids())
    report.sessions = len(taken)
    for kind in sorted({"events", "frames"} if manifest["format"] != "webdataset" else {"samples"}):
        counts = lake.counts(kind, taken | doubtful)
        _compare_counts(report, manifest, kind, counts, doubtful)
    _compare_rows(report, destination, manifest, lake, taken | doubtful, rows_hashed)
    return report


def _compare_counts(
    report: LakeReport, manifest: dict[str, Any], kind: str, counts: pl.DataFrame, doubtful: set[str]
) -> None:
    """Rows and sessions of each workflow, as the manifest has them and as the lake does."""
    for workflow in manifest["spec"]["workflow"]:
        entries = [one for one in manifest["shards"] if (one["kind"], one["workflow"]) == (kind, workflow)]
        here = counts.filter(pl.col("workflow") == workflow)
        sure = here.filter(~pl.col("session_id").is_in(sorted(doubtful)))
        if kind != "frames":
            report.rows[workflow] = int(sure["n"].sum())
        for what, found, least, most in (
            ("rows", sum(one["rows"] for one in entries), int(sure["n"].sum()), int(here["n"].sum())),
            ("sessions", sum(one["sessions"] for one in entries), sure.height, here.height),
        ):
            if not least <= found <= most:
                lake = f"{least}" if least == most else f"{least} to {most}"
                report.problems.append(
                    f"{kind} of {workflow}: the dataset has {found} {what}, the lake has {lake}."
                )


def _compare_rows(
    report: LakeReport,
    destination: Destination,
    manifest: dict[str, Any],
    lake: PinnedLake,
    expected: set[str],
    rows_hashed: int,
) -> None:
    """Hash the rows of files that were drawn, and those of their sessions in the lake."""
    entries = sorted(manifest["shards"], key=lambda entry: str(entry["path"]))
    random.Random(report.seed).shuffle(entries)  # noqa: S311  # a sample, no secret
    hashed: set[str] = set()
    for entry in entries:
        if report.rows_hashed >= rows_hashed:
            break
        try:
            found = _read_digests(destination, entry, manifest["format"])
        except (Unreadable, NotFetched):
            report.problems.append(f"{entry['path']} cannot be read.")
            continue
        report.files_hashed += 1
        report.rows_hashed += entry["rows"]
        hashed |= set(found)
        report.sessions_hashed = len(hashed)
        in_lake = lake.digests(entry["kind"], set(found))
        strange = set(found) - expected
        changed = {one for one, digest in found.items() if one not in strange and in_lake.get(one) != digest}
        for wrong, words in (
            (strange, "sessions that the request does not take"),
            (changed, "sessions whose rows are not those of the lake"),
        ):
            if wrong:
                named = ", ".join(sorted(wrong)[:_NAMED]) + (" …" if len(wrong) > _NAMED else "")
                report.problems.append(f"{entry['path']} holds {len(wrong)} {words}: {named}.")


def _read_digests(destination: Destination, entry: dict[str, Any], format: Any) -> dict[str, str]:
    """The digest of each session in a file, over the rows that it holds.

    Raises:
        NotFetched, Unreadable: if it is missing, broken, or another file than was listed.
    """
    with tempfile.TemporaryDirectory(prefix="recorder-lake-check-") as folder:
        path = open_place(destination).fetch(msgspec.convert(entry, Entry), Path(folder))
        with path.open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != entry["sha256"]:
                raise Unreadable("has another SHA-256 than the manifest says")
        match entry["kind"]:
            case "events":
                return dict(_digests(read_events(path, format), slice(1, 7), events_digest))
            case "frames":
                return dict(_digests(read_frames(path, format), slice(1, 3), frames_digest))
            case _:
                return dict(_digests(read_samples(path), slice(1, 4), samples_digest))


def _digests(rows: Iterator[Any], members: slice, digest: Callable[[Any], str]) -> Iterator[tuple[str, str]]:
    for session_id, of_session in groupby(rows, key=lambda row: row.session_id):
        yield session_id, digest([tuple(row)[members] for row in of_session])
