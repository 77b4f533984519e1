"""Recoveries of failing runs of the example web application: the best candidate by the graph succeeds.

`RECORDER_FAULT_RECOVERIES` is how many failing runs are recovered, a quarter of them for each kind of
failure.
"""

import math
import os
import random
import statistics
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any

import pytest

from tests.faults.results import add_result
from tests.support.databases import create_file
from tests.support.factories import Caller
from tests.support.live_replays import running_live_app
from tests.support.replay_requests import get_recovery, get_replay, post_recovery, post_replay
from tests.support.sealing import seal_all
from tests.support.two_click_sessions import replay_all
from tests.support.webapp_runs import FAILURES, OPTIONAL, Template, record_templates, send_run

RECOVERIES = int(os.environ.get("RECORDER_FAULT_RECOVERIES", "8"))  # noqa: TID251
LEAST_SHARE = 0.9
WORKFLOW = "approve_invoice"
#: Elements whose acts change something on the server, or lead to such a one.
CONSEQUENTIAL = ("Approve", "Confirm", "Send to second approver")
#: Days on which the runs start, so that a query of the graph counts those of one kind.
SUCCESSES_DAY = datetime.fromisoformat("2026-03-01T09:00:00Z")
_Z = statistics.NormalDist().inv_cdf(0.975)


@dataclass(frozen=True)
class App:
    """The service, and recordings of the application by the name of the run."""

    caller: Caller
    templates: dict[str, Template]
    _read: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    def read(self, session_id: str, kind: str) -> list[dict[str, Any]]:
        """Return the events or tags of a session that has stopped."""
        address = f"/v1/sessions/{session_id}/{kind}?limit=100"
        if address not in self._read:
            self._read[address] = self.caller.get(address).json()["data"]
        return self._read[address]


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[App]:
    """Yield a service with a recording of each kind of run."""
    folder = tmp_path_factory.mktemp("recoveries")
    with running_live_app(folder, create_file(folder)) as (service, port):
        caller = service.make_caller()
        yield App(caller, record_templates(caller, port))


@dataclass
class Runs:
    """Runs that are sent one after the other, a minute apart on the day of their kind."""

    app: App
    workflow: str
    draw: random.Random
    #: Start and id of each session, by kind.
    sent: dict[str, list[tuple[datetime, str]]]

    def send(self, name: str, kind: str, **options: Any) -> str:
        """Send a run with data of its own; return the session."""
        runs = self.sent.setdefault(kind, [])
        started_at = _day_of(kind) + timedelta(minutes=len(runs))
        seed = self.draw.randrange(10**9)
        session_id = send_run(
            self.app.caller,
            self.app.templates[name],
            seed,
            workflow=self.workflow,
            started_at=started_at.isoformat(),
            **options,
        )
        runs.append((started_at, session_id))
        return session_id

    def list_sessions(self, kind: str, *, is_same: bool) -> list[str]:
        """Return the sessions of a kind, or of all others."""
        return [sent for name, runs in self.sent.items() if (name == kind) == is_same for _, sent in runs]

    def send_varied(self, name: str, kind: str) -> str:
        """Send a run without some of the acts that are not needed."""
        return self.send(name, kind, without=[part for part in OPTIONAL if self.draw.random() < 0.3])


def _day_of(kind: str) -> datetime:
    return SUCCESSES_DAY + timedelta(days=["successes", *FAILURES].index(kind))


