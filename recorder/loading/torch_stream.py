"""Row stream for PyTorch; imported only where torch is installed."""

from typing import Any

import torch
from torch.utils.data import IterableDataset, get_worker_info

from recorder.loading.training_stream import RowStream


class TorchRowStream(RowStream, IterableDataset):  # type: ignore[misc]
    """An `IterableDataset` whose rows are divided among the workers of its DataLoader."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        # Shared memory: workers that outlive an epoch (`persistent_workers`) see the next one.
        self._epoch = torch.zeros(1, dtype=torch.int64).share_memory_()

    def _find_worker_and_count(self) -> tuple[int, int]:
        info = get_worker_info()
        return (0, 1) if info is None else (info.id, info.num_workers)


def read_distributed_rank() -> tuple[int, int]:
    """Return rank and world size of the running process group; (0, 1) where there is none."""
    group = torch.distributed
    if not group.is_available() or not group.is_initialized():
        return 0, 1
    return int(group.get_rank()), int(group.get_world_size())
