"""The delivery loop started again and again: one process has imported it, each life is a child that delivers.

`python -m tests.faults.delivery_launcher DATABASE-URL` reads lines: each starts a life, once the one before
it has ended, and its process id is written to stdout. Attempts follow each other without waits, and what a
killed life leaves is taken up after a second.
"""

import asyncio
import os
import signal
import sys

from recorder.storage.database import Database
from recorder.webhooks.delivery_loop import DeliveryLoop
from tests.support.delivery_loop import AT_ONCE, BOX, local_client

LEASE_MS = 1_000


def main() -> None:
    """Start a life for each line, until there is no more."""
    life = 0
    for _ in sys.stdin:
        if life:
            os.waitpid(life, 0)
        life = os.fork()
        if not life:
            asyncio.run(live(sys.argv[1]))
            os._exit(0)
        print(life, flush=True)
    if life:
        os.waitpid(life, 0)


async def live(database_url: str) -> None:
    """Deliver until SIGTERM."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    database = Database(database_url)
    await DeliveryLoop(database, local_client(), BOX, schedule=AT_ONCE, lease_ms=LEASE_MS).run(stop)
    database.close()


if __name__ == "__main__":
    main()
