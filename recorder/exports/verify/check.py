"""Check of a dataset against its manifest: bytes, rows, pictures, row set. Spec §2.5, contract §9."""

import hashlib
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import TypeVar

import polars as pl

from recorder.client.errors import ClientError
from recorder.datasets.errors import FileGone, ManifestRefused, ManifestUnreadable, Unreadable
from recorder.datasets.formats import FormatName
from recorder.datasets.manifest import Manifest, Shard, parse_manifest
from recorder.datasets.sources import (
    FILE_ERRORS,
    DatasetSource,
    DestinationSource,
    Directory,
    copy_file,
    open_source,
)
from recorder.datasets.webdataset import Sample, read_samples
from recorder.exports.verify.rows import VerifiedEvent, VerifiedFrame, read_events, read_frames
from recorder.rowset import (
    SessionRows,
    events_digest,
    frames_digest,
    row_set_sha256,
    samples_digest,
)

#: Called with the bytes hashed so far and the bytes in all.
Progress = Callable[[int, int], None]
ANOTHER_MANIFEST = "The manifest is not the one that the export wrote; no file was read."
#: Most problems that are listed: a dataset that is wholly wrong needs no line for each of its pictures.
_MOST_PROBLEMS = 200
_PIECE_BYTES = 4 * 1024 * 1024
_Pictured = TypeVar("_Pictured", VerifiedFrame, Sample)


def open_dataset(source: str | Path | Directory) -> DatasetSource:
    """Return the source of a dataset: a path, an address, or an opened destination.

    Raises:
        ManifestUnreadable: if no library opens the address.
    """
    return open_source(str(source)) if isinstance(source, str | Path) else DestinationSource(source)


@dataclass
class VerifyReport:
    """Result of a check of a dataset."""

    export_id: str
    manifest_sha256: str
    shards: int = 0
    #: Events, or the samples of a WebDataset.
    rows: int = 0
    frames: int = 0
    size_bytes: int = 0
    row_set_sha256: str = ""
    #: Differences, one sentence each; empty for a valid dataset.
    problems: list[str] = field(default_factory=list)

    @property
    def is_valid(self) -> bool:
        """True if files and manifest agree in everything."""
        return not self.problems

    def add(self, sentence: str) -> None:
        """Note a problem; after 200 sentences only that there are more."""
        if len(self.problems) < _MOST_PROBLEMS:
            self.problems.append(sentence)
        elif len(self.problems) == _MOST_PROBLEMS:
            self.problems.append("There are more problems; the list ends here.")


def verify_manifest(
    source: str | Path | Directory,
    *,
    manifest_sha256: str | None = None,
    on_progress: Progress | None = None,
) -> VerifyReport:
    """Recompute from the files what a manifest says of them; nothing else is needed.

    A portion of one file is in memory at a time, and the digests of the sessions.

    Args:
        source: path of a manifest or its folder, any address fsspec knows, a signed `manifest_url`, or an
            opened destination.
        manifest_sha256: digest that the manifest must have; if it has another, no file is opened.
        on_progress: called with the bytes checked so far and the bytes in all.

    Raises:
        ManifestUnreadable: if there is no manifest, or none of this service.
        Unavailable: if a destination does not answer.
    """
    dataset = open_dataset(source)
    try:
        text = dataset.read_manifest()
    except ClientError as error:
        raise ManifestUnreadable from error
    digest = hashlib.sha256(text).hexdigest()
    if manifest_sha256 not in (None, digest):
        return VerifyReport("", digest, problems=[ANOTHER_MANIFEST])
    manifest = parse_manifest(text)
    check = _Check(manifest, on_progress or (lambda done, total: None))
    with tempfile.TemporaryDirectory(prefix="recorder-verify-") as folder:
        for shard in manifest.shards:
            try:
                path = copy_file(dataset, shard, Path(folder))
            except FILE_ERRORS as error:
                check.report.add(f"{shard.path} {_explain_error(error)}.")
                check.advance(shard.size_bytes)
            else:
                check.check_file(path, shard)
    return check.finish()


