"""Simulated run of an invented application: it collects events, frames and tags with their times."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

from examples.app_screens import Screen, picture, snapshot, target
from recorder.client.upload_batches import CapturedFrame
from recorder.importers.upload import ImportedRecording


@dataclass(frozen=True)
class Worker:
    """Actor of a run, with the usual pause between two actions."""

    id: str
    kind: str
    pace_ms: int


@dataclass
class Run:
    """Events, frames and tags that a recorder would have captured."""

    worker: Worker
    rng: random.Random
    #: Prefix of every frame id of this run.
    frame_prefix: str
    t_ms: int = 0
    events: list[dict[str, Any]] = field(default_factory=list)
    frames: list[CapturedFrame] = field(default_factory=list)
    tags: list[dict[str, Any]] = field(default_factory=list)
    screen: Screen | None = None

    def open(self, screen: Screen) -> None:
        """Go to an address."""
        self.events.append({"t_ms": self.t_ms, "type": "navigate", "url": screen.url, "title": screen.title})
        self._pass(120, 500)
        self._show(screen)

    def click(self, name: str, then: Screen) -> None:
        """Click an element; the screen `then` follows."""
        event = self._event("click", name)
        rect = event["target"]["rect"]
        event["input"] = {"button": 0, "point": [rect[0] + rect[2] // 2, rect[1] + rect[3] // 2]}
        if self.screen is not None and then.url != self.screen.url:
            event["signals"] = [{"type": "navigation", "url": then.url, "title": then.title}]
        self._pass(90, 600)
        self._show(then)

    def fill(self, name: str, value: str, *, secret: bool = False) -> None:
        """Type into a field; the value of a secret is not recorded."""
        event = self._event("fill", name, extra_ms=60 * len(value))
        event["input"] = (
            {"value": None, "masked": True, "secret_ref": "password"} if secret else {"value": value}
        )
        self._enter(name, value=value)

    def select(self, name: str, value: str) -> None:
        """Choose from a list."""
        self._event("select", name)["input"] = {"value": value}
        self._enter(name, value=value)

    def check(self, name: str) -> None:
        """Tick a box."""
        self._event("check", name)
        self._enter(name, is_checked=True)

    def upload(self, name: str, file: str) -> None:
        """Attach a file."""
        self._event("upload", name)["input"] = {"files": [file]}
        self._enter(name, value=file)

    def request(self, method: str, path: str, status: int) -> None:
        """Record a request of the application, as its network log shows it."""
        data = {"method": method, "path": path, "status": status}
        self.events.append({"t_ms": self.t_ms, "type": "request", "data": data})

    def report(self, kind: str, name: str) -> None:
        """Record an event that the application shows: `kind` is success or error."""
        event: dict[str, Any] = {"t_ms": self.t_ms, "type": kind, "data": {"name": name}}
        if self.screen is not None:
            event |= {"url": self.screen.url, "title": self.screen.title}
            event["frame_id"] = self.frames[-1].item["id"]
        self.events.append(event)

    def tag(self, name: str, **data: Any) -> None:
        """Mark this moment."""
        self.tags.append({"name": name, "t_ms": self.t_ms, **({"data": data} if data else {})})

    def linger(self, least_ms: int, most_ms: int) -> None:
        """Let time pass without an action."""
        self._pass(least_ms, most_ms)

    def recording(
        self, workflow: str, *, started_at: datetime, metadata: dict[str, Any]
    ) -> ImportedRecording:
        """Return everything that was captured as a recording."""
        return ImportedRecording(
            workflow=workflow,
            metadata=metadata,
            actor={"id": self.worker.id, "kind": self.worker.kind},
            started_at=started_at,
            events=self.events,
            frames=self.frames,
            tags=self.tags,
        )

    def _event(self, kind: str, name: str, *, extra_ms: int = 0) -> dict[str, Any]:
        """Append an event on the present screen, after the worker's usual pause, and return it."""
        if self.screen is None:
            raise ValueError("Open a screen before acting on it.")
        self.t_ms += max(60, int(self.rng.lognormvariate(0, 0.45) * self.worker.pace_ms))
        if self.worker.kind != "script":
            self.t_ms += extra_ms
        if self.worker.kind == "model":
            thought = {
                "t_ms": self.t_ms - 40,
                "type": "thought",
                "data": {"text": f"{kind} {name} comes next"},
            }
            self.events.append(thought)
        event: dict[str, Any] = {
            "t_ms": self.t_ms,
            "type": kind,
            "url": self.screen.url,
            "title": self.screen.title,
            "target": target(self.screen, name),
            "frame_id": self.frames[-1].item["id"],
        }
        self.events.append(event)
        return event

    def _enter(self, name: str, *, value: str = "", is_checked: bool = False) -> None:
        if self.screen is not None:
            self._pass(20, 60)
            self._show(self.screen.with_widget(name, value=value, is_checked=is_checked))

    def _show(self, screen: Screen) -> None:
        self.screen = screen
        frame_id = f"frm_{self.frame_prefix}{len(self.frames):03d}"
        members = {"id": frame_id, "url": screen.url, "dom": snapshot(screen), "width": 640, "height": 400}
        frame = CapturedFrame.of(picture(screen), t_ms=self.t_ms, content_type="image/webp", **members)
        self.frames.append(frame)

    def _pass(self, least_ms: int, most_ms: int) -> None:
        self.t_ms += self.rng.randint(least_ms, most_ms)


class Way(NamedTuple):
    """Variant of a workflow, with its share of the runs."""

    #: Share of the workflow's runs, 0 to 1.
    share: float
    #: Function that simulates it on a run and returns the run's metadata.
    simulate: Callable[[Run], dict[str, object]]
    #: Whether only the latest runs take it, so that the graph has a new node to detect.
    is_new: bool = False
