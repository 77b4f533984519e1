"""kill -9 of one API of several under load: the others go on, and streams are resumed at another one.

They share PostgreSQL and Redis. `RECORDER_FAULT_PEER_KILLS` gives the number of kills; `make test-faults`
does a few. The moments follow `RECORDER_FAULT_SEED`, which a failure names.
"""

import os
import random
import threading
import time
from contextlib import ExitStack, suppress
from itertools import cycle
from pathlib import Path

import httpx

from benchmarks.seeds import Target, recording_sessions
from recorder.access.keys import NewKey
from tests.faults.api_restarts import Lives, api_lives
from tests.faults.recorders import BATCH, Recorder
from tests.faults.results import add_result, count_done
from tests.faults.test_api_kills import SEED, count_events, sum_event_counts
from tests.support.databases import create_database
from tests.support.redis_server import running_redis
from tests.support.sealed_sessions import make_settings
from tests.support.stream_clients import Streamer, connected, listening, wait_answers
from tests.support.waiting import wait_for

KILLS = int(os.environ.get("RECORDER_FAULT_PEER_KILLS", "2"))  # noqa: TID251
_PROCESSES = 3
_NAME = "API kills beside others"
_PATIENCE_S = 120.0
#: Each of the six clients sends about four batches of 100 events a second.
_PAUSE_S = 0.2
#: Messages after which a reader goes to the next process, so that it comes back to the one that is killed.
_MESSAGES = 2_000


class Balancer:
    """Address of several processes: each connection goes to the next one."""

    def __init__(self, peers: list[Lives], first: int = 0) -> None:
        self._turns = cycle([*peers[first:], *peers[:first]])
        self.host = peers[0].host

    @property
    def port(self) -> int:
        """Port of the next process."""
        return next(self._turns).port

    @property
    def url(self) -> str:
        """Address of the next process."""
        return f"http://{self.host}:{self.port}"


class Reader(threading.Thread):
    """Reads the stream of a session, and resumes it at the next process when it breaks or after a while."""

    def __init__(self, address: Balancer, target: Target) -> None:
        super().__init__(daemon=True)
        self.numbers: list[int] = []
        self.positions: list[int] = []
        self.breaks = 0
        self._address, self._target = address, target
        self._is_over = threading.Event()

    def finish(self) -> None:
        """End soon."""
        self._is_over.set()

    def run(self) -> None:
        """Read until `finish` is called."""
        while not self._is_over.is_set():
            with suppress(httpx.TransportError):
                self._read_until_it_breaks()
            self.breaks += 1

    def _read_until_it_breaks(self) -> None:
        url, sent = self._address.url, {}
        if self.positions:
            sent["Last_Event_ID"] = str(self.positions[-1])
        key = NewKey("", "", self._target.key)
        with (
            connected(url, key.key) as http,
            listening(Streamer(url, key, http), self._target.session_id, "?from=start", **sent) as heard,
        ):
            taken = 0
            while not (heard.is_over or heard.error or self._is_over.is_set() or taken > _MESSAGES):
                self._is_over.wait(0.02)
                taken = self._take(heard.messages, taken)
            self._take(heard.messages, taken)

    def _take(self, messages: list[dict[str, object]], taken: int) -> int:
        new = messages[taken:]
        for message in new:
            self.positions.append(int(str(message["id"])))
            if message["event"] == "session.event":
                self.numbers.append(message["data"]["data"]["n"])  # type: ignore[index]
        return taken + len(new)


def test_a_killed_process_costs_the_others_nothing(postgres: str, tmp_path: Path) -> None:
    missing = max(KILLS - count_done(_NAME), 0)
    chance = random.Random(SEED + count_done(_NAME))
    with ExitStack() as parts:
        redis = parts.enter_context(running_redis())
        settings = make_settings(tmp_path, database_url=create_database(postgres), redis_url=redis.url)
        targets = recording_sessions(settings, sessions=2 * _PROCESSES, keys=1)
        peers = [parts.enter_context(api_lives(settings)) for _ in range(_PROCESSES)]
        for peer in peers:
            wait_answers(f"http://{peer.host}:{peer.port}")
        pinned = [
            Recorder(peer, target, pause_s=_PAUSE_S) for peer, target in zip(peers, targets, strict=False)
        ]
        moving = [Recorder(Balancer(peers), target, pause_s=_PAUSE_S) for target in targets[_PROCESSES:]]
        readers = [Reader(Balancer(peers), target) for target in targets[_PROCESSES:]]
        for thread in [*pinned, *moving, *readers]:
            thread.start()
        for _ in range(missing):
            kill_one(peers[0], pinned, moving, chance)
        for recorder in [*pinned, *moving]:
            recorder.finish()
        for recorder in [*pinned, *moving]:
            recorder.join(timeout=_PATIENCE_S)
        counts = count_events([*pinned, *moving])
        for recorder, reader in zip(moving, readers, strict=True):
            wanted = recorder.acknowledged * BATCH
            wait_for(lambda: len(reader.numbers) >= wanted, seconds=_PATIENCE_S)  # noqa: B023
        for reader in readers:
            reader.finish()
            reader.join(timeout=_PATIENCE_S)
    breaks = sum(reader.breaks for reader in readers)
    print(f"{missing} kills of one of {_PROCESSES}, {counts}, {breaks} streams resumed")
    assert (counts.lost, counts.double, counts.unknown) == (0, 0, 0), f"seed {SEED}"
    assert sum_event_counts(settings) == counts.acknowledged
    assert [recorder.broken for recorder in pinned[1:]] == [0] * (_PROCESSES - 1), f"seed {SEED}"
    assert pinned[0].broken >= missing
    for recorder, reader in zip(moving, readers, strict=True):
        assert reader.numbers == list(range(recorder.acknowledged * BATCH)), f"seed {SEED}"
        assert reader.positions == sorted(set(reader.positions)), f"seed {SEED}"
    assert breaks >= min(missing, 1)
    add_result(_NAME, missing, seed=SEED, events=counts.acknowledged)


def kill_one(victim: Lives, pinned: list[Recorder], moving: list[Recorder], chance: random.Random) -> None:
    """Kill a process under load, require that all other clients go on, and start it again."""
    wait_for_batches(pinned, 1 + chance.randrange(3))
    time.sleep(chance.uniform(0.0, 0.05))
    victim.kill()
    wait_for_batches([*pinned[1:], *moving], 2)
    victim.start()


def wait_for_batches(recorders: list[Recorder], count: int) -> None:
    """Wait until each client has so many more acknowledged batches."""
    wanted = [recorder.acknowledged + count for recorder in recorders]
    wait_for(
        lambda: all(
            recorder.acknowledged >= number for recorder, number in zip(recorders, wanted, strict=True)
        ),
        seconds=_PATIENCE_S,
    )
    assert not any(recorder.refused for recorder in recorders), f"seed {SEED}"
