"""Executor of a Dask cluster, and the function that its workers run. Spec §4.3, decision 0025.

The operator runs the cluster: its workers have the same release of the service, and reach lake, blobs and
destination. TLS and timeouts are Dask's own configuration (`DASK_DISTRIBUTED__…`, `dask.yaml`).
"""

import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from recorder.errors import RecorderError, Unavailable
from recorder.exports.destinations import open_destination_directory
from recorder.exports.executor.base import WorkerLost, divide_shard_tasks
from recorder.exports.planning.plan import list_library_versions
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
#: Tasks that are sent for each thread of the cluster: no thread waits for its next one, and the scheduler
#: does not hold a plan of a million sessions.
_AHEAD = 2


class WrittenElsewhere(RecorderError):
    """A worker wrote a file that this process cannot read."""

    code = "destination_not_shared"
    title = "Destination not shared"

    def __init__(self, path: str) -> None:
        super().__init__(
            f"A worker of the cluster wrote {path}, and this process does not find it at the destination. "
            "Share the folder between all machines, under one path, or export to an object store."
        )


@dataclass(frozen=True, kw_only=True)
class ClusterTimes:
    """Time limits of a cluster, in seconds."""

    connect_s: float = 20.0
    #: Time that tasks wait for a first worker, or for another one when the last is gone.
    no_worker_s: float = 60.0
    poll_s: float = 5.0
    #: Time that a run that ends waits until workers have left the shards that they are writing.
    stop_s: float = 60.0


class DaskCluster:
    """Executor whose workers are the threads of a cluster, however many it has at the time."""

    def __init__(self, address: str, times: ClusterTimes | None = None) -> None:
        self._times = times or ClusterTimes()
        # Without a scheme Dask takes its configured one.
        self._address = address.removeprefix("dask://")

    def run(self, tasks: Sequence[ShardTask]) -> Generator[WrittenShard, None, None]:
        """Write the shards and yield the results of each task when it ends.

        Raises:
            Unavailable: if the scheduler does not answer, or there is no worker.
            WorkerLost: if all workers that tried one task died.
            WrittenElsewhere: if this process does not find the files of the workers.
        """
        if not tasks:
            return
        times = self._times
        with _connect_dask_client(self._address, times.connect_s) as client:
            _repeat_dask_call(client, lambda seconds: client.wait_for_workers(1, timeout=seconds), times)
            waiting = deque(divide_shard_tasks(tasks, _count_dask_threads(client)))
            running: dict[Future[list[WrittenShard]], ShardTask] = {}
            try:
                while waiting or running:
                    while waiting and len(running) < _AHEAD * _count_dask_threads(client):
                        task = waiting.popleft()
                        running[_submit_dask_task(client, task)] = task
                    for future in _wait_for_any_future(client, list(running), times):
                        written = _await_dask_result(client, future, running[future], times)
                        yield from _yield_found_shards(written, running.pop(future))
            finally:
                _cancel_dask_tasks(client, list(running), times.stop_s)


@contextmanager
def _connect_dask_client(address: str, timeout_s: float) -> Iterator["Client"]:
    from distributed import Client

    try:
        client = Client(address, timeout=timeout_s, set_as_default=False, name="recorder-export")
    except OSError as error:
        raise Unavailable(_CLUSTER) from error
    try:
        yield client
    finally:
        client.close(timeout_s)


def _submit_dask_task(client: "Client", task: ShardTask) -> "Future[list[WrittenShard]]":
    # A key of its own: a repeated export must not get the results of an earlier one.
    return client.submit(write_dask_task, task, list_library_versions(), key=f"shards-{new_id('req')}")


def _wait_for_any_future(
    client: "Client", futures: list["Future[list[WrittenShard]]"], times: ClusterTimes
) -> list["Future[list[WrittenShard]]"]:
    """Wait until a task has ended, and return all tasks that have."""
    from distributed import wait

    with client.as_current():  # `wait` takes no client as argument
        ended = _repeat_dask_call(client, lambda timeout: wait(futures, timeout, "FIRST_COMPLETED"), times)
    return list(ended.done)


