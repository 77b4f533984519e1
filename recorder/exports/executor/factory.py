"""Which executor a deployment's exports run on: the setting `RECORDER_EXPORT_EXECUTOR`. Contract §9."""

from importlib.util import find_spec

from recorder.exports.executor.base import InProcess, ShardExecutor
from recorder.settings import InvalidSetting


def open_executor(chosen: str) -> ShardExecutor:
    """The executor that a setting names; nothing is started or connected to before tasks are run.

    Args:
        chosen: `Settings.export_executor`: `in_process`, `processes:N`, or the address of a Dask scheduler.

    Raises:
        InvalidSetting: if it names a Dask cluster and Dask is not installed.
    """
    kind, _, rest = chosen.partition(":")
    if kind == "in_process":
        return InProcess()
    if kind == "processes":
        from recorder.exports.executor.pool import ProcessPool

        return ProcessPool(int(rest))
    if find_spec("distributed") is None:
        takes = "the address of a Dask cluster only where Dask is: pip install 'workflow-recorder[dask]'"
        raise InvalidSetting("RECORDER_EXPORT_EXECUTOR", takes)
    from recorder.exports.executor.cluster import DaskCluster

    return DaskCluster(chosen)
