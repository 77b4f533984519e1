"""What a check takes from a manifest, which may come from anywhere. Contract §5, spec §2.5."""

import hashlib
from typing import Annotated

import msgspec
from msgspec import Meta

from recorder import limits
from recorder.errors import RecorderError
from recorder.exports.formats import FORMATS, FileKind, FormatName

#: A manifest of a hundred thousand files has 60 MB.
MAX_BYTES = 512 * 1024 * 1024
_SLUG = limits.WORKFLOW_PATTERN.removeprefix("^").removesuffix("$")
#: The only paths that files of a dataset have: they cannot lead out of its folder.
_PATH = rf"^data/workflow={_SLUG}/(events|frames|samples)-[0-9]{{5}}-of-[0-9]{{5}}\.[a-z]{{1,8}}\Z"

_Path = Annotated[str, Meta(pattern=_PATH)]
_Digest = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
_Count = Annotated[int, Meta(ge=0)]
_Id = Annotated[str, Meta(pattern=r"^[0-9A-Za-z_]{1,64}\Z")]


class ManifestUnreadable(RecorderError):
    """There is no manifest at this address, or not one of ours."""

    code = "manifest_unreadable"
    title = "Manifest unreadable"

    def __init__(self, detail: str = "") -> None:
        found = f" What is there is none of ours: {detail}." if detail else ""
        text = "No manifest can be read there; give its path, its folder or its signed address."
        super().__init__(text + found)


class Entry(msgspec.Struct):
    """A file, as the manifest lists it."""

    kind: FileKind
    path: _Path
    size_bytes: _Count
    rows: _Count
    sessions: _Count
    sha256: _Digest
    #: Where a hosted file is read.
    url: str | None = None


class Totals(msgspec.Struct):
    """The figures of the whole dataset that its files must add up to."""

    rows: _Count
    frames: _Count
    actions: _Count
    bytes: _Count
    shards: _Count


class Listing(msgspec.Struct):
    """The members of a manifest that can be found again in the files."""

    export_id: _Id
    format: FormatName
    row_set_sha256: _Digest
    totals: Totals
    shards: list[Entry]
    sha256: str = ""


def parse_listing(text: bytes) -> Listing:
    """The manifest, once everything that is read of it was found in order.

    Raises:
        ManifestUnreadable: if it is none of ours, or names files in a way that could lead elsewhere.
    """
    try:
        listing = msgspec.json.decode(text, type=Listing)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ManifestUnreadable(str(error)) from error
    format = FORMATS[listing.format]
    for entry in listing.shards:
        if entry.kind not in format.kinds or not entry.path.endswith(f".{format.ending}"):
            raise ManifestUnreadable(f"a directory of {listing.format} has no file {entry.path}")
        if not entry.path.rpartition("/")[2].startswith(entry.kind):
            raise ManifestUnreadable(f"{entry.path} is called {entry.kind}")
    if len({entry.path for entry in listing.shards}) != len(listing.shards):
        raise ManifestUnreadable("it lists a file twice")
    listing.sha256 = hashlib.sha256(text).hexdigest()
    return listing
