"""Liveness of child processes: probes over HTTP, gRPC and sockets, silence, and restart pauses."""

import functools
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

import httpx

from recorder.retries import compute_doubling_pause

# Messages of grpc.health.v1: the request names a service, the answer says that it is serving.
_CHECK = "/grpc.health.v1.Health/Check"
_DAGSTER_API = b"\x0a\x0aDagsterApi"
_SERVING = b"\x08\x01"


@functools.cache
def shared_probe_client() -> httpx.Client:
    """Return the client of all probes; a client for each of them would read the CA certificates: 40 ms.

    It keeps no connection: one to a child that was started again would fail the next probe.
    """
    return httpx.Client(trust_env=False, limits=httpx.Limits(max_keepalive_connections=0))


def has_status_200(url: str, *, timeout_s: float = 5.0) -> bool:
    """Return whether an address answers 200."""
    try:
        return shared_probe_client().get(url, timeout=timeout_s).status_code == 200
    except httpx.HTTPError:
        return False


def answers_http(url: str, *, timeout_s: float) -> bool:
    """Return whether an address answers at all: a refusal also counts."""
    try:
        shared_probe_client().get(url, timeout=timeout_s)
    except httpx.HTTPError:
        return False
    return True


def accepts_socket_connections(path: Path) -> bool:
    """Return whether a server listens on this unix socket."""
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return False
    return True


def serves_grpc(path: Path, *, timeout_s: float) -> bool:
    """Return whether Dagster's code server on this unix socket says that it is serving."""
    import grpc  # a fifth of a second that commands without children do not need

    # A channel of its own each time: a kept one waits up to two minutes before it connects again.
    with grpc.insecure_channel(f"unix:{path}") as channel:
        check = channel.unary_unary(_CHECK, request_serializer=bytes, response_deserializer=bytes)
        try:
            return bool(check(_DAGSTER_API, timeout=timeout_s) == _SERVING)
        except grpc.RpcError:
            return False


FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0
#: After so long with answers the next pause is the first one again.
STEADY_AFTER_S = 300.0
# A start takes longer than an answer: Dagster imports for up to twenty seconds on a busy machine.
_GRACE = 3.0
# The supervisor itself may have been stopped: a silence counts only after so many unanswered probes.
_ASKED_AT_LEAST = 2

Clock = Callable[[], float]


class Liveness:
    """Record of the answers of one process, from start to start."""

    def __init__(self, *, silence_s: float, now: Clock = time.monotonic) -> None:
        """Create a record.

        Args:
            silence_s: seconds without an answer after which the process is silent; three times as many
                between its start and its first answer.
            now: a clock that only rises.
        """
        self._silence_s = silence_s
        self._now = now
        self._lock = threading.Lock()
        #: Number of starts; the answer to a probe of an earlier start does not count.
        self.starts = 0
        self._began = now()
        self._first: float | None = None
        self._last: float | None = None
        self._unanswered = 0

    def begin(self) -> None:
        """Begin a new record: the process was just started."""
        with self._lock:
            self.starts += 1
            self._began, self._first, self._last, self._unanswered = self._now(), None, None, 0

    def note(self, has_answered: bool, *, starts: int) -> bool:
        """Record the result of a probe; return whether it is the first answer since the start.

        Args:
            has_answered: the result.
            starts: value of `starts` when the probe began.
        """
        with self._lock:
            if starts != self.starts:
                return False
            if not has_answered:
                self._unanswered += 1
                return False
            is_first = self._first is None
            self._last, self._unanswered = self._now(), 0
            if self._first is None:
                self._first = self._last
            return is_first

    def excuse(self) -> None:
        """Reset the silence: another process keeps this one from answering."""
        with self._lock:
            if self._last is not None:
                self._last = self._now()
            else:
                self._began = self._now()
            self._unanswered = 0

    @property
    def is_answering(self) -> bool:
        """Return whether the last probe was answered."""
        return self._last is not None and self._unanswered == 0

    @property
    def is_silent(self) -> bool:
        """Return whether the process has not answered its probes for too long."""
        with self._lock:
            limit = self._silence_s if self._last is not None else _GRACE * self._silence_s
            return self._now() - self._read_last_sign() > limit and self._unanswered >= _ASKED_AT_LEAST

    @property
    def silent_s(self) -> float:
        """Seconds since the last answer, or since the start where none came."""
        return self._now() - self._read_last_sign()

    @property
    def healthy_s(self) -> float:
        """Seconds from the first answer since the start to the last."""
        return 0.0 if self._first is None or self._last is None else self._last - self._first

    def _read_last_sign(self) -> float:
        return self._began if self._last is None else self._last


class RestartPauses:
    """Growing pauses before a process is started again: 1 s, doubling to 60 s."""

    def __init__(self) -> None:
        self._restarts = 0

    def next(self, *, healthy_s: float) -> float:
        """Return the seconds to wait now.

        Args:
            healthy_s: how long the process had answered before; after five minutes the pauses begin at 1 s.
        """
        self._restarts = 1 if healthy_s >= STEADY_AFTER_S else self._restarts + 1
        return compute_doubling_pause(self._restarts - 1, first=FIRST_PAUSE_S, longest=LONGEST_PAUSE_S)
