"""Contents of one file of a dataset: digests of its sessions, actions, contradictions. Spec §2.5."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import TypeVar

from recorder.datasets.formats import FileKind, FormatName
from recorder.datasets.webdataset import Sample, read_webdataset_samples
from recorder.exports.verify.checked_rows import (
    VerifiedEvent,
    VerifiedFrame,
    read_checked_events,
    read_checked_frames,
)
from recorder.row_digests import (
    SessionRows,
    compute_frames_digest,
    compute_samples_digest,
    digest_events,
)

#: Most problems that are listed: a dataset that is wholly wrong needs no line for each of its pictures.
MOST_PROBLEMS = 200
_Pictured = TypeVar("_Pictured", VerifiedFrame, Sample)


@dataclass
class FileContents:
    """Result of reading one file."""

    #: Digest of each session in the file, in the order of the file.
    sessions: list[SessionRows] = field(default_factory=list)
    actions: int = 0
    problems: list[str] = field(default_factory=list)

    def add_problem(self, sentence: str) -> None:
        """Note a problem; one more than are listed shows that there are more."""
        if len(self.problems) <= MOST_PROBLEMS:
            self.problems.append(sentence)


def read_contents(path: Path, name: str, kind: FileKind, format: FormatName) -> FileContents:
    """Read a file, a portion at a time.

    Args:
        path: local copy of the file.
        name: path of the file in the dataset, for problems.
        kind: kind of its rows.
        format: format of the dataset.

    Raises:
        DatasetUnreadable: if it does not follow its format.
        OSError: if it cannot be read.
    """
    contents = FileContents()
    match kind:
        case "events":
            for session_id, events in groupby(read_checked_events(path, format), key=_get_session_id):
                digest = digest_events(
                    event.key for event in _check_bindings_in_contents(events, name, contents)
                )
                contents.sessions.append(SessionRows("events", session_id, digest.n_rows, digest.hexdigest()))
        case "frames":
            for session_id, frames in groupby(read_checked_frames(path, format), key=_get_session_id):
                pairs = [
                    (frame.frame_id, frame.sha256)
                    for frame in _check_pictures_in_contents(frames, name, contents)
                ]
                contents.sessions.append(
                    SessionRows("frames", session_id, len(pairs), compute_frames_digest(pairs))
                )
        case "samples":
            for session_id, samples in groupby(read_webdataset_samples(path), key=_get_session_id):
                bound = [sample[1:4] for sample in _check_pictures_in_contents(samples, name, contents)]
                contents.sessions.append(
                    SessionRows("samples", session_id, len(bound), compute_samples_digest(bound))
                )
    return contents


def _check_bindings_in_contents(
    events: Iterable[VerifiedEvent], name: str, contents: FileContents
) -> Iterator[VerifiedEvent]:
    """Yield the same events; count actions, and check that each names its frame wholly or not at all."""
    for event in events:
        contents.actions += event.is_action
        if (event.bound_frame_id is None) != (event.frame_seq is None):
            contents.add_problem(f"{name} names half of an event's frame ({event.event_id!r:.80}).")
        yield event


def _check_pictures_in_contents(
    rows: Iterable[_Pictured], name: str, contents: FileContents
) -> Iterator[_Pictured]:
    """Yield the same rows; compare each picture with the digest in its row."""
    for row in rows:
        if row.image_sha256 not in (None, row.sha256):
            contents.add_problem(f"{name} holds another picture than its row says ({row.frame_id!r:.80}).")
        if isinstance(row, Sample):
            contents.actions += row.actions
        yield row


def _get_session_id(row: VerifiedEvent | VerifiedFrame | Sample) -> str:
    return row.session_id
