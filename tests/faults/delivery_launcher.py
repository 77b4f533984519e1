"""The delivery loop started again and again: one process has imported it, each life is a child that delivers.

`python -m tests.faults.delivery_launcher DATABASE-URL` reads lines: each starts a life, once the one before
it has ended, and its process id is written to stdout. Attempts follow each other without waits, and what a
killed life leaves is taken up after a second.
"""

import asyncio
import signal
import sys

from recorder.storage.database import Database
from recorder.webhooks.delivery_loop import DeliveryLoop
from tests.support.delivery_loop import AT_ONCE, BOX, local_client
from tests.support.forked_restarts import live_in_turns

LEASE_MS = 1_000


async def live(database_url: str) -> None:
    """Deliver until SIGTERM."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    database = Database(database_url)
    await DeliveryLoop(database, local_client(), BOX, schedule=AT_ONCE, lease_ms=LEASE_MS).run(stop)
    database.close()


if __name__ == "__main__":
    live_in_turns(lambda _: asyncio.run(live(sys.argv[1])))
