"""Sessions full of canary words, and purges that are brought to their end without waiting."""

import base64
import io
import secrets
import string
from dataclasses import dataclass
from typing import Any

from PIL import Image
from PIL.PngImagePlugin import PngInfo
from sqlmodel import select

from recorder.governance.purging.purge_runs import run_purges
from recorder.governance.purging.step_report import DueStepReport
from recorder.ids import new_timed_id
from recorder.models.governance import PurgeRow
from recorder.models.replay import ReplayRow
from recorder.models.session import SessionCreate
from recorder.recording.sessions import create_session
from recorder.runtime import Runtime
from recorder.tenant import Tenant
from tests.support.dom_snapshots import snapshot
from tests.support.factories import Caller, event
from tests.support.recorded_sessions import execute
from tests.support.sealing import seal_all
from tests.support.stored_content import stored_texts


@dataclass(frozen=True)
class Canary:
    """A session with the same word in each of its texts, and in the bytes of its picture."""

    session_id: str
    word: str


def record_live_replay(caller: Caller, source: str) -> tuple[str, str]:
    """Add a running live replay of a session, and the session that records it; return the ids of both."""
    tenant = Tenant(caller.key.workspace_id, "live")
    body = SessionCreate(workflow="approve", start=True)
    replay_id, now = new_timed_id("rpl")
    with caller.service.runtime.database.transaction(write=True) as db:
        recorded = create_session(db, tenant, body, origin="replay").id
        db.add(
            ReplayRow(
                id=replay_id,
                workspace_id=tenant.workspace_id,
                mode=tenant.mode,
                workflow="approve",
                session_id=source,
                sandbox="live",
                kind="full",
                status="running",
                spec={"anchor": None, "until": None, "against": None, "policy": {}},
                input_names=[],
                decisions={},
                result_session_id=recorded,
                created_at=now,
            )
        )
    return recorded, replay_id


def new_word() -> str:
    """Return a word that nothing else holds; of letters alone, since labels replace digits."""
    return "canary" + "".join(secrets.choice(string.ascii_lowercase) for _ in range(12))


def recorded_canary(
    caller: Caller, *, is_sealed: bool = True, is_stopped: bool = True, workflow: str = "checkout"
) -> Canary:
    """Record a session with a canary in actor, metadata, events, frame, snapshot and tag."""
    word = new_word()
    session_id = caller.make_session(
        workflow=workflow, metadata={"customer": {"name": word}}, actor={"id": word, "kind": "human"}
    )
    target = {"role": "button", "name": f"Pay {word}"}
    events = [
        event(0, "click", target=target, url=f"https://shop.example/{word}", title=word),
        event(5, "fill", input={"value": word}, id=f"evt_{word}", data={"note": word}),
    ]
    assert caller.add_events(session_id, *events, key=word).status_code == 202
    image = base64.b64encode(_make_picture(word)).decode()
    dom = snapshot(["html", {}, word])
    item = {"t_ms": 3, "content_type": "image/png", "data": image, "url": f"https://shop.example/{word}"}
    answer = caller.add_frames(session_id, {**item, "dom": dom})
    assert answer.status_code == 202, answer.text
    tag = {"name": "noted", "data": {"note": word}}
    assert caller.post(f"/v1/sessions/{session_id}/tags", tag, key="k").status_code == 201
    if is_stopped or is_sealed:
        assert caller.post(f"/v1/sessions/{session_id}/stop", key=f"stop-{word}").status_code == 200
    if is_sealed:
        seal_all(caller.service.runtime)
    return Canary(session_id, word)


def _make_picture(word: str) -> bytes:
    """Return a small PNG whose bytes hold a word."""
    notes, file = PngInfo(), io.BytesIO()
    notes.add_text("Comment", word)
    Image.new("RGB", (16, 12)).save(file, "PNG", pnginfo=notes)
    return file.getvalue()


def count_hits(runtime: Runtime, word: str) -> int:
    """Return the number of stored texts that hold the word: rows, files, and packed content."""
    return sum(word in text for text in stored_texts(runtime))


def make_due(runtime: Runtime) -> None:
    """Let the waits of all purges, and of all second searches of erasures, be over."""
    execute(runtime, "UPDATE purges SET due_at = requested_at WHERE step <> 'done'")
    second = "second_search_at IS NOT NULL AND NOT is_searched"
    execute(runtime, f"UPDATE erasures SET second_search_at = created_at WHERE {second}")


def finish_purges(runtime: Runtime) -> DueStepReport:
    """Run until no purge is open."""
    total = DueStepReport()
    for _ in range(10):
        make_due(runtime)
        report = run_purges(runtime, "tests")
        assert report is not None
        total.sessions += report.sessions
        total.causes += report.causes
        total.failed_steps += report.failed_steps
        if not open_purges(runtime):
            return total
    raise AssertionError(f"still open: {open_purges(runtime)}")


def open_purges(runtime: Runtime) -> list[tuple[str, str]]:
    """Return the session and the step of each purge that has not ended."""
    with runtime.database.transaction(write=False) as db:
        rows = db.exec(select(PurgeRow.session_id, PurgeRow.step).where(PurgeRow.step != "done")).all()
    return [(session_id, step) for session_id, step in rows]


def purge_row(runtime: Runtime, session_id: str) -> Any:
    """Return the purge of a session."""
    with runtime.database.transaction(write=False) as db:
        return db.get(PurgeRow, session_id)
