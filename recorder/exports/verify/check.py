"""What a check of a dataset found. Contract §9 (`recorder verify`)."""

import hashlib
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import TypeVar

import polars as pl

from recorder.exports.formats import FormatName
from recorder.exports.verify.archives import Sample, read_samples
from recorder.exports.verify.contents import Event, Frame, Unreadable, read_events, read_frames
from recorder.exports.verify.dataset_source import Directory, NotFetched, open_place
from recorder.exports.verify.listing import Entry, Listing, parse_listing
from recorder.rowset import SessionRows, events_digest, frames_digest, row_set_sha256, samples_digest

#: A dataset that is wholly wrong needs no line for each of its pictures.
_SENTENCES = 200


@dataclass
class VerifyReport:
    """What a check of a dataset found."""

    export_id: str
    manifest_sha256: str
    shards: int = 0
    #: Events, or the samples of a WebDataset.
    rows: int = 0
    frames: int = 0
    size_bytes: int = 0
    row_set_sha256: str = ""
    #: What is wrong, one sentence each; empty if all is well.
    problems: list[str] = field(default_factory=list)

    @property
    def is_valid(self) -> bool:
        """Whether files and manifest agree in everything."""
        return not self.problems

    def add(self, sentence: str) -> None:
        """Note what is wrong; after 200 sentences only that there is more."""
        if len(self.problems) < _SENTENCES:
            self.problems.append(sentence)
        elif len(self.problems) == _SENTENCES:
            self.problems.append("More is wrong; the list ends here.")


_Shown = TypeVar("_Shown", Frame, Sample)
#: Told how many bytes have been hashed, and how many there are.
Progress = Callable[[int, int], None]
_PIECE_BYTES = 4 * 1024 * 1024
ANOTHER_MANIFEST = "The manifest is not the one that the export wrote; no file was read."


def verify_manifest(
    source: str | Path | Directory,
    *,
    manifest_sha256: str | None = None,
    on_progress: Progress | None = None,
) -> VerifyReport:
    """Recompute from the files what a manifest says of them; needs nothing but them.

    A portion of one file is in memory at a time, and the digests of the sessions.

    Args:
        source: path of a manifest or its folder, any address fsspec knows, a signed `manifest_url`, or an
            opened destination.
        manifest_sha256: what the manifest must hash to, where that is known; no file of another is opened.
        on_progress: told how many bytes of files have been checked, and how many there are.

    Raises:
        ManifestUnreadable: if there is no manifest, or none of ours.
        Unavailable: if a destination does not answer.
    """
    place = open_place(source)
    text = place.manifest()
    found = hashlib.sha256(text).hexdigest()
    if manifest_sha256 not in (None, found):
        return VerifyReport("", found, problems=[ANOTHER_MANIFEST])
    listing = parse_listing(text)
    check = _Check(listing, on_progress or (lambda done, total: None))
    with tempfile.TemporaryDirectory(prefix="recorder-verify-") as folder:
        for entry in listing.shards:
            try:
                path = place.fetch(entry, Path(folder))
            except NotFetched as error:
                check.report.add(f"{entry.path} {error}.")
                check.advance(entry.size_bytes)
            else:
                check.file(path, entry)
    return check.whole()


