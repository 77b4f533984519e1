"""Pictures to WebDataset archives: MB a second beside `tarfile` with SHA-256 and `webdataset.ShardWriter`.

All write to a file system in memory, and read the pictures from the packs of the blob store as they go. Ours
reads frames and events from the lake besides, sorts them, makes the JSON of each sample, hashes, and
publishes. The peers find the JSON made; `tarfile` hashes what it writes, `ShardWriter` does not.
"""

from collections.abc import Sequence
from typing import Any

from benchmarks.exports.deployments import deploy, scratch
from benchmarks.exports.lake import Shape
from benchmarks.exports.writer_processes import require, started
from benchmarks.figure_reports import Figure, Goal, at_least

_SESSIONS, _QUICK_SESSIONS = 1_000, 150
_ROUNDS = 5
_PEERS = {
    "tar": ("tarfile + SHA-256", at_least(2)),
    "web": ("webdataset.ShardWriter", at_least(3)),
}


def measure(*, quick: bool = False, sessions: int | None = None) -> list[Figure]:
    """Return megabytes of archives a second, beside each peer.

    Args:
        sessions: how many, of 10 frames with 80 KB each, where it is not what the figure calls for.

    Raises:
        Skipped: if the peer is not installed.
    """
    require("webdataset")
    shape = Shape(sessions=sessions or (_QUICK_SESSIONS if quick else _SESSIONS), events=50, frames=10)
    with scratch() as folder:
        data = str(folder / "data")
        settings = deploy(folder / "data", shape)
        with started("service_exports", settings, folder) as ours, started("peers", settings, folder) as peer:
            ours.call("tables", data=data, folder=str(folder))
            runs: dict[str, list[dict[str, Any]]] = {"ours": [], **{name: [] for name in _PEERS}}
            for turn in range((1 if sessions else _ROUNDS) + 1):
                values = {"ours": ours.call("export", data=data, format="webdataset")}
                for name in _PEERS:
                    values[name] = peer.call(name, data=data, tables=str(folder), folder=str(folder))
                if turn:  # the first is to warm up
                    for name, item in values.items():
                        runs[name].append(item)
    return [_beside(runs["ours"], runs[name], *item) for name, item in _PEERS.items()]


def _beside(ours: Sequence[dict[str, Any]], peer: Sequence[dict[str, Any]], name: str, goal: Goal) -> Figure:
    size = ours[0]["bytes"] / 1e6
    return Figure(
        name=f"webdataset, shards: {ours[0]['rows']:,} frames of 80 KB",
        unit="MB/s",
        ours=[size / run["shard_seconds"] for run in ours],
        # The same samples: bytes of ours a second, whatever the padding of theirs.
        peer=[size / run["seconds"] for run in peer],
        peer_name=name,
        goal=goal,
        detail={
            "whole export, MB/s": [size / run["seconds"] for run in ours],
            "CPU s of the shards": [run["shard_cpu_s"] for run in ours],
            "CPU s of the export": [run["cpu_s"] for run in ours],
            "CPU s of the peer": [run["cpu_s"] for run in peer],
            "MB": size,
            "MB of the peer": peer[0]["bytes"] / 1e6,
        },
    )
