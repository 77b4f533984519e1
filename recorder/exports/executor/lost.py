"""What is said of a task whose workers die. Spec §4.3."""

from recorder.errors import RecorderError

#: A task is begun so often; with the last worker that dies of it, the export fails.
MAX_STARTS = 3


class WorkerLost(RecorderError):
    """Worker after worker died of one task."""

    code = "worker_lost"
    title = "Worker lost"

    def __init__(self, path: str, deaths: int) -> None:
        super().__init__(
            f"{deaths} workers died while they wrote {path} or shards beside it; they may lack memory. "
            "Use fewer workers on a machine, or larger ones, and export again."
        )
