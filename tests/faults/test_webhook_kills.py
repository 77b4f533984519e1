"""kill -9 of the delivery loop: every event is attempted, and none more than seven times. Contract §6.

`make faults` delivers 10,000 events under 100 kills on each engine; `make test-faults` does a little of it.
The moments of the kills follow a seed, which a failure names.
"""

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from sqlmodel import col, func, select

from recorder.access.workspaces import create_workspace
from recorder.ids import new_id
from recorder.models.webhook import DeliveryRow
from recorder.storage.database import Database
from recorder.tenant import Tenant
from recorder.webhooks.delivery_scheduling import MAX_ATTEMPTS
from recorder.webhooks.outbox import add_outbox_event
from tests.support.delivery_loop import attempts, make_webhook
from tests.support.deployment_processes import ROOT
from tests.support.webhook_receiver import Answer, Receiver, running_receiver

KILLS = min(100, int(os.environ.get("RECORDER_FAULT_KILLS", "5")))  # noqa: TID251
EVENTS = min(10_000, int(os.environ.get("RECORDER_FAULT_EVENTS", "300")))  # noqa: TID251
SEED = int(os.environ.get("RECORDER_FAULT_SEED", "1"))  # noqa: TID251
_PATIENCE_S = 60.0


@dataclass
class Worker:
    """A delivery loop that lives again after each kill."""

    _launcher: "subprocess.Popen[str]"
    _life: int = 0

    def start(self) -> None:
        """Begin the next life."""
        assert self._launcher.stdin is not None and self._launcher.stdout is not None
        print(file=self._launcher.stdin, flush=True)
        self._life = int(self._launcher.stdout.readline())

    def end(self, number: signal.Signals) -> None:
        """End this life."""
        os.kill(self._life, number)


@contextmanager
def running_worker(database_url: str) -> Iterator[Worker]:
    """Yield a worker that can be killed while the block runs."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.faults.delivery_launcher", database_url],
        env={**os.environ, "PYTHONPATH": str(ROOT)},  # noqa: TID251
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as launcher:
        worker = Worker(launcher)
        worker.start()
        try:
            yield worker
        finally:
            worker.end(signal.SIGTERM)
            assert launcher.stdin is not None
            launcher.stdin.close()


def fill_outbox(database: Database, workspace_id: str) -> set[str]:
    """Store events that wait to be delivered."""
    ids = set()
    for _ in range(EVENTS // 100):
        with database.transaction(write=True) as db:
            ids |= {
                add_outbox_event(
                    db,
                    tenant=Tenant(workspace_id, "live"),
                    type="session.created",
                    subject_id=new_id("ses"),
                    data={"session": {"id": "ses_1"}},
                ).id
                for _ in range(100)
            }
    return ids


def wait_for(receiver: Receiver, count: int) -> None:
    """Return once so many deliveries arrived."""
    until = time.monotonic() + _PATIENCE_S
    while len(receiver.received) < count:
        assert time.monotonic() < until, f"seed {SEED}: nothing arrives any more"
        time.sleep(0.001)


def kill_again_and_again(worker: Worker, receiver: Receiver, chance: random.Random) -> None:
    """Kill so often as asked for, each time after some more deliveries, and leave a worker alive."""
    share = EVENTS // (KILLS + 1)
    for _ in range(KILLS):
        wait_for(receiver, min(EVENTS - 1, len(receiver.received) + chance.randrange(1, 2 * share)))
        time.sleep(chance.uniform(0.0, 0.01))
        worker.end(signal.SIGKILL)
        worker.start()


def wait_all_ended(database: Database, webhook_id: str) -> list[DeliveryRow]:
    """Return all records, once every delivery has succeeded or failed for good."""
    until, left = time.monotonic() + _PATIENCE_S, EVENTS
    while left:
        assert time.monotonic() < until, f"seed {SEED}: {left} events are left, and nothing goes on"
        time.sleep(0.2)
        before, left = left, EVENTS - count_ended(database, webhook_id)
        if left < before:
            until = time.monotonic() + _PATIENCE_S
    return attempts(database, webhook_id)


def count_ended(database: Database, webhook_id: str) -> int:
    """Return the number of events with a last attempt."""
    ended = select(func.count()).where(
        col(DeliveryRow.webhook_id) == webhook_id, col(DeliveryRow.status).in_(("succeeded", "exhausted"))
    )
    with database.transaction(write=False) as db:
        return db.exec(ended).one()


def test_no_event_goes_unattempted_and_none_is_attempted_too_often(database_url: str) -> None:
    database = Database(database_url)
    database.migrate()
    with database.transaction(write=True) as db:
        workspace_id = create_workspace(db, new_id("wsp"), region="us", secret=b"tests").workspace_id
    with running_receiver(Answer(204)) as receiver:
        url = f"{receiver.url}/in"
        webhook = make_webhook(database, url, workspace_id=workspace_id, events=("session.created",))
        expected = fill_outbox(database, workspace_id)
        with running_worker(database_url) as worker:
            kill_again_and_again(worker, receiver, random.Random(SEED))
            rows = wait_all_ended(database, webhook.id)
    database.close()
    arrived = Counter(request.headers["webhook-id"] for request in receiver.received)
    made = Counter(row.event_id for row in rows)
    repeated = sum(arrived.values()) - len(arrived)
    print(
        f"{KILLS} kills, {len(arrived)} events, {repeated} arrived again, most attempts {max(made.values())}"
    )
    assert set(arrived) == set(made) == expected, f"seed {SEED}: some were never attempted"
    assert max(made.values()) <= MAX_ATTEMPTS and max(arrived.values()) <= MAX_ATTEMPTS
    assert len({request.headers["service-delivery-id"] for request in receiver.received}) == sum(
        arrived.values()
    )
    assert Counter((row.event_id, row.attempt) for row in rows).most_common(1)[0][1] == 1
