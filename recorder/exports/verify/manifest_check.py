"""Check of a dataset against its manifest: bytes, rows, pictures, row set. Spec §2.5, contract §9."""

import hashlib
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl

from recorder.client.errors import ApiError, ClientError, Unreachable
from recorder.datasets.errors import DatasetUnreadable, FileGone, ManifestRefused, ManifestUnreadable
from recorder.datasets.formats import FileKind, FormatName
from recorder.datasets.manifest import Manifest, Shard, parse_manifest
from recorder.datasets.sources import (
    FILE_ERRORS,
    DatasetSource,
    DestinationSource,
    SourceDirectory,
    copy_source_file,
    open_dataset_source,
)
from recorder.datasets.unlisted_files import find_unlisted_files
from recorder.exports.verify.file_contents import MOST_PROBLEMS, FileContents, read_contents
from recorder.row_digests import SessionRows, row_set_sha256

#: Called with the bytes hashed so far and the bytes in all.
Progress = Callable[[int, int], None]
#: Reads a local file: its path, its path in the dataset, its kind and its format.
ReadFile = Callable[[Path, str, FileKind, FormatName], FileContents]
ANOTHER_MANIFEST = "The manifest is not the one that the export wrote; no file was read."
_PIECE_BYTES = 4 * 1024 * 1024


def open_dataset_for_check(source: str | Path | SourceDirectory) -> DatasetSource:
    """Return the source of a dataset: a path, an address, or an opened destination.

    Raises:
        ManifestUnreadable: if no library opens the address.
    """
    return open_dataset_source(str(source)) if isinstance(source, str | Path) else DestinationSource(source)


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
        if len(self.problems) < MOST_PROBLEMS:
            self.problems.append(sentence)
        elif len(self.problems) == MOST_PROBLEMS:
            self.problems.append("There are more problems; the list ends here.")


def verify_manifest(
    source: str | Path | SourceDirectory,
    *,
    manifest_sha256: str | None = None,
    on_progress: Progress | None = None,
    read_file: ReadFile = read_contents,
) -> VerifyReport:
    """Check a dataset's files against its manifest, with nothing but these files.

    A portion of one file is in memory at a time, and the digests of the sessions.

    Args:
        source: path of a manifest or its folder, any address fsspec knows, a signed `manifest_url`, or an
            opened destination.
        manifest_sha256: digest that the manifest must have; if it has another, no file is opened.
        on_progress: called with the bytes checked so far and the bytes in all.
        read_file: reads a file whose bytes are the listed ones; `ReadingProcess.read` limits memory and time.

    Raises:
        ManifestUnreadable: if there is no manifest, or none of this service.
        Unavailable: if a destination does not answer.
        Unreachable: if the service of the address does not answer.
    """
    dataset = open_dataset_for_check(source)
    try:
        text = dataset.read_manifest()
    except Unreachable:
        raise
    except ClientError as error:
        raise ManifestUnreadable(answer=_describe_answer(error)) from error
    digest = hashlib.sha256(text).hexdigest()
    if manifest_sha256 not in (None, digest):
        return VerifyReport("", digest, problems=[ANOTHER_MANIFEST])
    manifest = parse_manifest(text)
    check = _ManifestCheck(manifest, on_progress or (lambda done, total: None), read_file)
    with tempfile.TemporaryDirectory(prefix="recorder-verify-") as folder:
        for shard in manifest.shards:
            try:
                path = copy_source_file(dataset, shard, Path(folder))
            except FILE_ERRORS as error:
                check.report.add(f"{shard.path} {_explain_manifest_check_error(error)}.")
                check.advance(shard.size_bytes)
            else:
                check.check_file(path, shard)
    report_unlisted_files(check.report, dataset, manifest.format, manifest.shards)
    return check.finish()


def _describe_answer(error: ClientError) -> str:
    """Return status and code of a service's answer; nothing of its text, which may be hostile."""
    if not isinstance(error, ApiError):
        return ""
    return f"{error.status} {error.code}" if error.code.isidentifier() else str(error.status)


def report_unlisted_files(
    report: VerifyReport, source: DatasetSource, format: FormatName, shards: list[Shard]
) -> None:
    """Add a problem for each file that the manifest does not list and that tools read with the dataset."""
    for path in find_unlisted_files(source, format, shards):
        shown = path if path.isprintable() else ascii(path)
        report.add(f"{shown} is not in the manifest, and tools read its rows with those of the dataset.")


class _ManifestCheck:
    """Running sums of a check, and its report."""

    def __init__(self, manifest: Manifest, on_progress: Progress, read_file: ReadFile) -> None:
        self.report = VerifyReport(manifest.export_id, manifest.sha256)
        self._manifest = manifest
        self._on_progress = on_progress
        self._read_file = read_file
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
            contents = self._read_file(path, shard.path, shard.kind, self._manifest.format)
        except (DatasetUnreadable, OSError) as error:
            self.report.add(f"{shard.path} {_explain_manifest_check_error(error)}.")
            return
        for problem in contents.problems:
            self.report.add(problem)
        sessions = contents.sessions
        rows = sum(session.n_rows for session in sessions)
        if rows != shard.rows or len(sessions) != shard.sessions:
            self.report.add(
                f"{shard.path} has {rows} rows of {len(sessions)} sessions, the manifest says "
                f"{shard.rows} of {shard.sessions}."
            )
        if shard.kind != "frames":
            self.report.rows += rows
        if shard.kind != "events":
            self.report.frames += rows
        self._digests += sessions
        self._actions += contents.actions

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


def _explain_manifest_check_error(error: Exception) -> str:
    """Return the end of a sentence that starts with the path of the file."""
    if isinstance(error, DatasetUnreadable):
        return str(error)
    if isinstance(error, FileGone):
        return "is missing"
    if isinstance(error, ManifestRefused):
        return error.reason
    return f"cannot be read ({type(error).__name__})"
