"""Formats of a dataset, and the names of its files. Contract §5.

Imports nothing: readers need it where the service's libraries are not installed.
"""

from dataclasses import dataclass
from typing import Literal

#: The formats, of which `models.export_request` has the same for requests, and the kinds of files.
FormatName = Literal["parquet", "webdataset", "jsonl", "arrow"]
FileKind = Literal["events", "frames", "samples"]

#: The splits of a dataset, as column `split` names them.
SPLITS = ("train", "validation", "test")
#: Written last: a dataset with this file is complete.
MANIFEST = "manifest.json"
#: The dataset card, and the most bytes that are read of one: it lists workflows and columns, not rows.
CARD = "README.md"
CARD_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class Format:
    """Contents of a dataset of one format; a dataset never has files of two formats."""

    #: The kinds of its files; their rows together are the row set.
    kinds: tuple[FileKind, ...]
    ending: str
    media_type: str
    carries_images: bool


_ROWS: tuple[FileKind, ...] = ("events", "frames")

FORMATS: dict[FormatName, Format] = {
    "parquet": Format(
        kinds=_ROWS, ending="parquet", media_type="application/vnd.apache.parquet", carries_images=True
    ),
    "jsonl": Format(kinds=_ROWS, ending="jsonl", media_type="application/jsonl", carries_images=False),
    "arrow": Format(
        kinds=_ROWS, ending="arrow", media_type="application/vnd.apache.arrow.file", carries_images=True
    ),
    "webdataset": Format(
        kinds=("samples",), ending="tar", media_type="application/x-tar", carries_images=True
    ),
}
