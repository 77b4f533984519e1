"""kill -9 of the API during ingest: what it acknowledged is there, once. Contract §1, decision 0002.

`make faults` kills 300 times and records a million events on each engine; `make test-faults` does a little of
it. The moments of the kills follow a seed, which a failure names.
"""

import os
import random
import time
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import text

from benchmarks.seeds import recording_sessions
from recorder.runtime import Runtime
from recorder.settings import Settings
from tests.faults.api_restarts import Lives, api_lives
from tests.faults.recorders import BATCH, Recorder
from tests.faults.results import add_result, count_done
from tests.support.sealed_sessions import make_settings

KILLS = int(os.environ.get("RECORDER_FAULT_KILLS", "3"))  # noqa: TID251
EVENTS = int(os.environ.get("RECORDER_FAULT_EVENTS", "2000"))  # noqa: TID251
SEED = int(os.environ.get("RECORDER_FAULT_SEED", "1"))  # noqa: TID251
_CLIENTS = 8
# A life that answers nobody within this has failed to start.
_START_S = 60.0


@dataclass(frozen=True)
class EventCounts:
    """Counts of the events of all clients."""

    acknowledged: int
    lost: int
    double: int
    unknown: int


def kill_again_and_again(
    lives: Lives, recorders: list[Recorder], chance: random.Random, *, kills: int
) -> None:
    """Kill so often and record so much as asked for, then leave the API alive."""
    while lives.kills < kills or acknowledged(recorders) < EVENTS:
        if chance.random() < 0.1:
            time.sleep(chance.uniform(0.0, 0.3))  # while it starts
        else:
            wait_for_progress(recorders, acknowledged(recorders) + chance.randrange(1, 2 * share()) * BATCH)
            time.sleep(chance.uniform(0.0, 0.01))
        lives.kill()
        lives.start()


def share() -> int:
    """Return the number of batches that a life must store to reach the sum."""
    return max(1, EVENTS // BATCH // max(1, KILLS))


def acknowledged(recorders: list[Recorder]) -> int:
    """Return the events that were acknowledged until now."""
    return sum(recorder.acknowledged for recorder in recorders) * BATCH


def wait_for_progress(recorders: list[Recorder], events: int) -> None:
    """Return once so many events are acknowledged."""
    until = time.monotonic() + _START_S
    while acknowledged(recorders) < events:
        assert time.monotonic() < until and not any(recorder.refused for recorder in recorders), (
            f"seed {SEED}: nothing goes on; refused: {[recorder.refused for recorder in recorders]}"
        )
        time.sleep(0.001)


def count_events(recorders: list[Recorder]) -> EventCounts:
    """Count every event that is read back over HTTP and was acknowledged."""
    lost = double = unknown = 0
    for recorder in recorders:
        sent = range(recorder.acknowledged * BATCH)
        stored = recorder.read_back()
        double += len(stored) - len(set(stored))
        lost += len(set(sent).difference(stored))
        unknown += len(set(stored).difference(sent))
    return EventCounts(acknowledged(recorders), lost, double, unknown)


def test_nothing_acknowledged_is_lost_or_double(database_url: str, tmp_path: Path) -> None:
    settings = make_settings(tmp_path, database_url=database_url)
    name = f"API kills on {'SQLite' if database_url.startswith('sqlite') else 'PostgreSQL'}"
    done = count_done(name)
    missing = max(KILLS - done, 0)
    targets = recording_sessions(settings, sessions=_CLIENTS, keys=2)
    with api_lives(settings) as lives:
        recorders = [Recorder(lives, target) for target in targets]
        for recorder in recorders:
            recorder.start()
        kill_again_and_again(lives, recorders, random.Random(SEED + done), kills=missing)
        for recorder in recorders:
            recorder.finish()
        for recorder in recorders:
            recorder.join(timeout=_START_S)
        counts = count_events(recorders)
        counted = sum_event_counts(settings)
    repeated = sum(recorder.repeated for recorder in recorders)
    print(f"{lives.kills} kills, {repeated} acknowledgements lost on their way, {counts}")
    assert counts.acknowledged >= EVENTS and lives.kills >= missing
    assert (counts.lost, counts.double, counts.unknown) == (0, 0, 0), f"seed {SEED}"
    assert counted == counts.acknowledged
    add_result(name, lives.kills, seed=SEED, events=counts.acknowledged)


def sum_event_counts(settings: Settings) -> int:
    """Return the sum of the sessions' own counts; on SQLite the file is checked too."""
    runtime = Runtime.open(settings)
    with runtime.database.transaction(write=False) as db:
        if runtime.database.is_sqlite:
            assert db.connection().execute(text("PRAGMA integrity_check")).scalar_one() == "ok"
        total: int = db.connection().execute(text("SELECT sum(event_count) FROM sessions")).scalar_one()
    runtime.close()
    return total