def _await_dask_result(
    client: "Client", future: "Future[list[WrittenShard]]", task: ShardTask, times: ClusterTimes
) -> list[WrittenShard]:
    """Return the results of a task, or raise its error."""
    from distributed.scheduler import KilledWorker

    error = _repeat_dask_call(client, future.exception, times)
    if isinstance(error, KilledWorker):
        # The cluster limits the starts of a task: `distributed.scheduler.allowed-failures`.
        raise WorkerLost(task.shards[0].path, error.allowed_failures + 1) from error
    if error is not None:
        raise error
    return _repeat_dask_call(client, future.result, times)


def _yield_found_shards(results: list[WrittenShard], task: ShardTask) -> Iterator[WrittenShard]:
    """Yield the shards once this process has found each at the destination."""
    destination = open_destination_directory(task.target)
    for written in results:
        try:
            is_here = destination.size(written.path) == written.size_bytes
        except KeyError:
            is_here = False
        if not is_here:
            raise WrittenElsewhere(written.path)
        yield written


def _repeat_dask_call(client: "Client", call: Callable[[float], _Answer], times: ClusterTimes) -> _Answer:
    """Repeat a call until it returns, as long as the cluster has workers.

    Raises:
        Unavailable: if the scheduler is gone, or there has been no worker for a minute.
    """
    last_worker_s = time.monotonic()
    while True:
        try:
            return call(times.poll_s)
        except TimeoutError:
            if _count_dask_threads(client):
                last_worker_s = time.monotonic()
            elif time.monotonic() - last_worker_s > times.no_worker_s:
                raise Unavailable(_CLUSTER) from None
        except (OSError, CancelledError) as error:
            raise Unavailable(_CLUSTER) from error


def _count_dask_threads(client: "Client") -> int:
    try:
        threads: dict[str, int] = client.nthreads()
    except (OSError, CancelledError) as error:
        raise Unavailable(_CLUSTER) from error
    return sum(threads.values())


def _cancel_dask_tasks(
    client: "Client", futures: list["Future[list[WrittenShard]]"], timeout_s: float
) -> None:
    """Cancel tasks; a worker leaves a task after the shard that it is writing."""
    keys = [future.key for future in futures]
    until = time.monotonic() + timeout_s
    # A cluster that is gone has nothing to stop.
    with suppress(OSError, CancelledError):
        client.cancel(futures, force=True)
        while (
            any(client.run(is_dask_task_running, keys, on_error="ignore").values())
            and time.monotonic() < until
        ):
            time.sleep(0.1)


class OtherRelease(RecorderError):
    """A worker of another release, whose files could have other bytes."""

    code = "worker_release"
    title = "Worker of another release"

    def __init__(self, theirs: dict[str, str], ours: dict[str, str]) -> None:
        unlike = ", ".join(
            f"{name} {theirs[name]} and not {ours[name]}" for name in ours if theirs[name] != ours[name]
        )
        super().__init__(
            f"A worker of the cluster has {unlike}; install the same release there and export again."
        )


def write_dask_task(task: ShardTask, versions: dict[str, str]) -> list[WrittenShard]:
    """Write the files of a task on a worker; leave a cancelled task after the shard that is being written.

    Args:
        task: shards to write.
        versions: the planning process's `list_library_versions()`, which are in the shards' content keys.

    Raises:
        OtherRelease: if this worker has other versions.
    """
    from distributed import get_worker

    if versions != list_library_versions():
        raise OtherRelease(list_library_versions(), versions)
    worker = get_worker()
    key = worker.get_current_task()
    results = []
    for written in write_shards(task):
        results.append(written)
        if not _is_dask_task_wanted(worker, key):
            break
    return results


def is_dask_task_running(keys: list[str], dask_worker: "Worker") -> bool:
    """Return whether a worker still has one of these tasks."""
    return any(key in dask_worker.state.tasks for key in keys)


def _is_dask_task_wanted(worker: "Worker", key: object) -> bool:
    """Return whether a client waits for a task; its export may have failed, or its client be gone."""
    task = worker.state.tasks.get(key)  # type: ignore[call-overload]
    return task is not None and task.state != "cancelled"
