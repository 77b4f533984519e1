"""Events coming in, beside the tracking server that ML teams know: MLflow's OTLP endpoint, a span per event.

Both get the same events from the same client, on SQLite, with one server process. Counted is only what a GET
returns afterwards. MLflow is fetched into an environment of its own that is thrown away (or taken from
`RECORDER_BENCH_MLFLOW`, a Python that has it), with its telemetry off; the project never depends on it.
"""

import os
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import httpx
import orjson

from benchmarks.client import drive
from benchmarks.events import event_items
from benchmarks.figure_reports import Figure, at_least
from benchmarks.load import encoded_requests
from benchmarks.otlp import TraceRequests, encode_spans, trace_id
from benchmarks.peer_environments import find_peer_python
from benchmarks.seeds import Target, new_settings, recording_sessions
from benchmarks.servers import Server, serving, wait_for_answer
from recorder import limits
from recorder.supervisor.child_commands import choose_child_port

_VERSION = "3.17.2"
_CONNECTIONS = 8
_SESSIONS = 64
_BODIES = 50
_START_S = 120.0
_EXPERIMENT = "0"
_QUIET = {"MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "true"}

Items = Sequence[dict[str, Any]]


@dataclass(frozen=True)
class Round:
    """Result of one phase of load."""

    seconds: float
    acknowledged: int
    #: Events that a GET returned afterwards.
    readable: int

    @property
    def per_second(self) -> float:
        """Readable events a second."""
        return self.readable / self.seconds


class Contender(Protocol):
    """A server that takes batches of events."""

    def load(self, batches: Sequence[Items], seconds: float) -> Round:
        """Send the batches over and over for so long, then read all of it back."""


def measure(*, quick: bool = False) -> list[Figure]:
    """Return events a second that can be read back, ours and MLflow's in turn.

    Raises:
        Skipped: if MLflow can be neither found nor fetched.
    """
    rounds, seconds = (3, 3.0) if quick else (5, 6.0)
    batches = [event_items(limits.EVENTS_PER_BATCH, seed=seed) for seed in range(_BODIES)]
    ours, theirs = [], []
    with (
        find_peer_python(f"mlflow=={_VERSION}", variable="RECORDER_BENCH_MLFLOW") as python,
        our_service(rounds + 1) as service,
        mlflow_server(python) as mlflow,
    ):
        for contender in (service, mlflow):
            contender.load(batches, 1.0)  # to warm up
        for _ in range(rounds):
            ours.append(service.load(batches, seconds))
            theirs.append(mlflow.load(batches, seconds))
    return [
        Figure(
            name="events that a GET returns / MLflow's OTLP spans",
            unit="events/s",
            ours=[load.per_second for load in ours],
            peer=[load.per_second for load in theirs],
            peer_name=f"MLflow {_VERSION}, SQLite",
            goal=at_least(20),
            detail={
                "acknowledged": sum(load.acknowledged for load in ours),
                "readable": sum(load.readable for load in ours),
                "MLflow acknowledged": sum(load.acknowledged for load in theirs),
                "MLflow readable": sum(load.readable for load in theirs),
            },
        )
    ]


@contextmanager
def our_service(rounds: int) -> Iterator["Ours"]:
    """Yield our API on a fresh deployment, with sessions for so many rounds."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        settings = new_settings(Path(folder))
        targets = recording_sessions(settings, sessions=_SESSIONS * rounds, keys=1)
        with serving(settings) as server:
            yield Ours(server, targets)


class Ours:
    """Our API; every round has sessions of its own."""

    def __init__(self, server: Server, targets: list[Target]) -> None:
        self._server = server
        self._targets = targets

    def load(self, batches: Sequence[Items], seconds: float) -> Round:
        """Send one round, as `Contender` describes."""
        targets, self._targets = self._targets[:_SESSIONS], self._targets[_SESSIONS:]
        requests = encoded_requests(targets, [orjson.dumps({"events": items}) for items in batches])
        host, port = self._server.host, self._server.port
        answers = drive(host, port, requests, connections=_CONNECTIONS, seconds=seconds)
        readable = sum(self._count(target) for target in targets)
        return Round(answers.seconds, len(answers.accepted) * limits.EVENTS_PER_BATCH, readable)

    def _count(self, target: Target) -> int:
        headers = {"Authorization": f"Bearer {target.key}", "Accept": "application/x-ndjson"}
        answer = httpx.get(self._server.url + target.path, headers=headers, timeout=60, trust_env=False)
        return len({orjson.loads(line)["id"] for line in answer.raise_for_status().content.splitlines()})


@contextmanager
def mlflow_server(python: str) -> Iterator["Mlflow"]:
    """Yield MLflow's own server as its documentation starts it: SQLite, one worker.

    Raises:
        ServerFailed: if it does not answer in time.
    """
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        port = choose_child_port("127.0.0.1", 0, option="--port")
        command = [python, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port)]
        command += ["--workers", "1", "--backend-store-uri", f"sqlite:///{folder}/mlflow.db"]
        command += ["--default-artifact-root", f"{folder}/artifacts"]
        with Path(folder, "log").open("wb") as log:
            process = subprocess.Popen(
                command, env={**os.environ, **_QUIET}, stdout=log, stderr=log, start_new_session=True
            )
        server = Server(process, "127.0.0.1", port)
        try:
            wait_for_answer(server, "/health", seconds=_START_S)
            yield Mlflow(server)
        finally:
            os.killpg(process.pid, 15)
            process.wait()


class Mlflow:
    """MLflow; every request is a trace of its own."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._turn = 0

    def load(self, batches: Sequence[Items], seconds: float) -> Round:
        """Send one round, as `Contender` describes."""
        requests = TraceRequests(
            [encode_spans(items) for items in batches],
            address=f"{self._server.host}:{self._server.port}",
            experiment=_EXPERIMENT,
            count=10**9,
        )
        answers = drive(
            self._server.host,
            self._server.port,
            requests,
            connections=_CONNECTIONS,
            seconds=seconds,
            begin=self._turn,
            acknowledges=200,
        )
        turns = [turn for turn, _ in answers.accepted]
        self._turn += len(answers.latencies_s) + _CONNECTIONS
        readable = sum(self._count(turn) for turn in turns)
        return Round(answers.seconds, len(turns) * limits.EVENTS_PER_BATCH, readable)

    def _count(self, turn: int) -> int:
        answer = httpx.get(
            f"{self._server.url}/api/3.0/mlflow/traces/get",
            params={"trace_id": f"tr-{trace_id(turn).hex()}"},
            timeout=60,
            trust_env=False,
        )
        if answer.status_code == 404:
            return 0
        return len({span["span_id"] for span in answer.raise_for_status().json()["trace"]["spans"]})
