"""Executors of shard tasks: this process, local processes, or a Dask cluster. Decision 0025."""

from recorder.exports.executor.base import InProcess, ShardExecutor, open_executor

__all__ = ["InProcess", "ShardExecutor", "open_executor"]
