"""Who writes the shards of an export: this process, processes beside it, or a Dask cluster. Decision 0025."""

from recorder.exports.executor.base import InProcess, ShardExecutor, open_executor

__all__ = ["InProcess", "ShardExecutor", "open_executor"]
