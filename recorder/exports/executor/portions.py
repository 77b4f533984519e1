"""How tasks are cut up for several workers: none waits while another has a long task left. Spec §4.3."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from recorder.exports.formats import FORMATS
from recorder.exports.planning.sharding import PlannedShard
from recorder.exports.writers.tasks import ShardTask

#: A worker gets at least so many tasks where there are shards for it. More would share the work out more
#: evenly, and read the lake's files more often: a lake file holds sessions of every shard.
_TASKS_OF_A_WORKER = 3


def in_portions(tasks: Sequence[ShardTask], workers: int) -> list[ShardTask]:
    """The same shards in tasks that keep so many workers busy, the largest first.

    A task is cut between shards where it holds more than a worker's share of all bytes; one worker gets the
    tasks as they are.
    """
    if workers == 1:
        return list(tasks)
    share = sum(_bytes(task, task.shards) for task in tasks) / (workers * _TASKS_OF_A_WORKER)
    cut = [replace(task, shards=shards) for task in tasks for shards in _cut(task, share)]
    return sorted(cut, key=lambda task: _bytes(task, task.shards), reverse=True)


def _cut(task: ShardTask, share: float) -> Iterator[list[PlannedShard]]:
    """Neighbouring shards of a task, together no larger than the share unless there is only one."""
    portion: list[PlannedShard] = []
    for shard in task.shards:
        if portion and _bytes(task, [*portion, shard]) > share:
            yield portion
            portion = []
        portion.append(shard)
    yield portion


def _bytes(task: ShardTask, shards: Sequence[PlannedShard]) -> int:
    """About how much there is to write: rows, and the pictures that the format carries."""
    rows = sum(shard.bytes_read for shard in shards)
    if task.shards[0].kind == "events" or not FORMATS[task.format].carries_images:
        return rows
    return rows + sum(int(shard.sessions["image_bytes"].sum()) for shard in shards)
