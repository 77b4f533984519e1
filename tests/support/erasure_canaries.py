"""Groups of persons for tests of erasures: their sessions reach every kind of store of a deployment."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import dagster as dg
import pytest
import yaml

from pipelines.dataset_config import make_dataset_config
from pipelines.resources import RecorderResource
from recorder.exports.runner.run import run_export
from recorder.governance.retention import run_retention
from recorder.ids import new_id
from recorder.masking.detectors import compute_token_digest, derive_masking_key
from recorder.memory.drift.store import NEW_NODE, store_drift_alarm
from recorder.models.export import ExportRow
from recorder.models.operations import SealPortionRow, SweepRow
from recorder.tenant import GraphScope, Tenant
from recorder.webhooks.outbox import make_outbox_event
from tests.support.completed_work import delivering, make_webhook, patch
from tests.support.dagster_deployment import Deployment
from tests.support.dom_snapshots import snapshot
from tests.support.factories import Caller, event, frame
from tests.support.masking import set_masking
from tests.support.project_texts import ROOT
from tests.support.purges import Canary, new_word, recorded_canary
from tests.support.recorded_sessions import session_row
from tests.support.replay_requests import post_recovery, post_replay
from tests.support.sealing import seal_all
from tests.support.two_click_sessions import replay_all
from tests.support.waiting import wait_for
from tests.support.webhook_receiver import Answer, Receiver, running_receiver
from tests.support.webhooks import count_undelivered

SUBJECTS = int(os.environ.get("RECORDER_FAULT_SUBJECTS", "2"))  # noqa: TID251
FORMATS = ("parquet", "arrow", "jsonl", "webdataset")
NOTIFIED = ["session.created", "session.stopped", "session.sealed", "session.tagged", NEW_NODE]
_DAYS = 10
_PATTERN = {"name": "who", "pattern": "canary[a-z]{12}", "replacement": "[who]"}


@dataclass(frozen=True)
class Person:
    """A word that only one person's sessions hold, and the ids of these sessions."""

    word: str
    session_ids: tuple[str, ...]
    workflow: str = "checkout"

    @classmethod
    def of(cls, canary: Canary) -> "Person":
        """Return the person of a session."""
        return cls(canary.word, (canary.session_id,))


@dataclass(frozen=True)
class People:
    """Persons by what became of their sessions."""

    archived: list[Person]
    sealed: list[Person]
    masked: list[Person]
    #: Each in a workflow of its own, which was replayed, recovered, and exported through Dagster.
    replayed: list[Person]
    #: Several sessions by others that name the person, so that a node and an alarm show the name.
    named: list[Person]
    recording: list[Person]
    created: list[Person]

    @property
    def everyone(self) -> list[Person]:
        """All persons."""
        sealed = [*self.archived, *self.sealed, *self.masked, *self.replayed, *self.named]
        return [*sealed, *self.recording, *self.created]

    @property
    def session_ids(self) -> set[str]:
        """The ids of all their sessions."""
        return {session_id for person in self.everyone for session_id in person.session_ids}


def record_people(caller: Caller, *, subjects: int = SUBJECTS) -> tuple[People, People]:
    """Record the persons to erase and as many others; the first ones of both are archived.

    Args:
        caller: a key of their workspace.
        subjects: number of persons of each kind.
    """
    patch(caller, "/v1/workspaces/current", {"retention": {"frames_days": _DAYS}})
    set_masking(caller, {"patterns": [_PATTERN]}, workflow="masked")
    runtime = caller.service.runtime
    archived = [[Person.of(recorded_canary(caller)) for _ in range(subjects)] for _ in range(2)]
    sealed_at = session_row(runtime, archived[1][-1].session_ids[0]).sealed_at
    assert sealed_at is not None
    at = sealed_at + timedelta(days=_DAYS, minutes=1)
    run_retention(runtime, "tests", at=at, workspace_id=caller.key.workspace_id)
    first, second = (
        People(
            archived=of_group,
            sealed=[Person.of(recorded_canary(caller)) for _ in range(subjects)],
            masked=[Person.of(recorded_canary(caller, workflow="masked")) for _ in range(subjects)],
            replayed=[_record_replayed(caller) for _ in range(subjects)],
            named=[_record_named(caller)],
            recording=[Person.of(recorded_canary(caller, is_stopped=False, is_sealed=False))],
            created=[_record_created(caller)],
        )
        for of_group in archived
    )
    seal_all(runtime)
    for people in (first, second):
        for person in people.replayed:
            post_recovery(caller, person.session_ids[0], failure_tag="stuck")
            anchor = {"event_id": f"evt_{person.word}"}
            post_replay(caller, person.session_ids[0], mode="partial", anchor=anchor)
        _store_alarm(caller, people.named[0])
        _leave_unfinished_sealing(caller, people.recording[0])
    replay_all(caller)
    return first, second


def _record_created(caller: Caller) -> Person:
    """Create a session that is never started."""
    word = new_word()
    actor = {"id": word, "kind": "human"}
    metadata = {"deep": [{"who": word}]}
    return Person(word, (caller.make_session(status="created", actor=actor, metadata=metadata),))


def _record_replayed(caller: Caller) -> Person:
    """Record a session with pages that a dry replay reads, in a workflow of its own; stop it."""
    word, workflow = new_word(), f"replayed_{new_id('ses')[4:]}"
    session_id = caller.make_session(workflow=workflow, actor={"id": word, "kind": "human"})
    page = ["html", {}, ["body", {}, ["h1", {}, word], ["button", {"id": word}, f"Pay {word}"]]]
    target = {"role": "button", "name": f"Pay {word}", "selectors": [[f"#{word}"]]}
    clicks = [event(100 * n, "click", target=target, id=f"evt_{word}{'' if n == 1 else n}") for n in (1, 3)]
    assert caller.add_events(session_id, *clicks).status_code == 202
    frames = [frame(100 * n, n, id=f"frm_{word}{n}", dom=snapshot(page)) for n in range(4)]
    assert caller.add_frames(session_id, *frames).status_code == 202
    assert caller.post(f"/v1/sessions/{session_id}/tags", {"name": "stuck", "t_ms": 350}).status_code == 201
    assert caller.post(f"/v1/sessions/{session_id}/stop").status_code == 200
    return Person(word, (session_id,), workflow)


