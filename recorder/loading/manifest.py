"""Reading a manifest with care: it may come from anywhere. Contract §5, spec §2.5."""

from dataclasses import dataclass, field
from typing import Any

import orjson

from recorder.exports.verify.listing import Entry, ManifestUnreadable, parse_listing
from recorder.loading.errors import ManifestRefused

VERSION = 1


@dataclass(frozen=True)
class Shard:
    """One file of a dataset."""

    #: Relative to the manifest, with `/`; it never leads out of the manifest's folder.
    path: str
    kind: str
    rows: int
    sessions: int
    size_bytes: int
    sha256: str
    #: Signed address of a hosted file; it opens the file to whoever has it, so it is not shown.
    url: str | None = field(default=None, repr=False)

    @property
    def ending(self) -> str:
        """What the file's name ends in, without the dot."""
        return self.path.rpartition(".")[2]

    @property
    def workflow(self) -> str:
        """The workflow that its folder names."""
        return self.path.split("/")[1].removeprefix("workflow=")


def parse_manifest(text: bytes) -> dict[str, Any]:
    """The manifest as it stands, once all that loading leans on was found in order.

    Raises:
        ManifestUnreadable: if it is none of ours, or names files in a way that could lead elsewhere.
        ManifestRefused: if it has a version that this release does not know, or miscounts its files.
    """
    try:
        manifest: dict[str, Any] = orjson.loads(text)
        version = manifest["manifest_version"]
    except (orjson.JSONDecodeError, KeyError, TypeError) as error:
        raise ManifestUnreadable from error
    if type(version) is not int or version != VERSION:
        told = version if type(version) is int else "that is no number"
        raise ManifestRefused(
            f"it has a version {told}, this release reads {VERSION}. Upgrade workflow-recorder."
        )
    shards = read_shards(text)
    try:
        kinds = {shard.kind for shard in shards}
        columns = [
            field["name"] + field["type"] for kind in kinds for field in manifest["schema"][kind]["fields"]
        ]
        int(manifest["totals"]["sessions"]), dict(manifest["spec"]), columns
    except (KeyError, TypeError, ValueError) as error:
        raise ManifestUnreadable from error
    if manifest["totals"]["shards"] != len(shards):
        raise ManifestRefused("it does not list as many files as it counts. Fetch it again.")
    return manifest


def read_shards(text: bytes) -> list[Shard]:
    """The files of a manifest, in its order.

    Raises:
        ManifestUnreadable: if a path is not plainly below the manifest, or an entry says impossible things.
    """
    return [_shard(entry) for entry in parse_listing(text).shards]


def _shard(entry: Entry) -> Shard:
    if entry.url is not None and not entry.url.startswith(("http://", "https://")):
        raise ManifestRefused("it gives a file an address that is not HTTP. Fetch it again from the service.")
    return Shard(
        path=entry.path,
        kind=entry.kind,
        rows=entry.rows,
        sessions=entry.sessions,
        size_bytes=entry.size_bytes,
        sha256=entry.sha256,
        url=entry.url,
    )
