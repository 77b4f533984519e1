"""Manifest parser: the only reader of `manifest.json`, which may be hostile. Contract §5, spec §2.5."""

import hashlib
from typing import Annotated, Any

import msgspec
import orjson
from msgspec import Meta

from recorder import limits
from recorder.datasets.errors import ManifestRefused, ManifestUnreadable
from recorder.datasets.formats import FORMATS, FileKind, FormatName

VERSION = 1
#: A manifest of a hundred thousand files has 60 MB.
MAX_BYTES = 512 * 1024 * 1024
_SLUG = limits.WORKFLOW_PATTERN.removeprefix("^").removesuffix("$")
#: The only paths that files of a dataset have: they cannot lead out of its folder.
_PATH = (
    rf"^data/workflow={_SLUG}/(events|frames|samples)(-(train|validation|test))?"
    r"-[0-9]{5}-of-[0-9]{5}\.[a-z]{1,8}\Z"
)
#: Members that the service adds when it serves a manifest: of each shard, and of the manifest.
_SERVED_ONLY = ("url", "url_expires_at", "card_url")

_Path = Annotated[str, Meta(pattern=_PATH)]
_Digest = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
_Count = Annotated[int, Meta(ge=0)]
_Id = Annotated[str, Meta(pattern=r"^[0-9A-Za-z_]{1,64}\Z")]


class Shard(msgspec.Struct, frozen=True, kw_only=True):
    """One file of a dataset, as the manifest lists it."""

    #: Relative to the manifest, with `/`.
    path: _Path
    kind: FileKind
    rows: _Count
    sessions: _Count
    size_bytes: _Count
    sha256: _Digest
    #: Signed address of a hosted file. Anyone who has it can read the file, so `repr` leaves it out.
    url: str | None = None

    def __repr__(self) -> str:
        shown = (f"{name}={getattr(self, name)!r}" for name in self.__struct_fields__ if name != "url")
        return f"Shard({', '.join(shown)})"

    @property
    def ending(self) -> str:
        """Ending of the file's name, without the dot."""
        return self.path.rpartition(".")[2]

    @property
    def split(self) -> str | None:
        """Split of all its rows, which its name gives; None where the dataset is not divided."""
        part = self.path.rpartition("/")[2].split("-")[1]
        return None if part.isdigit() else part

    @property
    def workflow(self) -> str:
        """Workflow that the file's folder names."""
        return self.path.split("/")[1].removeprefix("workflow=")


class Totals(msgspec.Struct):
    """Figures of the whole dataset that its files must add up to."""

    rows: _Count
    frames: _Count
    actions: _Count
    bytes: _Count
    shards: _Count


class Manifest(msgspec.Struct):
    """Members of a manifest that the files must agree with."""

    export_id: _Id
    format: FormatName
    row_set_sha256: _Digest
    totals: Totals
    shards: list[Shard]
    #: Signed address of the dataset card of a hosted export.
    card_url: str | None = None
    #: Of the manifest's own bytes.
    sha256: str = ""


def parse_manifest(text: bytes) -> Manifest:
    """Return the members of a manifest that the files must agree with.

    Raises:
        ManifestUnreadable: if the text is no manifest, or names files outside the dataset's folder.
    """
    try:
        manifest = msgspec.json.decode(text, type=Manifest)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ManifestUnreadable(str(error)) from error
    format = FORMATS[manifest.format]
    for shard in manifest.shards:
        if shard.kind not in format.kinds or shard.ending != format.ending:
            raise ManifestUnreadable(f"a directory of {manifest.format} has no file {shard.path}")
        if not shard.path.rpartition("/")[2].startswith(shard.kind):
            raise ManifestUnreadable(f"{shard.path} is called {shard.kind}")
    if len({shard.path for shard in manifest.shards}) != len(manifest.shards):
        raise ManifestUnreadable("it lists a file twice")
    manifest.sha256 = hashlib.sha256(text).hexdigest()
    return manifest


def parse_manifest_document(text: bytes) -> tuple[dict[str, Any], list[Shard]]:
    """Return all members of a manifest as a dictionary, and its files.

    Raises:
        ManifestUnreadable: as `parse_manifest`, or if the schema or the request is missing.
        ManifestRefused: if this release does not know the version, the number of files is wrong, or the
            address of a file is not HTTP.
    """
    try:
        document: dict[str, Any] = orjson.loads(text)
        version = document["manifest_version"]
    except (orjson.JSONDecodeError, KeyError, TypeError) as error:
        raise ManifestUnreadable from error
    if type(version) is not int or version != VERSION:
        shown = version if type(version) is int else "that is no number"
        raise ManifestRefused(
            f"it has a version {shown}, this release reads {VERSION}. Upgrade workflow-recorder."
        )
    shards = parse_manifest(text).shards
    try:
        for kind in {shard.kind for shard in shards}:
            _ = [field["name"] + field["type"] for field in document["schema"][kind]["fields"]]
        int(document["totals"]["sessions"]), dict(document["spec"])
    except (KeyError, TypeError, ValueError) as error:
        raise ManifestUnreadable from error
    if document["totals"]["shards"] != len(shards):
        raise ManifestRefused("it does not list as many files as it counts. Fetch it again.")
    if any(shard.url and not shard.url.startswith(("http://", "https://")) for shard in shards):
        raise ManifestRefused("it gives a file an address that is not HTTP. Fetch it again from the service.")
    return document, shards


def format_manifest(document: dict[str, Any]) -> bytes:
    """Return the stored form of a manifest: indented JSON, without the addresses that serving adds."""
    shards = [_drop_served_urls(shard) for shard in document["shards"]]
    return orjson.dumps(_drop_served_urls(document) | {"shards": shards}, option=orjson.OPT_INDENT_2)


def _drop_served_urls(members: dict[str, Any]) -> dict[str, Any]:
    """Return the members without the URLs that only the service's answer has, not the stored manifest."""
    return {name: value for name, value in members.items() if name not in _SERVED_ONLY}