class _Check:
    """What has been found so far."""

    def __init__(self, listing: Listing, on_progress: Progress) -> None:
        self.report = VerifyReport(listing.export_id, listing.sha256)
        self._listing = listing
        self._on_progress = on_progress
        self._done_bytes = 0
        self._total_bytes = sum(entry.size_bytes for entry in listing.shards)
        self._digests: list[SessionRows] = []
        self._actions = 0

    def advance(self, n_bytes: int) -> None:
        """So many bytes more are done."""
        self._done_bytes = min(self._done_bytes + n_bytes, self._total_bytes)
        self._on_progress(self._done_bytes, self._total_bytes)

    def file(self, path: Path, entry: Entry) -> None:
        """Check one file."""
        self.report.shards += 1
        try:
            if not self._has_its_bytes(path, entry):
                return
            digests = list(self._sessions(path, entry, self._listing.format))
        except (Unreadable, OSError) as error:
            words = error if isinstance(error, Unreadable) else f"cannot be read ({type(error).__name__})"
            self.report.add(f"{entry.path} {words}.")
            return
        rows = sum(session.n_rows for session in digests)
        if rows != entry.rows or len(digests) != entry.sessions:
            found = f"{entry.path} has {rows} rows of {len(digests)} sessions, the manifest says "
            self.report.add(f"{found}{entry.rows} of {entry.sessions}.")
        if entry.kind != "frames":
            self.report.rows += rows
        if entry.kind != "events":
            self.report.frames += rows
        self._digests += digests

    def whole(self) -> VerifyReport:
        """Compare the sums; gives everything that was found."""
        report, totals = self.report, self._listing.totals
        report.row_set_sha256 = row_set_sha256(
            pl.DataFrame(self._digests, schema=[*SessionRows._fields], orient="row")
        )
        if report.row_set_sha256 != self._listing.row_set_sha256:
            report.add("The rows in the files are not the row set of the manifest.")
        for name, found, said in (
            ("shards", report.shards, totals.shards),
            ("rows", report.rows, totals.rows),
            ("frames", report.frames, totals.frames),
            ("actions", self._actions, totals.actions),
            ("bytes", report.size_bytes, totals.bytes),
        ):
            if found != said:
                report.add(f"The files hold {found} {name}, the manifest says {said}.")
        return report

    def _has_its_bytes(self, path: Path, entry: Entry) -> bool:
        """Whether the file is the one that was listed; another is not parsed, its rows count as unread."""
        digest, size = hashlib.sha256(), 0
        with path.open("rb") as file:
            while piece := file.read(_PIECE_BYTES):
                digest.update(piece)
                size += len(piece)
                self.advance(len(piece))
        self.report.size_bytes += size
        if size != entry.size_bytes:
            self.report.add(f"{entry.path} has {size} bytes, the manifest says {entry.size_bytes}.")
        is_its_own = (size, digest.hexdigest()) == (entry.size_bytes, entry.sha256)
        if digest.hexdigest() != entry.sha256:
            self.report.add(
                f"{entry.path} has another SHA-256 than the manifest says; its rows were not read."
            )
        return is_its_own

    def _sessions(self, path: Path, entry: Entry, format: FormatName) -> Iterator[SessionRows]:
        """The digests of the sessions in a file, by the order in which it has them."""
        match entry.kind:
            case "events":
                for session_id, events in groupby(read_events(path, format), key=_session):
                    keys = [event.key for event in self._bound(events, entry)]
                    yield SessionRows("events", session_id, len(keys), events_digest(keys))
            case "frames":
                for session_id, frames in groupby(read_frames(path, format), key=_session):
                    pairs = [(frame.frame_id, frame.sha256) for frame in self._pictured(frames, entry)]
                    yield SessionRows("frames", session_id, len(pairs), frames_digest(pairs))
            case "samples":
                for session_id, samples in groupby(read_samples(path), key=_session):
                    bound = [sample[1:4] for sample in self._pictured(samples, entry)]
                    yield SessionRows("samples", session_id, len(bound), samples_digest(bound))

    def _bound(self, events: Iterable[Event], entry: Entry) -> Iterator[Event]:
        """Yield the same events; count actions, and see that each names its frame wholly or not at all."""
        for event in events:
            self._actions += event.is_action
            if (event.bound_frame_id is None) != (event.frame_seq is None):
                self.report.add(f"{entry.path} names half of an event's frame ({event.event_id!r:.80}).")
            yield event

    def _pictured(self, rows: Iterable[_Shown], entry: Entry) -> Iterator[_Shown]:
        """The same rows, each picture compared with the hash in its row on the way."""
        for row in rows:
            if row.image_sha256 not in (None, row.sha256):
                self.report.add(
                    f"{entry.path} holds another picture than its row says ({row.frame_id!r:.80})."
                )
            if isinstance(row, Sample):
                self._actions += row.actions
            yield row


def _session(row: Event | Frame | Sample) -> str:
    return row.session_id
