"""Worker process of the digest pool: fetches pictures and DOM snapshots and computes their digests.

Started as `python -m recorder.sealing.digest_worker <descriptor>` with a socket to the pool (decision 0030).
It imports neither database nor lake: it starts in 0.2 s with 40 MB.
"""

import hashlib
import os
import resource
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path

from recorder.sealing.digest_messages import (
    DigestBudget,
    DigestTask,
    Fetched,
    FetchFailed,
    Finished,
    FromWorker,
    PictureDigest,
    Setup,
    SnapshotDigest,
    Wanted,
    WorkItem,
    decode_to_worker,
    encode,
)
from recorder.sealing.frame_digests import SnapshotOverBudget, dhash, read_snapshot
from recorder.storage.blobs import Blobs

#: A worker that has kept more memory than this leaves after its item: a large picture needs the rest.
_KEPT_BYTES = 48 * 1024 * 1024


class DigestWorker:
    """Computes the items that the pool sends, one after another."""

    def __init__(self, connection: "Connection[bytes, bytes]", setup: Setup) -> None:
        self._connection = connection
        self._blobs = Blobs(setup.blob_url)
        self._budget = setup.budget
        #: Size of this process once the store's client is there, before anything is decoded.
        self._start_bytes: int | None = None

    def serve(self) -> None:
        """Compute items until the pool closes its socket or this process has grown."""
        is_leaving = False
        while not is_leaving:
            try:
                item = decode_to_worker(self._connection.recv_bytes())
            except EOFError:
                return
            assert isinstance(item, WorkItem)
            self._compute(item)
            is_leaving = self._has_grown()
            self._send(Finished(is_leaving))

    def _compute(self, item: WorkItem) -> None:
        try:
            contents = _fetch(self._blobs, item)
        except KeyError:
            self._send(FetchFailed("missing"))
            return
        except Exception:
            # Credentials, addresses, libraries of stores: whatever it is, it is not what the session holds.
            self._send(FetchFailed("unavailable"))
            return
        if self._start_bytes is None:
            self._start_bytes = _read_data_bytes()
            _limit_memory(self._start_bytes + self._budget.memory_bytes)
        self._send(Fetched([_snapshot_key(*pair) for pair in zip(item.tasks, contents, strict=True)]))
        wanted = decode_to_worker(self._connection.recv_bytes())
        assert isinstance(wanted, Wanted)
        for place in wanted.places:
            self._send(_digest(item.tasks[place], contents[place], self._budget))

    def _has_grown(self) -> bool:
        """Return whether this process has kept so much memory that a large picture might lack it."""
        return self._start_bytes is not None and _read_data_bytes() > self._start_bytes + _KEPT_BYTES

    def _send(self, message: FromWorker) -> None:
        self._connection.send_bytes(encode(message))


def _fetch(blobs: Blobs, item: WorkItem) -> list[bytes]:
    """Return the bytes of each task, read at once.

    Raises:
        KeyError: if the object is missing or ends before the last task.
        Exception: of any kind if the store does not answer.
    """
    start = min(task.offset for task in item.tasks)
    end = max(task.offset + task.length for task in item.tasks)
    try:
        data = blobs.get(item.object_key, start, end - start)
    except KeyError:
        raise
    except Exception:
        # Some stores answer a range behind an object's end with an error: the whole object tells.
        data = blobs.get(item.object_key)[start:end]
    if len(data) < end - start:
        raise KeyError(item.object_key)
    return [data[task.offset - start : task.offset - start + task.length] for task in item.tasks]


def _snapshot_key(task: DigestTask, content: bytes) -> str | None:
    """Return the digest under which equal snapshots are known; a strong one, since tenants share it."""
    return hashlib.blake2b(content, digest_size=16).hexdigest() if task.kind == "snapshot" else None


def _digest(task: DigestTask, content: bytes, budget: DigestBudget) -> PictureDigest | SnapshotDigest:
    with _cpu_limit(budget.seconds(task)):
        if task.kind == "picture":
            return PictureDigest(dhash(content, max_pixels=budget.picture_pixels))
        try:
            return SnapshotDigest(read_snapshot(content, budget))
        except SnapshotOverBudget:
            return SnapshotDigest(None, is_over_budget=True)


@contextmanager
def _cpu_limit(seconds: float) -> Iterator[None]:
    """Let the kernel end this process after so much CPU time: a decoder in C cannot be interrupted."""
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)


def _limit_memory(limit_bytes: int) -> None:
    resource.setrlimit(resource.RLIMIT_DATA, (limit_bytes, limit_bytes))
    # A core file would hold pictures.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # If the machine runs out of memory all the same, this process goes first and not the sealing one.
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("800")


def _read_data_bytes() -> int:
    """Return the size of this process's data as `RLIMIT_DATA` counts it; 0 where the system does not tell."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    except OSError:
        return 0


def _end_with_parent() -> None:
    """End this process when the pool's process, which holds the other end of standard input, has ended."""
    while os.read(0, 1):
        pass
    os._exit(1)


_NICENESS = 10


def main() -> None:
    """Serve the pool whose socket is named on the command line."""
    # Ctrl-C goes to every process of a terminal; the pool's own decides what happens.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    # Below the sealing runs: sessions with few pictures must not wait for processors that decode large ones.
    os.nice(_NICENESS)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with (
        Connection(int(sys.argv[1])) as connection,
        suppress(EOFError, BrokenPipeError, ConnectionResetError),
    ):
        setup = decode_to_worker(connection.recv_bytes())
        assert isinstance(setup, Setup)
        DigestWorker(connection, setup).serve()


if __name__ == "__main__":
    main()
