"""Destinations of exports: one directory per export, in a folder or an object store. Spec §4.3."""

from recorder.exports.destinations.base import Destination, ExportLocation, FileConflict
from recorder.exports.destinations.factory import (
    open_destination,
    open_destination_directory,
    open_destination_url,
    resolve_export_location,
)
from recorder.exports.destinations.hashed_files import DiskFull, HashedFile

__all__ = [
    "Destination",
    "DiskFull",
    "ExportLocation",
    "FileConflict",
    "HashedFile",
    "open_destination",
    "open_destination_directory",
    "open_destination_url",
    "resolve_export_location",
]
