"""A steady load: sessions with frames, deletes, exports, webhooks, and the daily jobs every minute."""

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from itertools import cycle, islice
from typing import Any

import httpx

from benchmarks.events import event_items
from benchmarks.screens import session_screens
from benchmarks.soak.samples import repeated_calls
from recorder import clock
from recorder.client import CapturedFrame, Client
from recorder.client.webhook_receiver import DeliveryReceiver
from recorder.supervisor import Service

WORKFLOW = "approve_invoice"
#: Jobs of the deployment's schedules: two are called every minute, and as many of the others in turn.
EVERY_MINUTE = ("remove_expired", "maintain_lake")
IN_TURN = (
    "rebuild_memory_graphs",
    "remove_dagster_records",
    "check_arrivals",
    "check_memory_graphs",
    "drift",
    # A sensor calls it in the quiet hour while erasures wait.
    "rewrite_tables",
)
_AT_ONCE = 2
_EVENTS = 20
#: Ways in which people work. The graph of a workflow grows with their number: `graph-flood` measures that.
_WAYS = 200
_FRAMES = 2
_PEOPLE = 8
#: A session in so many is deleted softly, and as many for good.
_DELETED = 20
_EVERY_MINUTE_S = 60.0
_EXPORT_OF = timedelta(minutes=1)
_FAILED = """
{ runsOrError(filter: {statuses: [FAILURE]}) { ... on Runs { results { jobName } } } }
"""
_LAUNCH = """
mutation Launch($job: String!) {
  launchRun(executionParams: {
    selector: {jobName: $job, repositoryName: "__repository__", repositoryLocationName: "recorder"}
  }) { __typename }
}
"""


class Load:
    """The load on one workspace of a deployment; its counts show what was done, and what failed."""

    def __init__(self, service: Service, client: Client, *, sessions: int, minutes: float) -> None:
        self._service = service
        self._client = client
        self._sessions = sessions
        self._a_second = sessions / (minutes * 60)
        self._screens = session_screens(12, seed=1)
        self._rng = random.Random(1)
        self._others = cycle(IN_TURN)
        self.counts: Counter[str] = Counter()
        self._lock = threading.Lock()

    def run(self) -> None:
        """Record all sessions at an even pace, with deletes, exports and daily jobs among them."""
        began = time.monotonic()

        def record_in_turn(turn: int) -> None:
            time.sleep(max(0.0, began + turn / self._a_second - time.monotonic()))
            self._try("sessions", lambda: self._record(turn))

        with repeated_calls(self._call_daily_jobs, _EVERY_MINUTE_S), ThreadPoolExecutor(_PEOPLE) as people:
            for _ in people.map(record_in_turn, range(self._sessions)):
                pass

    def count_failed_runs(self) -> None:
        """Count the runs of Dagster that failed, by job."""
        with self._service.open_dagster() as dagster:
            for run in _query(dagster, _FAILED)["runsOrError"]["results"]:
                self._count(f"failed runs of {run['jobName']}")

    @contextmanager
    def receiving(self) -> Iterator[None]:
        """Receive the webhooks of the sessions while the block runs."""
        listener = DeliveryReceiver(lambda _: self._count("deliveries"), host="127.0.0.1", port=0)
        with listener.listening():
            events = ["session.created", "session.sealed", "export.completed"]
            webhook = self._client.create_webhook(f"http://127.0.0.1:{listener.port}/", events)
            listener.trust(webhook["secret"])
            yield

    def warm_up(self) -> None:
        """Seal and export some sessions, so that every process has loaded what it needs."""
        session_ids = [self._record(turn) for turn in range(1, _DELETED)]
        self._client.wait_sealed([name for name in session_ids if name], timeout_s=180)
        self._client.wait_export(self._create_export(), timeout_s=180)
        self._call_daily_jobs()
        self.counts.clear()

    def _record(self, turn: int) -> str:
        """Record one session and stop it; delete it where its turn says so, or an earlier one for good."""
        actor = {"id": f"person {turn % 50}", "kind": "human"}
        session_id: str = self._client.create_session(WORKFLOW, start=True, actor=actor)["id"]
        frames = [
            CapturedFrame.of(self._screens[(turn + n) % len(self._screens)], t_ms=n * 4_000)
            for n in range(_FRAMES)
        ]
        self._client.add_frames(session_id, frames)
        items = event_items(_EVENTS, seed=turn % _WAYS)
        self._client.add_events(session_id, items[: _EVENTS // 2])
        self._client.add_events(session_id, items[_EVENTS // 2 :])
        self._client.stop(session_id)
        if turn % _DELETED in (0, _DELETED // 2):
            is_hard = turn % _DELETED == 0
            self._client.delete_session(session_id, hard=is_hard)
            self._count("hard deletes" if is_hard else "deletes")
            return ""
        return session_id

    def _create_export(self) -> str:
        """Create an export of the sessions of the last minute; return its id."""
        since = clock.to_iso(clock.now() - _EXPORT_OF)
        export_id: str = self._client.create_export(WORKFLOW, filter={"since": since})["id"]
        return export_id

    def _call_daily_jobs(self) -> None:
        with self._service.open_dagster() as dagster:
            for job in (*EVERY_MINUTE, *islice(self._others, _AT_ONCE)):
                self._try(f"runs of {job}", lambda job=job: _launch(dagster, job))  # type: ignore[misc]
        self._try("exports", self._create_export)

    def _try(self, name: str, work: Callable[[], object]) -> None:
        """Count a piece of work; one that fails is counted apart, and the load goes on."""
        try:
            work()
        except Exception as error:
            self._count(f"failed {name}: {type(error).__name__}: {error}"[:160])
        else:
            self._count(name)

    def _count(self, name: str) -> None:
        with self._lock:
            self.counts[name] += 1


def _launch(dagster: httpx.Client, job: str) -> None:
    kind = _query(dagster, _LAUNCH, job=job)["launchRun"]["__typename"]
    if kind != "LaunchRunSuccess":
        raise RuntimeError(f"Dagster did not launch {job}: {kind}")


def _query(dagster: httpx.Client, query: str, **variables: str) -> Any:
    """Return the data of an answer of Dagster's GraphQL."""
    answer = dagster.post("/graphql", json={"query": query, "variables": variables}, timeout=60)
    answer.raise_for_status()
    return answer.json()["data"]