class _Check:
    """Running sums of a check, and its report."""

    def __init__(self, manifest: Manifest, on_progress: Progress) -> None:
        self.report = VerifyReport(manifest.export_id, manifest.sha256)
        self._manifest = manifest
        self._on_progress = on_progress
        self._done_bytes = 0
        self._total_bytes = sum(shard.size_bytes for shard in manifest.shards)
        self._digests: list[SessionRows] = []
        self._actions = 0

    def advance(self, n_bytes: int) -> None:
        """Report that more bytes are checked."""
        self._done_bytes = min(self._done_bytes + n_bytes, self._total_bytes)
        self._on_progress(self._done_bytes, self._total_bytes)

    def check_file(self, path: Path, shard: Shard) -> None:
        """Check one file."""
        self.report.shards += 1
        try:
            if not self._has_listed_bytes(path, shard):
                return
            digests = list(self._digest_sessions(path, shard, self._manifest.format))
        except (Unreadable, OSError) as error:
            self.report.add(f"{shard.path} {_explain_error(error)}.")
            return
        rows = sum(session.n_rows for session in digests)
        if rows != shard.rows or len(digests) != shard.sessions:
            self.report.add(
                f"{shard.path} has {rows} rows of {len(digests)} sessions, the manifest says "
                f"{shard.rows} of {shard.sessions}."
            )
        if shard.kind != "frames":
            self.report.rows += rows
        if shard.kind != "events":
            self.report.frames += rows
        self._digests += digests

    def finish(self) -> VerifyReport:
        """Compare the sums with the manifest and return the report."""
        report, totals = self.report, self._manifest.totals
        report.row_set_sha256 = row_set_sha256(
            pl.DataFrame(self._digests, schema=[*SessionRows._fields], orient="row")
        )
        if report.row_set_sha256 != self._manifest.row_set_sha256:
            report.add("The rows in the files are not the row set of the manifest.")
        for name, counted, listed in (
            ("shards", report.shards, totals.shards),
            ("rows", report.rows, totals.rows),
            ("frames", report.frames, totals.frames),
            ("actions", self._actions, totals.actions),
            ("bytes", report.size_bytes, totals.bytes),
        ):
            if counted != listed:
                report.add(f"The files hold {counted} {name}, the manifest says {listed}.")
        return report

    def _has_listed_bytes(self, path: Path, shard: Shard) -> bool:
        """Return whether the file is the listed one; another is not parsed, its rows count as unread."""
        digest, size = hashlib.sha256(), 0
        with path.open("rb") as file:
            while piece := file.read(_PIECE_BYTES):
                digest.update(piece)
                size += len(piece)
                self.advance(len(piece))
        self.report.size_bytes += size
        if size != shard.size_bytes:
            self.report.add(f"{shard.path} has {size} bytes, the manifest says {shard.size_bytes}.")
        if digest.hexdigest() != shard.sha256:
            self.report.add(
                f"{shard.path} has another SHA-256 than the manifest says; its rows were not read."
            )
        return (size, digest.hexdigest()) == (shard.size_bytes, shard.sha256)

    def _digest_sessions(self, path: Path, shard: Shard, format: FormatName) -> Iterator[SessionRows]:
        """Yield the digest of each session in a file, in the order of the file."""
        match shard.kind:
            case "events":
                for session_id, events in groupby(read_events(path, format), key=_get_session_id):
                    keys = [event.key for event in self._check_bindings(events, shard)]
                    yield SessionRows("events", session_id, len(keys), events_digest(keys))
            case "frames":
                for session_id, frames in groupby(read_frames(path, format), key=_get_session_id):
                    pairs = [(frame.frame_id, frame.sha256) for frame in self._check_images(frames, shard)]
                    yield SessionRows("frames", session_id, len(pairs), frames_digest(pairs))
            case "samples":
                for session_id, samples in groupby(read_samples(path), key=_get_session_id):
                    bound = [sample[1:4] for sample in self._check_images(samples, shard)]
                    yield SessionRows("samples", session_id, len(bound), samples_digest(bound))

    def _check_bindings(self, events: Iterable[VerifiedEvent], shard: Shard) -> Iterator[VerifiedEvent]:
        """Yield the same events; count actions, and check that each names its frame wholly or not at all."""
        for event in events:
            self._actions += event.is_action
            if (event.bound_frame_id is None) != (event.frame_seq is None):
                self.report.add(f"{shard.path} names half of an event's frame ({event.event_id!r:.80}).")
            yield event

    def _check_images(self, rows: Iterable[_Pictured], shard: Shard) -> Iterator[_Pictured]:
        """Yield the same rows; compare each picture with the digest in its row."""
        for row in rows:
            if row.image_sha256 not in (None, row.sha256):
                self.report.add(
                    f"{shard.path} holds another picture than its row says ({row.frame_id!r:.80})."
                )
            if isinstance(row, Sample):
                self._actions += row.actions
            yield row


def _get_session_id(row: VerifiedEvent | VerifiedFrame | Sample) -> str:
    return row.session_id


def _explain_error(error: Exception) -> str:
    """Return the end of a sentence that starts with the path of the file."""
    if isinstance(error, Unreadable):
        return str(error)
    if isinstance(error, FileGone):
        return "is missing"
    if isinstance(error, ManifestRefused):
        return error.reason
    return f"cannot be read ({type(error).__name__})"
