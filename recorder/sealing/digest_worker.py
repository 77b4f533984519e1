"""Worker process of the digest pool: fetches pictures and DOM snapshots and computes their digests.

Started as `python -m recorder.sealing.digest_worker <descriptor>` with a socket to the pool (decision 0030).
It imports neither database nor lake: it starts in 0.2 s with 40 MB.
"""

import hashlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection

from recorder.limited_process import end_with_parent, limit_process_memory, measure_process_data_segment
from recorder.sealing.digest_messages import (
    DigestBudget,
    DigestFetchedMessage,
    DigestFetchFailedMessage,
    DigestItemFinishedMessage,
    DigestItemMessage,
    DigestSetupMessage,
    DigestTask,
    DigestWantedMessage,
    FromWorker,
    PictureDigestMessage,
    SnapshotDigestMessage,
    decode_to_worker,
    encode,
)
from recorder.sealing.frame_digests import (
    SnapshotOverBudget,
    compute_snapshot_screen,
    read_cells_of_frame_picture,
)
from recorder.storage.blobs import Blobs

#: A worker that holds more memory than this ends after its item: a large picture needs the rest.
_KEPT_BYTES = 48 * 1024 * 1024
_RETRY_S = 0.2


class DigestWorker:
    """Loop that computes the items from the pool, one after another."""

    def __init__(self, connection: "Connection[bytes, bytes]", setup: DigestSetupMessage) -> None:
        self._connection = connection
        self._blobs = Blobs(setup.blob_url)
        self._budget = setup.budget
        #: Size of this process after the store's client was loaded, before the first decoding.
        self._start_bytes: int | None = None

    def serve(self) -> None:
        """Compute items until the pool closes its socket or this process has grown."""
        is_ending = False
        while not is_ending:
            try:
                item = decode_to_worker(self._connection.recv_bytes())
            except EOFError:
                return
            assert isinstance(item, DigestItemMessage)
            self._compute_item(item)
            is_ending = self._has_grown()
            self._send_message(DigestItemFinishedMessage(is_ending))

    def _compute_item(self, item: DigestItemMessage) -> None:
        """Fetch the contents of an item and send the digest of each of its tasks."""
        try:
            contents = _fetch_contents(self._blobs, item)
        except KeyError:
            self._send_message(DigestFetchFailedMessage("missing"))
            return
        except Exception:
            # Credentials, addresses, libraries of stores, or one damaged object: the sealer checks the store.
            self._send_message(DigestFetchFailedMessage("unavailable"))
            return
        if self._start_bytes is None:
            self._start_bytes = measure_process_data_segment()
            limit_process_memory(self._start_bytes + self._budget.memory_bytes)
        self._send_message(
            DigestFetchedMessage(
                [_make_snapshot_key(*pair) for pair in zip(item.tasks, contents, strict=True)]
            )
        )
        wanted = decode_to_worker(self._connection.recv_bytes())
        assert isinstance(wanted, DigestWantedMessage)
        began = time.monotonic()
        for index in wanted.indexes:
            self._send_message(_compute_digest(item.tasks[index], contents[index], self._budget))
            if time.monotonic() - began > self._budget.item_seconds:
                return  # the pool queues the rest again

    def _has_grown(self) -> bool:
        """Return whether this process holds so much memory that too little is left for a large picture."""
        return (
            self._start_bytes is not None and measure_process_data_segment() > self._start_bytes + _KEPT_BYTES
        )

    def _send_message(self, message: FromWorker) -> None:
        self._connection.send_bytes(encode(message))


def _fetch_contents(blobs: Blobs, item: DigestItemMessage) -> list[bytes]:
    """Return the bytes of each task, read at once.

    Raises:
        KeyError: if the object is missing, or ends before the last task or the bytes that it must have.
        Exception: of any kind if the store does not answer.
    """
    start = min((task.offset for task in item.tasks), default=0)
    end = max((task.offset + task.length for task in item.tasks), default=0)
    data = _read_digest_worker_range(blobs, item.object_key, start, end) if item.tasks else b""
    if end < item.least_bytes:
        # Reading the last byte shows in one request that the object is complete.
        _read_digest_worker_range(blobs, item.object_key, item.least_bytes - 1, item.least_bytes)
    return [data[task.offset - start : task.offset - start + task.length] for task in item.tasks]


def _read_digest_worker_range(blobs: Blobs, key: str, start: int, end: int) -> bytes:
    """Return bytes of an object.

    Raises:
        KeyError: if the object is missing or ends before `end`.
        Exception: of any kind if the store does not answer.
    """
    try:
        data = blobs.get(key, start, end - start)
    except KeyError:
        raise
    except Exception:
        # Some stores answer a range beyond an object's end with an error: read the whole object instead. The
        # pause lets a short failure of the store pass.
        time.sleep(_RETRY_S)
        data = blobs.get(key)[start:end]
    if len(data) < end - start:
        raise KeyError(key)
    return data


def _make_snapshot_key(task: DigestTask, content: bytes) -> str | None:
    """Return the key that equal snapshots of all tenants share, a strong hash; None for a picture."""
    return hashlib.blake2b(content, digest_size=16).hexdigest() if task.kind == "snapshot" else None


def _compute_digest(
    task: DigestTask, content: bytes, budget: DigestBudget
) -> PictureDigestMessage | SnapshotDigestMessage:
    """Return the digest of a picture or DOM snapshot, within the limit on CPU time."""
    with _limit_digest_worker_cpu(budget.seconds(task)):
        if task.kind == "picture":
            return PictureDigestMessage(
                read_cells_of_frame_picture(content, max_pixels=budget.picture_pixels)
            )
        try:
            return SnapshotDigestMessage(compute_snapshot_screen(content, budget))
        except SnapshotOverBudget:
            return SnapshotDigestMessage(None, is_over_budget=True)


@contextmanager
def _limit_digest_worker_cpu(seconds: float) -> Iterator[None]:
    """Let the kernel end this process after `seconds` of CPU time: a decoder in C cannot be interrupted."""
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)


_NICENESS = 10


def main() -> None:
    """Compute digests for the pool of the sealer whose socket is named on the command line."""
    # Ctrl-C goes to every process of a terminal; the pool's process handles it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    # Lower priority than sealing runs: sessions with few pictures must not wait for large pictures.
    os.nice(_NICENESS)
    threading.Thread(target=end_with_parent, daemon=True).start()
    with (
        Connection(int(sys.argv[1])) as connection,
        suppress(EOFError, BrokenPipeError, ConnectionResetError),
    ):
        setup = decode_to_worker(connection.recv_bytes())
        assert isinstance(setup, DigestSetupMessage)
        DigestWorker(connection, setup).serve()


if __name__ == "__main__":
    main()