def _record_named(caller: Caller) -> Person:
    """Record sessions of several actors that name a person, and stop them."""
    word = new_word()
    session_ids = []
    for number in range(3):
        actor = {"id": f"colleague-{number}", "kind": "human"}
        session_id = caller.make_session(workflow="named", actor=actor, metadata={"about": word})
        target = {"role": "button", "name": f"Pay {word}"}
        assert caller.add_events(session_id, event(0, "click", target=target)).status_code == 202
        assert caller.post(f"/v1/sessions/{session_id}/stop").status_code == 200
        session_ids.append(session_id)
    return Person(word, tuple(session_ids))


def _store_alarm(caller: Caller, person: Person) -> None:
    """Store a drift alarm about the node that shows a person's name, with its event."""
    graph = caller.get("/v1/memory/graph?workflow=named").json()
    (node,) = [node for node in graph["nodes"] if person.word in node["label"]]
    shown = {"node_id": node["id"], "label": node["label"]}
    tenant = Tenant(caller.key.workspace_id, "live")
    with caller.service.runtime.database.transaction(write=True) as db:
        data = {"workflow": "named", "node": shown}
        made = make_outbox_event(tenant=tenant, type=NEW_NODE, subject_id=node["id"], data=data)
        db.add(made)
        db.flush()
        store_drift_alarm(db, GraphScope(tenant, "named"), made, 1)


def _leave_unfinished_sealing(caller: Caller, person: Person) -> None:
    """Store what a sealing run leaves that was killed between two portions of a large session."""
    runtime, session_id = caller.service.runtime, person.session_ids[0]
    runtime.blobs.put(f"sealing/{caller.key.workspace_id}/{session_id}/0", person.word.encode())
    with runtime.database.transaction(write=True) as db:
        db.add(SealPortionRow(session_id=session_id, n=0, date="2026-01-01", state=person.word.encode()))
        db.add(SweepRow(session_id=session_id))


@contextmanager
def notified(caller: Caller) -> Iterator[Receiver]:
    """Deliver the events of the block to a receiver on loopback that sends each one back."""
    with running_receiver(Answer(200, echoes=True)) as receiver:
        make_webhook(caller, url=receiver.url, events=NOTIFIED)
        with delivering(caller, receiver.url.removeprefix("http://")):
            yield receiver
            wait_for(lambda: not count_undelivered(caller))


def write_exports(caller: Caller, formats: Sequence[str] = (*FORMATS, "parquet")) -> list[ExportRow]:
    """Write an export in each format, and one of masked sessions; one like another takes its files over."""
    requests = [("checkout", name) for name in formats] + [("masked", "parquet")]
    rows = []
    for workflow, name in requests:
        body = {
            "workflow": workflow,
            "format": name,
            "destination": {"kind": "signed_url"},
            "frame_sampling": {"mode": "all"},
        }
        created = caller.post("/v1/exports", body)
        assert created.status_code == 202, created.text
        rows.append(run_export(caller.service.runtime, created.json()["id"], owner="tests"))
        assert rows[-1].status == "completed", rows[-1].error
    return rows


@contextmanager
def dagster_deployment(caller: Caller) -> Iterator[Deployment]:
    """Yield a deployment's own Dagster instance, with its files below the data folder as in production."""
    runtime = caller.service.runtime
    settings = yaml.safe_load((ROOT / "dagster_home" / "dagster.yaml").read_text())
    environment = runtime.settings.as_env() | {
        "RECORDER_DAGSTER_DIR": str(runtime.settings.data_dir / "dagster"),
        "RECORDER_LOCAL_EXPORT_ROOT": str(runtime.settings.local_export_root),
    }
    home = runtime.settings.data_dir / "tmp" / "dagster-home"
    home.mkdir(parents=True, exist_ok=True)
    (home / "dagster.yaml").write_text(yaml.safe_dump(settings))
    with pytest.MonkeyPatch.context() as patched:
        for name, value in environment.items():
            patched.setenv(name, value)
        recorder = RecorderResource(data_dir=str(runtime.settings.data_dir))
        with dg.DagsterInstance.from_config(str(home)) as instance:
            yield Deployment(recorder, runtime, caller.key.workspace_id, instance)


def show_in_dagster(deployment: Deployment, people: People) -> list[ExportRow]:
    """Export each replayed person's workflow by Dagster into a local folder; its previews show the data."""
    rows = []
    for person in people.replayed:
        row = deployment.queue(workflow=person.workflow, destination={"kind": "local", "path": "out"})
        deployment.materialize(row.dataset, make_dataset_config(row))
        with deployment.runtime.database.transaction(write=False) as db:
            rows.append(db.get_one(ExportRow, row.id))
        assert rows[-1].status == "completed", rows[-1].error
    return rows


def list_words(caller: Caller, person: Person) -> list[str]:
    """Return what a search has to find: the person's word, the token that masks it, and ids of sessions.

    Of the word the letters that no other word shares: packed pages may refer to the others elsewhere.
    """
    key = derive_masking_key(caller.service.runtime.settings.secret, caller.key.workspace_id)
    return [person.word.removeprefix("canary"), compute_token_digest(key, person.word), *person.session_ids]
