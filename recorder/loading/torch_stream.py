"""Row stream for PyTorch; imported only where torch is installed."""

from typing import Any

import torch
from torch.utils.data import IterableDataset, get_worker_info

from recorder.loading.training_stream import RowStream


class TorchRowStream(RowStream, IterableDataset):  # type: ignore[misc]
    """An `IterableDataset` whose rows are divided among the workers of its DataLoader."""

    def _identify_worker(self) -> tuple[int, int, int]:
        """Return the number of this DataLoader worker, the number of workers, and the seed they share."""
        info = get_worker_info()
        # A DataLoader draws a new seed for each iteration, and adds the number of the worker to it.
        return (0, 1, 0) if info is None else (info.id, info.num_workers, info.seed - info.id)

    def _allocate_shared_memory(self, length: int) -> Any:
        # Workers that outlive an epoch (`persistent_workers`) see the next one.
        return torch.zeros(length, dtype=torch.int64).share_memory_()


def read_distributed_rank() -> tuple[int, int]:
    """Return rank and world size of the running process group; (0, 1) where there is none."""
    group = torch.distributed
    if not group.is_available() or not group.is_initialized():
        return 0, 1
    return int(group.get_rank()), int(group.get_world_size())
