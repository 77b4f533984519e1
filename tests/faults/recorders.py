"""Clients that record while the API dies under them: each batch is sent until it is acknowledged."""

import http.client
import itertools
import threading
import time
from typing import Protocol

import orjson

from benchmarks.seeds import Target
from recorder import limits

BATCH = limits.EVENTS_PER_BATCH
_PAUSE_S = 0.01


class Address(Protocol):
    """Place of a process, or of the one that takes the next connection."""

    @property
    def host(self) -> str:
        """Host name."""

    @property
    def port(self) -> int:
        """Port."""


class Recorder(threading.Thread):
    """One client thread with a session of its own, whose events are numbered from 0."""

    def __init__(self, lives: Address, target: Target, *, pause_s: float = 0.0) -> None:
        """Prepare a client.

        Args:
            lives: where it sends.
            target: its session and key.
            pause_s: pause after each batch.
        """
        super().__init__(daemon=True)
        self._pause_s = pause_s
        self.lives = lives
        self.target = target
        #: Batches that were acknowledged; their events are the first so many hundreds.
        self.acknowledged = 0
        #: Acknowledgements of a batch that was stored before: the first had been lost on its way.
        self.repeated = 0
        #: Connections that broke, or were not made.
        self.broken = 0
        self.refused: list[bytes] = []
        self._is_over = threading.Event()
        self._connection: http.client.HTTPConnection | None = None

    def finish(self) -> None:
        """End after the current batch, once it is acknowledged."""
        self._is_over.set()

    def run(self) -> None:
        """Record until `finish` is called; a refusal ends it early."""
        for number in itertools.count():
            if self._is_over.is_set() or self.refused:
                break
            self._send(number)
            if self._pause_s:
                self._is_over.wait(self._pause_s)
        self._hang_up()

    def _send(self, number: int) -> None:
        first = number * BATCH
        items = [{"t_ms": n, "type": "click", "data": {"n": n}} for n in range(first, first + BATCH)]
        body = orjson.dumps({"events": items})
        while True:
            try:
                status, answer, is_repeated = self._post(body, f"b-{number}")
            except (OSError, http.client.HTTPException):
                self._hang_up()
                self.broken += 1
                time.sleep(_PAUSE_S)
                continue
            if status == 202:
                self.acknowledged += 1
                self.repeated += is_repeated
                return
            if status != 503:
                self.refused.append(answer)
                return

    def _post(self, body: bytes, key: str) -> tuple[int, bytes, bool]:
        if self._connection is None:
            self._connection = http.client.HTTPConnection(self.lives.host, self.lives.port, timeout=20)
        headers = {
            "Authorization": f"Bearer {self.target.key}",
            "Content-Type": "application/json",
            "Idempotency-Key": key,
        }
        self._connection.request("POST", self.target.path, body, headers)
        answer = self._connection.getresponse()
        return answer.status, answer.read(), answer.headers["Idempotent-Replayed"] == "true"

    def _hang_up(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def read_back(self) -> list[int]:
        """Return the number of every event that the session holds, in its order."""
        connection = http.client.HTTPConnection(self.lives.host, self.lives.port, timeout=120)
        headers = {"Authorization": f"Bearer {self.target.key}", "Accept": "application/x-ndjson"}
        connection.request("GET", self.target.path, headers=headers)
        answer = connection.getresponse()
        lines = answer.read().splitlines()
        connection.close()
        assert answer.status == 200, lines[:1]
        return [orjson.loads(line)["data"]["n"] for line in lines]
