"""The writer of archives alone: samples ready in memory, beside `tarfile` and `webdataset.ShardWriter`.

All write the same members, four archives, to a file system in memory. Ours and `tarfile` hash what they
write; `ShardWriter` hashes nothing. What reading the lake and making the texts adds is in `pictures`.
"""

import io
import random
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.exports.deployments import scratch
from benchmarks.exports.peers import Hashed
from benchmarks.exports.writer_processes import require
from benchmarks.figure_reports import Figure, at_least

_FRAMES, _QUICK_FRAMES = 10_000, 1_000
_PICTURE_BYTES = 80_000
_TEXT = b'{"t_ms":12345,"type":"click"}' * 12
_ARCHIVES, _ROUNDS = 4, 5
_GOALS = {"tarfile + SHA-256": at_least(2), "webdataset.ShardWriter": at_least(3)}

Samples = list[tuple[str, bytes]]


def measure(*, quick: bool = False) -> list[Figure]:
    """Return megabytes a second of each writer, in turn.

    Raises:
        Skipped: if the peer is not installed.
    """
    require("webdataset")
    frames = _QUICK_FRAMES if quick else _FRAMES
    pictures = [random.Random(seed).randbytes(_PICTURE_BYTES) for seed in range(64)]
    samples = [(f"ses_{number:026d}-000000", pictures[number % 64]) for number in range(frames)]
    size = frames * (_PICTURE_BYTES + 2 * len(_TEXT)) / 1e6
    writers: dict[str, Callable[[Path, Samples], None]] = {
        "ours": _ours,
        "tarfile + SHA-256": _tarfile,
        "webdataset.ShardWriter": _shard_writer,
    }
    values: dict[str, list[float]] = {name: [] for name in writers}
    with scratch() as folder:
        for turn in range(_ROUNDS + 1):
            for name, write in writers.items():
                with tempfile.TemporaryDirectory(dir=folder) as out:
                    began = time.perf_counter()
                    write(Path(out), samples)
                    if turn:  # the first is to warm up
                        values[name].append(size / (time.perf_counter() - began))
    return [
        Figure(
            name=f"webdataset, the writer alone: {frames:,} frames of 80 KB",
            unit="MB/s",
            ours=values["ours"],
            peer=values[name],
            peer_name=name,
            goal=goal,
        )
        for name, goal in _GOALS.items()
    ]


def _parts(samples: Samples) -> Iterator[tuple[str, Samples]]:
    width = len(samples) // _ARCHIVES
    for number in range(_ARCHIVES):
        yield f"{number:06d}.tar", samples[number * width : (number + 1) * width]


def _ours(folder: Path, samples: Samples) -> None:
    from recorder.datasets.webdataset import TarWriter
    from recorder.exports.destinations import HashedFile

    for name, part in _parts(samples):
        with (folder / name).open("wb") as file, HashedFile(file) as hashed:
            with TarWriter(hashed) as archive:
                for key, picture in part:
                    archive.add(f"{key}.events.json", _TEXT)
                    archive.add(f"{key}.json", _TEXT)
                    archive.add(f"{key}.png", picture)
            assert len(hashed.sha256) == 64


def _tarfile(folder: Path, samples: Samples) -> None:
    for name, part in _parts(samples):
        with (folder / name).open("wb") as file, tarfile.open(fileobj=Hashed(file), mode="w") as archive:
            for key, picture in part:
                for ending, content in (("events.json", _TEXT), ("json", _TEXT), ("png", picture)):
                    member = tarfile.TarInfo(f"{key}.{ending}")
                    member.size = len(content)
                    archive.addfile(member, io.BytesIO(content))


def _shard_writer(folder: Path, samples: Samples) -> None:
    import webdataset

    count = len(samples) // _ARCHIVES
    with webdataset.ShardWriter(str(folder / "%06d.tar"), maxcount=count, verbose=0) as archives:
        for key, picture in samples:
            archives.write({"__key__": key, "events.json": _TEXT, "json": _TEXT, "png": picture})
