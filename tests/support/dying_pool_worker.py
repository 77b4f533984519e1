"""Worker process of the pool that is killed after it has reported the last file of its task."""

import os
import signal
import sys
from multiprocessing.connection import Connection

from recorder.exports.executor.pool_worker import serve_pool_tasks


class _LastWords(Connection):
    """A connection that kills its process instead of reporting the end of a task."""

    def send(self, obj: object) -> None:
        if obj is None:
            os.kill(os.getpid(), signal.SIGKILL)
        super().send(obj)


if __name__ == "__main__":
    with _LastWords(int(sys.argv[1])) as connection:
        serve_pool_tasks(connection)
