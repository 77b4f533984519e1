"""Shards are written by the workers of a Dask cluster. Spec §4.3, decision 0025.

The cluster is the operator's: its workers have the service installed, in the same release, and reach lake,
blobs and destination. TLS and timeouts are Dask's own configuration (`DASK_DISTRIBUTED__…`, `dask.yaml`).
"""

import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, TypeVar

from recorder.errors import RecorderError, Unavailable
from recorder.exports.destinations import open_target
from recorder.exports.executor.base import WorkerLost, in_portions
from recorder.exports.planning.plan import writer_versions
from recorder.exports.writers import ShardTask, WrittenShard
from recorder.ids import new_id

if TYPE_CHECKING:
    from distributed import Client, Future
from typing import TYPE_CHECKING

from recorder.exports.writers import write_shards

if TYPE_CHECKING:
    from distributed import Worker

_Answer = TypeVar("_Answer")
_CLUSTER = "The Dask cluster"
_CONNECT_SECONDS = 20
#: For so long tasks wait for a first worker, or for another one when the last is gone.
_NO_WORKER_SECONDS = 60.0
_LOOK_SECONDS = 5.0
#: For so long a run that ends waits for the shards that are being written to be left.
_STOP_SECONDS = 60.0
#: Tasks that are sent ahead for each thread of the cluster: none waits for the next, and the scheduler does
#: not hold a plan of a million sessions.
_AHEAD = 2


class WrittenElsewhere(RecorderError):
    """A worker wrote a file that this process does not see."""

    code = "destination_not_shared"
    title = "Destination not shared"

    def __init__(self, path: str) -> None:
        super().__init__(
            f"A worker of the cluster wrote {path}, and the destination does not hold it as seen from here. "
            "Share the folder between all machines, under one path, or export to an object store."
        )


class DaskCluster:
    """The threads of a cluster's workers, however many there are at the time."""

    def __init__(self, address: str) -> None:
        # Without a scheme Dask takes its configured one.
        self._address = address.removeprefix("dask://")

    def run(self, tasks: Sequence[ShardTask]) -> Generator[WrittenShard, None, None]:
        """Write the shards and give the results of each task as it ends.

        Raises:
            Unavailable: if the scheduler does not answer, or no worker comes.
            WorkerLost: if worker after worker died of one task.
            WrittenElsewhere: if the workers have another destination before them.
        """
        if not tasks:
            return
        with _connected(self._address) as client:
            _patiently(client, lambda seconds: client.wait_for_workers(1, timeout=seconds))
            waiting = deque(in_portions(tasks, _count_threads(client)))
            under_way: dict[Future[list[WrittenShard]], ShardTask] = {}
            try:
                while waiting or under_way:
                    while waiting and len(under_way) < _AHEAD * _count_threads(client):
                        task = waiting.popleft()
                        under_way[_submit(client, task)] = task
                    for future in _next_ended(client, list(under_way)):
                        written = _result_of(client, future, under_way[future])
                        yield from _seen_from_here(written, under_way.pop(future))
            finally:
                _stop(client, list(under_way))


@contextmanager
def _connected(address: str) -> Iterator["Client"]:
    from distributed import Client

    try:
        client = Client(address, timeout=_CONNECT_SECONDS, set_as_default=False, name="recorder-export")
    except OSError as error:
        raise Unavailable(_CLUSTER) from error
    try:
        yield client
    finally:
        client.close(_CONNECT_SECONDS)


def _submit(client: "Client", task: ShardTask) -> "Future[list[WrittenShard]]":
    # A key of its own: a repeated export must not be handed the results of the one before.
    return client.submit(write_portion, task, writer_versions(), key=f"shards-{new_id('req')}")


def _next_ended(
    client: "Client", futures: list["Future[list[WrittenShard]]"]
) -> list["Future[list[WrittenShard]]"]:
    """Those that have ended, at least one."""
    from distributed import wait

    with client.as_current():  # `wait` knows no other way to be told which
        ended = _patiently(client, lambda timeout: wait(futures, timeout, "FIRST_COMPLETED"))
    return list(ended.done)


