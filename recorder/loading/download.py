"""A whole dataset into a folder of this machine, checked on the way; the manifest comes last. Contract §5."""

import hashlib
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson

from recorder.exports.formats import CARD, MANIFEST
from recorder.loading.cache import Cache
from recorder.loading.manifest import Shard
from recorder.loading.sources import Source

_SERVED_ONLY = ("url", "url_expires_at")


def download(
    source: Source,
    manifest: dict[str, Any],
    shards: list[Shard],
    folder: Path,
    on_progress: Callable[[int, int], None],
) -> None:
    """Fetch what is not there yet; a download that was cut off goes on.

    Raises:
        FileDamaged, FileGone, AddressExpired, DatasetChanged: as their names say.
    """
    folder.mkdir(parents=True, exist_ok=True)
    done, total = 0, sum(shard.size_bytes for shard in shards)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".part-") as parts:
        for shard in shards:
            path = folder / shard.path
            if not _is_there(path, shard):
                path.parent.mkdir(parents=True, exist_ok=True)
                fetched = source.fetch(shard, Cache(parts))
                if fetched.is_relative_to(parts):
                    fetched.replace(path)
                else:
                    shutil.copyfile(fetched, path)
            done += shard.size_bytes
            on_progress(done, total)
        card = source.card()
        if card is not None:
            (folder / CARD).write_bytes(card)
        (Path(parts) / MANIFEST).write_bytes(stored_form(manifest))
        (Path(parts) / MANIFEST).replace(folder / MANIFEST)


def stored_form(manifest: dict[str, Any]) -> bytes:
    """The manifest as the export wrote it, without the addresses that serving adds."""
    shards = [
        {name: value for name, value in shard.items() if name not in _SERVED_ONLY}
        for shard in manifest["shards"]
    ]
    return orjson.dumps(manifest | {"shards": shards}, option=orjson.OPT_INDENT_2)


def _is_there(path: Path, shard: Shard) -> bool:
    if not path.is_file() or path.stat().st_size != shard.size_bytes:
        return False
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == shard.sha256