@dataclass(frozen=True)
class Failed:
    """A failed session, with what the public addresses say about it and about those that failed alike."""

    runs: Runs
    kind: str
    session_id: str

    @cached_property
    def acts(self) -> list[dict[str, Any]]:
        """Return its acts: the page that was opened first, and the events on elements."""
        events = self.runs.app.read(self.session_id, "events")
        return [event for number, event in enumerate(events) if number == 0 or event.get("target")]

    def count(self, since: datetime | None, *, hours: float = 23, **query: str) -> dict[str, Any]:
        """Return the graph of the sessions that started in some hours, or of all."""
        if since is not None:
            query |= {"since": since.isoformat(), "until": (since + timedelta(hours=hours)).isoformat()}
        query |= {"workflow": self.runs.workflow}
        answer = self.runs.app.caller.request("GET", "/v1/memory/graph", params=query)
        assert answer.status_code == 200, answer.text
        graph: dict[str, Any] = answer.json()
        return graph | {"nodes": {node["id"]: node for node in graph["nodes"]}}

    @cached_property
    def node_of(self) -> list[str]:
        """Return the node of each act, by its label in the graph of this session alone."""
        (start,) = (start for start, session_id in self.runs.sent[self.kind] if session_id == self.session_id)
        nodes = self.count(start, hours=0.01)["nodes"].values()
        names = ["ledgerly.example", *(act["target"]["name"] for act in self.acts[1:])]
        # A label shows a name that three sessions have.
        return [
            next((node["id"] for node in nodes if node["label"].endswith(f" {name}")), "") for name in names
        ]

    def list_expected(self) -> list[dict[str, Any]]:
        """Return the candidates, the best first: from the graph's counts, the events and the tags alone."""
        alike, succeeded = self.count(_day_of(self.kind)), self.count(None, outcome="success")
        required = set(succeeded["required_nodes"])
        tagged = {self._find_tagged(tag) for tag in self.runs.app.read(self.session_id, "tags")}
        passed = [
            number
            for number, node in enumerate(self.node_of[:-1])
            if node in required or number in tagged - {None}
        ]
        counts = {number: alike["nodes"][self.node_of[number]] for number in passed}
        is_returned = any(node["outcomes"]["success"] for node in counts.values())
        expected = []
        for number, node in counts.items():
            hits, successes = node["sessions"], node["outcomes"]["success"]
            if not is_returned:  # none of the sessions that failed in this way succeeded
                successes = succeeded["nodes"][node["id"]]["sessions"]
                hits += successes
            repeated = sum(_name_of(act) in CONSEQUENTIAL for act in self.acts[number:-1])
            # Each step of the successful runs can be found again, which the test requires too.
            score = wilson_bound(successes, hits) * max(0.0, 1 - 0.5 * repeated)
            expected.append(
                {
                    "node_id": node["id"],
                    "event_id": self.acts[number]["id"],
                    "t_ms": self.acts[number]["t_ms"],
                    "basis": "in_session" if is_returned else "cross_session",
                    "hits": hits,
                    "successes": successes,
                    "consequential_steps": repeated,
                    "median_recovery_ms": self._measure(number, is_returned=is_returned),
                    "score": round(score, 9),
                }
            )
        return sorted(expected, key=_rank)

    def _find_tagged(self, tag: dict[str, Any]) -> int | None:
        """Return the number of the first act at or after a tag that marks no failure."""
        if tag["name"] in ("error", self.kind):
            return None
        return next((number for number, act in enumerate(self.acts) if act["t_ms"] >= tag["t_ms"]), None)

    def _measure(self, number: int, *, is_returned: bool) -> int | None:
        """Return the median time to success: from the first such act after the failure, or from the last."""
        times = []
        for session_id in self.runs.list_sessions(self.kind, is_same=is_returned):
            tags = {tag["name"]: tag["t_ms"] for tag in self.runs.app.read(session_id, "tags")}
            visits = [
                event["t_ms"]
                for position, event in enumerate(self.runs.app.read(session_id, "events"))
                if _name_of(event) == _name_of(self.acts[number]) and (position == 0 or _name_of(event))
            ]
            if is_returned:
                visits = [t_ms for t_ms in visits if t_ms > tags["error"]][:1]
            if "success" in tags and visits:
                times.append(tags["success"] - visits[-1])
        return int(statistics.median(times)) if times else None


def _name_of(event: dict[str, Any]) -> str | None:
    """Return the name of the element that an event acted on; None for the opening of a page."""
    return (event.get("target") or {}).get("name")


