"""What runs on the workers of a Dask cluster. Spec §4.3, decision 0025."""

from typing import TYPE_CHECKING

from recorder.errors import RecorderError
from recorder.exports.manifest import WrittenShard
from recorder.exports.planning.plan import writer_versions
from recorder.exports.writers.shards import write_shards
from recorder.exports.writers.tasks import ShardTask

if TYPE_CHECKING:
    from distributed import Worker


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
