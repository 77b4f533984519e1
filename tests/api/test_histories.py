"""Random histories of a workspace, held against a model of the contract. Spec §3.1, contract §2, §3."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from recorder.sealing import Sealer
from tests.support.factories import Caller, Service, event, frame
from tests.support.recorded_sessions import execute
from tests.support.sealing import seal_waiting

STEPS = 100


@dataclass
class Model:
    """Expected state of a session."""

    status: str
    events: list[tuple[int, str]] = field(default_factory=list)
    frames: list[tuple[int, str]] = field(default_factory=list)
    tags: list[tuple[int, str, str]] = field(default_factory=list)
    keys: dict[str, bytes] = field(default_factory=dict)
    is_swept: bool = False


@pytest.fixture
def sealer(service: Service) -> Iterator[Sealer]:
    """Yield the sealing run of this service."""
    run = Sealer(service.runtime, owner="tests")
    assert run.take()
    yield run
    run.release()


class History:
    """One workspace, its model and a source of choices."""

    def __init__(self, caller: Caller, sealer: Sealer, seed: int) -> None:
        self.caller = caller
        self.sealer = sealer
        self.choose = random.Random(seed)
        self.sessions: dict[str, Model] = {}
        self.number = 0

    def run(self) -> None:
        """Take steps, and read a session after each."""
        steps = [self.create, self.start, self.stop, self.tag, self.delete, self.seal, self.sweep]
        weights = [2, 2, 2, 3, 1, 1, 1, 8, 5, 3]
        for _ in range(STEPS):
            (step,) = self.choose.choices([*steps, self.add_events, self.add_frames, self.resend], weights)
            step()
            if self.sessions:
                self.check(self.some())
        for session_id in self.sessions:
            self.check(session_id)
        listed = self.caller.get("/v1/sessions?limit=500").json()["data"]
        assert [item["id"] for item in listed] == sorted(self.sessions, reverse=True)

    def some(self) -> str:
        """Return any session."""
        return self.choose.choice(list(self.sessions))

    def next_number(self) -> int:
        """Return a number for names that must differ."""
        self.number += 1
        return self.number

    def create(self) -> None:
        status = self.choose.choice(["created", "recording"])
        self.sessions[self.caller.make_session(status=status)] = Model(status)

    def start(self) -> None:
        self.move("start", {"created": "recording", "recording": "recording"})

    def stop(self) -> None:
        self.move("stop", {"recording": "stopped", "stopped": "stopped", "sealed": "sealed"})

    def move(self, trigger: str, ends: dict[str, str]) -> None:
        """Start or stop the session; check the new state, or that the call is refused."""
        if not self.sessions:
            return
        session_id = self.some()
        model = self.sessions[session_id]
        answer = self.caller.post(f"/v1/sessions/{session_id}/{trigger}")
        assert answer.status_code == (200 if model.status in ends else 409)
        model.status = ends.get(model.status, model.status)

    def tag(self) -> None:
        if not self.sessions:
            return
        session_id = self.some()
        t_ms, name = self.choose.randrange(50), self.choose.choice(["seen", "done", "failed"])
        answer = self.caller.post(f"/v1/sessions/{session_id}/tags", {"name": name, "t_ms": t_ms})
        assert answer.status_code == (409 if self.sessions[session_id].status == "created" else 201)
        if answer.status_code == 201:
            self.sessions[session_id].tags.append((t_ms, answer.json()["id"], name))

    def delete(self) -> None:
        if len(self.sessions) < 3:
            return
        session_id = self.some()
        assert self.caller.delete(f"/v1/sessions/{session_id}").status_code == 204
        del self.sessions[session_id]

    def seal(self) -> None:
        seal_waiting(self.sealer)
        for model in self.sessions.values():
            model.status = "sealed" if model.status == "stopped" else model.status

    def sweep(self) -> None:
        execute(
            self.caller.service.runtime,
            "UPDATE sessions SET sealed_at = '2020-01-01' WHERE status = 'sealed'",
        )
        self.sealer.maintain()
        for model in self.sessions.values():
            model.is_swept = model.status == "sealed"

    def add_events(self) -> None:
        names = [f"evt_n{self.next_number()}" for _ in range(self.choose.randrange(1, 4))]
        items = [event(self.choose.randrange(30), id=name) for name in names]
        self.add("events", [*items, *[event(self.choose.randrange(30))] * self.choose.randrange(2)])

    def add_frames(self) -> None:
        count = self.choose.randrange(1, 3)
        self.add("frames", [frame(self.choose.randrange(30), self.choose.randrange(4)) for _ in range(count)])

    def add(self, kind: str, items: list[dict[str, Any]]) -> None:
        """Send a batch under a key; check that it is stored whole while the session records."""
        if not self.sessions:
            return
        session_id, key = self.some(), f"key-{self.next_number()}"
        model = self.sessions[session_id]
        answer = self.caller.post(f"/v1/sessions/{session_id}/{kind}", {kind: items}, key=key)
        assert answer.status_code == (202 if model.status == "recording" else 409)
        if answer.status_code == 202:
            stored = self.caller.get(f"/v1/sessions/{session_id}/{kind}?limit=500").json()["data"]
            before = model.events if kind == "events" else model.frames
            known = {item_id for _, item_id in before}
            fresh = [(item["t_ms"], item["id"]) for item in stored if item["id"] not in known]
            assert sorted(t_ms for t_ms, _ in fresh) == sorted(item["t_ms"] for item in items)
            before.extend(fresh)
            model.keys[key] = answer.request.content

    def resend(self) -> None:
        """Send a batch that was stored once more: nothing changes; its id is kept as long as its hot rows."""
        sent = [(session_id, key) for session_id, model in self.sessions.items() for key in model.keys]
        if not sent:
            return
        session_id, key = self.choose.choice(sent)
        body = self.sessions[session_id].keys[key]
        kind = "events" if body.startswith(b'{"events"') else "frames"
        headers = {"Idempotency-Key": key, "Content-Type": "application/json"}
        answer = self.caller.request(
            "POST", f"/v1/sessions/{session_id}/{kind}", content=body, headers=headers
        )
        assert answer.status_code == (409 if self.sessions[session_id].is_swept else 202)

    def check(self, session_id: str) -> None:
        """Hold what is read against the model."""
        model, address = self.sessions[session_id], f"/v1/sessions/{session_id}"
        session = self.caller.get(f"{address}?include=events,tags").json()
        assert session["status"] == model.status
        assert (session["event_count"], session["frame_count"]) == (len(model.events), len(model.frames))
        assert [(item["t_ms"], item["id"]) for item in session["events"]] == sorted(model.events)
        frames = self.caller.get(f"{address}/frames?limit=500").json()["data"]
        assert [(item["t_ms"], item["id"]) for item in frames] == sorted(model.frames)
        assert [(tag["t_ms"], tag["id"], tag["name"]) for tag in session["tags"]] == sorted(model.tags)
        assert session["outcome"] == outcome_of(model)


def outcome_of(model: Model) -> str | None:
    """Return the outcome that the last mark gives."""
    if model.status in ("created", "recording"):
        return None
    kinds = {"done": "success", "failed": "error"}
    marks = [kinds[name] for _, _, name in sorted(model.tags) if name in kinds]
    return marks[-1] if marks else "abandoned"


@pytest.mark.parametrize("seed", [1, 2])
def test_a_random_history_keeps_to_the_model(caller: Caller, sealer: Sealer, seed: int) -> None:
    History(caller, sealer, seed).run()