def _rank(candidate: dict[str, Any]) -> tuple[float, float, int]:
    median = candidate["median_recovery_ms"]
    return -candidate["score"], math.inf if median is None else median, -candidate["t_ms"]


def wilson_bound(successes: int, hits: int) -> float:
    """Return the end of the Wilson interval: the smaller root of (share − p)² = z² · p · (1 − p) / hits."""
    a, b, c = hits + _Z**2, -(2 * successes + _Z**2), successes**2 / hits
    return max(0.0, (-b - math.sqrt(b * b - 4 * a * c)) / (2 * a))


def recover(caller: Caller, requests: dict[str, str]) -> dict[str, dict[str, Any]]:
    """Recover failed sessions from the failures of their tags; return the recoveries by session."""
    made = {
        session_id: post_recovery(caller, session_id, failure_tag=tag)["id"]
        for session_id, tag in requests.items()
    }
    replay_all(caller)
    return {session_id: get_recovery(caller, recovery_id) for session_id, recovery_id in made.items()}


def test_failing_runs_recover_from_the_candidate_that_the_graphs_counts_put_first(app: App) -> None:
    runs = Runs(app, WORKFLOW, random.Random(17), {})
    for number in range(12):
        runs.send_varied("approved_other" if number % 4 == 3 else "approved", "successes")
    failed = {}
    for kind in FAILURES:
        for _ in range(max(1, RECOVERIES // len(FAILURES))):
            failed[runs.send_varied(kind, kind)] = kind
        for _ in range(3 if f"{kind}_recovered" in app.templates else 0):
            runs.send_varied(f"{kind}_recovered", kind)
    seal_all(app.caller.service.runtime)
    at_first = 0
    replays = [post_replay(app.caller, session_id)["id"] for _, session_id in runs.sent["successes"]]
    for session_id, recovery in recover(app.caller, failed).items():
        expected = Failed(runs, failed[session_id], session_id).list_expected()
        listed = [{name: candidate[name] for name in expected[0]} for candidate in recovery["candidates"]]
        assert listed == expected, (failed[session_id], recovery)
        assert {candidate["replayability"] for candidate in recovery["candidates"]} == {1}
        has_succeeded = (recovery["status"], len(recovery["replay_ids"])) == ("succeeded", 1)
        at_first += has_succeeded and recovery["recovery_point"]["node_id"] == expected[0]["node_id"]
    for shown in (get_replay(app.caller, replay_id) for replay_id in replays):
        assert shown["summary"]["matched"] == shown["progress"]["steps"], shown
    add_result("recoveries", len(failed), at_first=at_first)
    assert at_first >= LEAST_SHARE * len(failed), f"{at_first} of {len(failed)}"


def test_three_of_four_never_outranks_sixty_of_eighty(app: App) -> None:
    runs = Runs(app, "approve_invoice_often", random.Random(18), {})
    for number in range(5):
        runs.send("approved", "successes", without=["Note"] if number < 3 else [])
    for number in range(60):
        runs.send("server_error_recovered", "server_error", without=["Note"] if number < 57 else [])
    for _ in range(19):
        runs.send("server_error", "server_error", without=["Note"])
    failed = runs.send("server_error", "server_error", tags={"noted": "Note"})
    seal_all(app.caller.service.runtime)
    recovery = recover(app.caller, {failed: "server_error"})[failed]
    assert (recovery["status"], len(recovery["replay_ids"])) == ("succeeded", 1), recovery
    noted = next(
        act["id"] for act in Failed(runs, "server_error", failed).acts[1:] if act["target"]["name"] == "Note"
    )
    counts = [(entry["successes"], entry["hits"]) for entry in recovery["candidates"]]
    assert counts[0] == (60, 80) and set(counts[:-1]) == {(60, 80)}, recovery["candidates"]
    last = recovery["candidates"][-1]
    assert (last["event_id"], counts[-1]) == (noted, (3, 4))
    # The share of successes is the same.
    assert last["frequency"] == recovery["candidates"][0]["frequency"]
    assert last["score"] < recovery["candidates"][-2]["score"]