def _result_of(client: "Client", future: "Future[list[WrittenShard]]", task: ShardTask) -> list[WrittenShard]:
    """What a task has written; its error is raised."""
    from distributed.scheduler import KilledWorker

    error = _patiently(client, future.exception)
    if isinstance(error, KilledWorker):
        # How often a task is begun is the cluster's to say: `distributed.scheduler.allowed-failures`.
        raise WorkerLost(task.shards[0].path, error.allowed_failures + 1) from error
    if error is not None:
        raise error
    return _patiently(client, future.result)


def _seen_from_here(results: list[WrittenShard], task: ShardTask) -> Iterator[WrittenShard]:
    """The shards, each looked for where this process would read it."""
    destination = open_target(task.target)
    for written in results:
        try:
            is_here = destination.size(written.path) == written.size_bytes
        except KeyError:
            is_here = False
        if not is_here:
            raise WrittenElsewhere(written.path)
        yield written


def _patiently(client: "Client", ask: Callable[[float], _Answer]) -> _Answer:
    """Ask until there is an answer, as long as the cluster has workers that may give it.

    Raises:
        Unavailable: if the scheduler is gone, or there has been no worker for long.
    """
    seen = time.monotonic()
    while True:
        try:
            return ask(_LOOK_SECONDS)
        except TimeoutError:
            if _count_threads(client):
                seen = time.monotonic()
            elif time.monotonic() - seen > _NO_WORKER_SECONDS:
                raise Unavailable(_CLUSTER) from None
        except (OSError, CancelledError) as error:
            raise Unavailable(_CLUSTER) from error


def _count_threads(client: "Client") -> int:
    try:
        threads: dict[str, int] = client.nthreads()
    except (OSError, CancelledError) as error:
        raise Unavailable(_CLUSTER) from error
    return sum(threads.values())


def _stop(client: "Client", futures: list["Future[list[WrittenShard]]"]) -> None:
    """Take back tasks; what is being written is left after the shard at hand."""
    keys = [future.key for future in futures]
    until = time.monotonic() + _STOP_SECONDS
    # A cluster that is gone has nothing to stop.
    with suppress(OSError, CancelledError):
        client.cancel(futures, force=True)
        while any(client.run(is_at_work, keys, on_error="ignore").values()) and time.monotonic() < until:
            time.sleep(0.1)


class OtherRelease(RecorderError):
    """A worker whose files would have other bytes than the manifest says."""

    code = "worker_release"
    title = "Worker of another release"

    def __init__(self, theirs: dict[str, str], ours: dict[str, str]) -> None:
        unlike = ", ".join(
            f"{name} {theirs[name]} and not {ours[name]}" for name in ours if theirs[name] != ours[name]
        )
        super().__init__(
            f"A worker of the cluster has {unlike}; install the same release there and export again."
        )


def write_portion(task: ShardTask, versions: dict[str, str]) -> list[WrittenShard]:
    """Write the files of a task; one that is taken back is left after the shard at hand.

    Args:
        versions: the planning process's `writer_versions()`, which are in the shards' content keys.

    Raises:
        OtherRelease: if this worker has others.
    """
    from distributed import get_worker

    if versions != writer_versions():
        raise OtherRelease(writer_versions(), versions)
    worker = get_worker()
    key = worker.get_current_task()
    results = []
    for written in write_shards(task):
        results.append(written)
        if not _is_wanted(worker, key):
            break
    return results


def is_at_work(keys: list[str], dask_worker: "Worker") -> bool:
    """Whether a worker still knows one of these tasks."""
    return any(key in dask_worker.state.tasks for key in keys)


def _is_wanted(worker: "Worker", key: object) -> bool:
    """Whether somebody waits for a task; its export may have failed, or its client be gone."""
    task = worker.state.tasks.get(key)  # type: ignore[call-overload]
    return task is not None and task.state != "cancelled"
