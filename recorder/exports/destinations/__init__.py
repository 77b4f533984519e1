"""Where a dataset's files go: one directory per export, in a folder or in an object store. Spec §4.3."""

from recorder.exports.destinations.directory import Destination, FileConflict
from recorder.exports.destinations.hashing import DiskFull, HashedFile
from recorder.exports.destinations.opening import open_destination, open_target, open_url, target_of
from recorder.exports.destinations.target import Target

__all__ = [
    "Destination",
    "DiskFull",
    "FileConflict",
    "HashedFile",
    "Target",
    "open_destination",
    "open_target",
    "open_url",
    "target_of",
]
