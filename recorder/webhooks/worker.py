"""`recorder deliver`: a delivery loop as a process of its own. Contract §6, §9."""

import asyncio
import signal

from recorder.net.client import OutboundClient
from recorder.net.guard import Guard
from recorder.settings import Settings
from recorder.storage.database import Database
from recorder.webhooks.delivery import DeliveryLoop
from recorder.webhooks.schedule import Schedule
from recorder.webhooks.secrets import SecretBox


def deliver(settings: Settings) -> None:
    """Send what is due until SIGINT or SIGTERM; what is under way then gets a few seconds to end.

    Raises:
        InvalidAllowList: if the setting of addresses beyond the public ones cannot be read.
    """
    client = OutboundClient(Guard.of(settings))
    database = Database(settings.database_url)
    try:
        database.migrate()
        schedule = Schedule(max_attempts=settings.webhook_attempts)
        loop = DeliveryLoop(database, client, SecretBox(settings.secret), schedule=schedule)
        asyncio.run(_run_until_signal(loop))
    finally:
        database.close()


async def _run_until_signal(loop: DeliveryLoop) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await loop.run(stop)
