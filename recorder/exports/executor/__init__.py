"""Who writes the shards of an export: this process, processes beside it, or a Dask cluster. Decision 0025."""

from recorder.exports.executor.choice import open_executor
from recorder.exports.executor.in_process import InProcess, ShardExecutor

__all__ = ["InProcess", "ShardExecutor", "open_executor"]
