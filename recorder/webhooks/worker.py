"""`recorder deliver`: a delivery loop as a process of its own. Contract §6, §9."""

import asyncio
import signal
from pathlib import Path

from recorder.net.client import OutboundClient
from recorder.net.guard import Guard
from recorder.pulse import beat
from recorder.settings import Settings
from recorder.storage.database import open_database
from recorder.storage.durable import keep_files_private
from recorder.webhooks.delivery import DeliveryLoop
from recorder.webhooks.schedule import Schedule
from recorder.webhooks.secrets import SecretBox

# A turn may wait thirty seconds for the database's lock, and the loop is well.
_LONGEST_TURN_S = 60.0
_BEAT_S = 1.0


def deliver(settings: Settings, pulse: Path | None = None) -> None:
    """Send what is due until SIGINT or SIGTERM; what is under way then gets a few seconds to end.

    Args:
        pulse: file that is touched every second while the loop goes on.

    Raises:
        NoDeployment: if the database is empty.
        InvalidAllowList: if the setting of addresses beyond the public ones cannot be read.
    """
    client = OutboundClient(Guard.of(settings))
    keep_files_private()
    database = open_database(settings, create=False)
    try:
        schedule = Schedule(max_attempts=settings.webhook_attempts)
        loop = DeliveryLoop(database, client, SecretBox(settings.secret), schedule=schedule)
        asyncio.run(_run_until_signal(loop, pulse))
    finally:
        database.close()


async def _run_until_signal(loop: DeliveryLoop, pulse: Path | None) -> None:
    stop = asyncio.Event()
    beating = asyncio.create_task(_keep_beating(loop, pulse)) if pulse is not None else None
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    try:
        await loop.run(stop)
    finally:
        if beating is not None:
            beating.cancel()


async def _keep_beating(loop: DeliveryLoop, pulse: Path) -> None:
    while True:
        if loop.turn_s < _LONGEST_TURN_S:
            beat(pulse)
        await asyncio.sleep(_BEAT_S)
