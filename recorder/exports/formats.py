"""The four formats of a dataset: the kinds of files each has, and what they carry. Spec §4.3, contract §5."""

from dataclasses import dataclass

from recorder.exports.names import FileKind, FormatName


@dataclass(frozen=True, kw_only=True)
class Format:
    """What a directory of this format holds; it never holds files of two formats."""

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
