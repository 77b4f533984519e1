"""Workspaces with few captured minutes, and ingest writers that charge them."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import orjson
import pytest
from sqlmodel import select

from recorder.access.keys import Caller
from recorder.access.rate_tiers import TIERS, Tier
from recorder.access.workspaces import create_workspace
from recorder.errors import RecorderError
from recorder.ids import new_id
from recorder.models.operations import OutboxRow
from recorder.models.session import SessionCreate, SessionRow
from recorder.models.workspace import UsageRow
from recorder.recording.event_batches import EventBatch, check_and_pack_event_batch
from recorder.recording.ingest import IngestWriter
from recorder.recording.session_stops import stop_session
from recorder.recording.sessions import create_session
from recorder.storage.database import Database
from recorder.tenant import Tenant

MINUTE = 60_000
TINY = replace(TIERS["trial"], name="tiny", captured_minutes=10)
LONG_AGO = "2024-02-29T10:00:00Z"


@dataclass(frozen=True)
class ChargedTenant:
    """A workspace of ten minutes a month, or of another tier, and what it used."""

    database: Database
    caller: Caller

    def session(self, **body: Any) -> str:
        """Start a session, an import, whose clock is its own; return its id."""
        [session_id] = self.sessions(1, **body)
        return session_id

    def sessions(self, count: int, **body: Any) -> list[str]:
        """Create so many sessions in one transaction; return their ids."""
        wanted = {"workflow": "pay", "start": True, "started_at": LONG_AGO, **body}
        request = SessionCreate.model_validate(wanted)
        with self.database.transaction(write=True) as db:
            return [create_session(db, self.caller.tenant, request).id for _ in range(count)]

    def batch(self, session_id: str, *t_ms: int, key: str | None = None, **members: Any) -> EventBatch:
        """Return a batch with events at these times."""
        items = [{"t_ms": offset_ms, "type": "click", **members} for offset_ms in t_ms]
        body = orjson.dumps({"events": items})
        return check_and_pack_event_batch(
            self.caller, session_id, body, content_type="application/json", batch_key=key
        )

    def stop(self, session_id: str) -> int:
        """Stop a session; gives its duration."""
        with self.database.transaction(write=True) as db:
            return stop_session(db, self.caller.tenant, session_id).duration_ms

    def used_ms(self) -> int:
        """Return the usage over all periods."""
        with self.database.transaction(write=False) as db:
            statement = select(UsageRow.captured_ms).where(UsageRow.workspace_id == self.caller.workspace_id)
            return sum(db.exec(statement))

    def charged_ms(self) -> int:
        """Return the time that its sessions were charged with."""
        with self.database.transaction(write=False) as db:
            statement = select(SessionRow.charged_ms).where(
                SessionRow.workspace_id == self.caller.workspace_id
            )
            return sum(db.exec(statement))

    def notices(self) -> list[str]:
        """Return the types of the quota events that were queued, in their order."""
        with self.database.transaction(write=False) as db:
            statement = select(OutboxRow.type).where(OutboxRow.subject_id == self.caller.workspace_id)
            return list(db.exec(statement.order_by(OutboxRow.id)))

    def event_count(self, session_id: str) -> int:
        """Return the number of events of a session."""
        with self.database.transaction(write=False) as db:
            return db.get_one(SessionRow, session_id).event_count


@pytest.fixture
def make_tenant(database: Database, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that creates tenants; `tiny` is a tier like any other to what is tested."""
    monkeypatch.setitem(TIERS, TINY.name, TINY)

    def make(tier: Tier = TINY, mode: Any = "live") -> ChargedTenant:
        with database.transaction(write=True) as db:
            made = create_workspace(db, new_id("wsp"), region="us", secret=b"x", tier=tier.name)
        return ChargedTenant(database, Caller(Tenant(made.workspace_id, mode), made.key_id, tier=tier))

    return make


@pytest.fixture
def tenant(make_tenant: Any) -> ChargedTenant:
    """Return a tenant with ten minutes."""
    made: ChargedTenant = make_tenant()
    return made


@pytest.fixture
def writer(database: Database) -> Iterator[IngestWriter]:
    """Yield the writer of one process."""
    running = IngestWriter(database)
    yield running
    running.close()


@pytest.fixture
def other_writer(database: Database) -> Iterator[IngestWriter]:
    """Yield the writer of another process, with connections and locks of its own."""
    opened = Database(database.url)
    running = IngestWriter(opened)
    yield running
    running.close()
    opened.close()


def submit(*batches: tuple[IngestWriter, EventBatch]) -> list[bytes | RecorderError]:
    """Submit batches to their writers, all at once; return answers or errors in their order."""

    async def run() -> list[Any]:
        waiting = [asyncio.ensure_future(writer.submit(batch)) for writer, batch in batches]
        return await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 60)

    return asyncio.run(run())


def codes(answers: list[bytes | RecorderError]) -> list[str]:
    """Return `accepted`, or the code of the refusal."""
    return [answer.code if isinstance(answer, RecorderError) else "accepted" for answer in answers]
