"""Destinations of exports: one directory per export, in a folder or an object store. Spec §4.3."""

from recorder.exports.destinations.base import Destination, FileConflict, Target
from recorder.exports.destinations.factory import open_destination, open_target, open_url, target_of
from recorder.exports.destinations.hashing import DiskFull, HashedFile

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
