"""Worker process of the pool: writes the tasks that it receives and reports each shard. Spec §4.3.

Started as `python -m recorder.exports.executor.pool_worker <descriptor>` with a socket to the pool. It is
no child of `multiprocessing`, which would run the parent's main script again and take no environment.
"""

import os
import pickle
import signal
import sys
import threading
from multiprocessing.connection import Connection
from types import FrameType

from recorder.exports.writers import ShardTask, write_shards
from recorder.limited_process import end_with_parent


def serve_pool_tasks(connection: "Connection[object, ShardTask]") -> None:
    """Write tasks until the pool closes the connection.

    For each task it sends a `WrittenShard` for each shard, then None, or the error that ended it.
    """
    while True:
        try:
            task = connection.recv()
        except EOFError:
            return
        except Exception as error:  # the task cannot be read here
            connection.send(_make_sendable_error(error))
            continue
        try:
            for written in write_shards(task):
                connection.send(written)
        except Exception as error:
            connection.send(_make_sendable_error(error))
        else:
            connection.send(None)


def _make_sendable_error(error: Exception) -> Exception:
    """Return the error with a note on the worker; an error that cannot be pickled becomes its description."""
    error.add_note(f"In worker {os.getpid()} of the export.")
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301  # what was just written
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


def _stop_worker(_signal: int, _frame: FrameType | None) -> None:
    """End this worker process of an export on a signal."""
    # An exception, so that a file that is being written is discarded and not left.
    sys.exit(1)


def main() -> None:
    """Write shards for the pool of the export whose socket is named on the command line."""
    # Ctrl-C is sent to every process of a terminal; the pool's process handles it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _stop_worker)
    threading.Thread(target=end_with_parent, daemon=True).start()
    with Connection(int(sys.argv[1])) as connection:
        serve_pool_tasks(connection)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # nothing is left to discard


if __name__ == "__main__":
    main()
