"""Group commit on a slow disk: each fsync takes 4 ms more, for us and for a transaction per request."""

import shutil
import subprocess
import tempfile
from pathlib import Path

from benchmarks.events import event_bodies
from benchmarks.figure_reports import Figure, Skipped, at_least
from benchmarks.ingest import alternate, contender

_SOURCE = Path(__file__).with_name("slow_fsync.c")
_ADDED_S = 0.004


def measure(*, quick: bool = False) -> list[Figure]:
    """Return the throughput against the same route and rows with a commit of its own for each request.

    Raises:
        Skipped: if the library that slows fsync cannot be built.
    """
    rounds, seconds = (3, 2.0) if quick else (3, 6.0)
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        slow = {"LD_PRELOAD": str(build_slow_fsync(Path(folder)))}
        with (
            contender("api.app:create_app", environment=slow) as ours,
            contender("benchmarks.apps:commit_per_request", environment=slow) as single,
        ):
            loads = alternate(
                {"ours": ours, "single": single}, event_bodies(50), rounds=rounds, seconds=seconds
            )
    fastest = max(load.per_second for load in loads["single"])
    if fastest > 1 / _ADDED_S:
        raise RuntimeError(f"{fastest:.0f} commits a second: fsync was not slowed, or commits were grouped.")
    return [
        Figure(
            name="ingest with 4 ms more for each fsync / a commit per request",
            unit="requests/s",
            ours=[load.per_second for load in loads["ours"]],
            peer=[load.per_second for load in loads["single"]],
            peer_name="same route and rows",
            goal=at_least(10),
            detail={
                "p99 ms": [load.p99_ms for load in loads["ours"]],
                "of a commit per request": [load.p99_ms for load in loads["single"]],
            },
        )
    ]


def build_slow_fsync(folder: Path) -> Path:
    """Compile the library into a folder.

    Raises:
        Skipped: if there is none.
    """
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise Skipped("no C compiler is here to build the slow disk with; install gcc")
    library = folder / "slow_fsync.so"
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(_SOURCE), "-ldl"], check=True
    )
    return library
