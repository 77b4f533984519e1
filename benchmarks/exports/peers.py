"""Peers of exports: the same rows and pictures through `datasets`, `tarfile` and `webdataset`.

Each is used as its documentation shows.

`datasets` gets the rows as Parquet files of one of our exports. The two writers of archives get the texts of
all samples ready in memory, and the pictures in the packs of the blob store, which they read as they go.
"""

import hashlib
import io
import tarfile
import tempfile
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import IO, Any, NamedTuple

import orjson
import polars as pl

from benchmarks.exports.writer_processes import answer, timed

_ARCHIVE_BYTES = 128 * 1024 * 1024


class Sample(NamedTuple):
    """A frame: the object with its picture, and the texts beside it."""

    key: str
    pack: str
    offset: int
    length: int
    texts: dict[str, bytes]


class Hashed(io.RawIOBase):
    """A file that is hashed as it is written."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._hash = hashlib.sha256()
        self._size = 0

    def writable(self) -> bool:
        """Return that the file can be written."""
        return True

    def write(self, data: Any) -> int:
        """Append bytes."""
        self._hash.update(data)
        self._size += len(data)
        return self._file.write(data)

    def tell(self) -> int:
        """Return the number of bytes received so far."""
        return self._size


def hf(files: list[str], format: str, folder: str, workers: int | None = None) -> dict[str, Any]:
    """Load Parquet files with `load_dataset`, whose cache is empty, and write them out as one file.

    Args:
        format: `parquet`, or `jsonl` by `to_json`.
        workers: processes of `to_json`; None: the default, which is this one.
    """
    import datasets

    values: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(dir=folder) as cache_dir:
        out = Path(cache_dir, f"out.{format}")
        with timed(values):
            rows = datasets.load_dataset("parquet", data_files=files, split="train", cache_dir=cache_dir)
            loaded = dict(values)
            with timed(loaded):
                if format == "parquet":
                    rows.to_parquet(out)
                else:
                    rows.to_json(out, num_proc=workers)
        return values | {"write_seconds": loaded["seconds"], "rows": len(rows), "bytes": out.stat().st_size}


def tar(data: str, tables: str, folder: str) -> dict[str, Any]:
    """Write samples with `tarfile`, hashing what goes into each archive."""
    samples = read_samples(tables)
    values: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(dir=folder) as out:
        with timed(values):
            left = with_pictures(data, samples)
            for number in range(len(samples)):
                with Path(out, f"{number:06d}.tar").open("wb") as file:
                    if not fill_archive(file, left):
                        break
        return values | {"rows": len(samples), "bytes": _bytes_in(out)}


def fill_archive(file: IO[bytes], samples: Iterator[dict[str, Any]]) -> bool:
    """Put samples into an archive until it is full; False where none are left."""
    hashed = Hashed(file)
    with tarfile.open(fileobj=hashed, mode="w") as archive:
        for sample in samples:
            key = sample.pop("__key__")
            for ending, content in sorted(sample.items()):
                member = tarfile.TarInfo(f"{key}.{ending}")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
            if hashed.tell() >= _ARCHIVE_BYTES:
                return True
    return False


def web(data: str, tables: str, folder: str) -> dict[str, Any]:
    """Write samples with `webdataset.ShardWriter`, which hashes nothing."""
    import webdataset

    samples = read_samples(tables)
    values: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(dir=folder) as out:
        with (
            timed(values),
            webdataset.ShardWriter(f"{out}/%06d.tar", maxsize=_ARCHIVE_BYTES, verbose=0) as archives,
        ):
            for sample in with_pictures(data, samples):
                archives.write(sample)
        return values | {"rows": len(samples), "bytes": _bytes_in(out)}


def with_pictures(data: str, samples: Iterable[Sample]) -> Iterator[dict[str, Any]]:
    """Yield samples as `webdataset` takes them; each pack is read once."""
    for pack, members in groupby(samples, key=lambda sample: sample.pack):
        content = Path(data, "blobs", pack).read_bytes()
        for sample in members:
            picture = content[sample.offset : sample.offset + sample.length]
            yield {"__key__": sample.key, "png": picture, **sample.texts}


@cache
def read_samples(tables: str) -> list[Sample]:
    """Return the samples of `service_exports.tables`, in the order of their packs, untimed."""
    events: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for event in pl.read_parquet(f"{tables}/events.parquet").iter_rows(named=True):
        events.setdefault((event["session_id"], event.pop("frame_seq")), []).append(event)
    samples = []
    for frame in pl.read_parquet(f"{tables}/frames.parquet").iter_rows(named=True):
        key = frame["session_id"], frame["seq"]
        texts = {"json": orjson.dumps(frame), "events.json": orjson.dumps(events.get(key, []))}
        name = f"{key[0]}-{key[1]:06d}"
        samples.append(Sample(name, frame["object"], frame["offset"], frame["length"], texts))
    return samples


def _bytes_in(folder: str) -> int:
    return sum(path.stat().st_size for path in Path(folder).iterdir())


if __name__ == "__main__":
    answer({"hf": hf, "tar": tar, "web": web})
