"""The peer: the same route as one writes it from the FastAPI and SQLModel tutorials, a row per event.

It gets every setting that favours it and is common: WAL with FULL as ours has it, `BEGIN IMMEDIATE` and a
lock in front, so that its threads queue instead of running into each other's busy timeouts, nested members as
plain JSON columns, and no rate limits, event ids of clients, batch ids or strict JSON.
"""

import hashlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Header, HTTPException
from pydantic import BaseModel
from sqlalchemy import JSON, Engine, create_engine, event
from sqlalchemy.orm import registry
from sqlmodel import Field, Session, SQLModel, select

from benchmarks.seeds import Target
from recorder.ids import new_id
from recorder.settings import Settings

_PRAGMAS = ("journal_mode=WAL", "synchronous=FULL", "cache_size=-65536", "wal_autocheckpoint=4000")


class PeerRow(SQLModel, registry=registry()):
    """Keeps the peer's tables apart from ours."""


class PeerKey(PeerRow, table=True):
    """An API key."""

    key_hash: str = Field(primary_key=True)
    workspace_id: str


class PeerSession(PeerRow, table=True):
    """A session."""

    id: str = Field(primary_key=True)
    workspace_id: str
    status: str
    event_count: int = 0


class PeerEvent(PeerRow, table=True):
    """An event, a row of its own."""

    id: str = Field(primary_key=True)
    session_id: str = Field(foreign_key="peersession.id", index=True)
    t_ms: int
    type: str
    target: dict[str, Any] | None = Field(default=None, sa_type=JSON)
    input: dict[str, Any] | None = Field(default=None, sa_type=JSON)
    url: str | None = None
    title: str | None = None
    app: dict[str, Any] | None = Field(default=None, sa_type=JSON)
    frame_id: str | None = None
    state_key: str | None = None
    data: dict[str, Any] | None = Field(default=None, sa_type=JSON)


class EventIn(BaseModel):
    """An event as it is sent."""

    t_ms: int = Field(ge=0)
    type: str
    target: dict[str, Any] | None = None
    input: dict[str, Any] | None = None
    url: str | None = None
    title: str | None = None
    app: dict[str, Any] | None = None
    frame_id: str | None = None
    state_key: str | None = None
    data: dict[str, Any] | None = None


class EventsIn(BaseModel):
    """The body."""

    events: list[EventIn] = Field(min_length=1, max_length=100)


class Accepted(BaseModel):
    """The answer."""

    accepted: int
    first_id: str
    last_id: str
    event_count: int


def peer_sessions(settings: Settings, *, sessions: int, keys: int) -> list[Target]:
    """Return the sessions of the peer's tables that record, with keys that may send."""
    engine = _engine(settings.data_dir)
    PeerRow.metadata.create_all(engine)
    given = [f"key-{n}-{new_id('key')}" for n in range(keys)]
    ids = [new_id("ses") for _ in range(sessions)]
    with Session(engine) as db:
        db.add_all([PeerKey(key_hash=_hash(key), workspace_id="wsp") for key in given])
        db.add_all([PeerSession(id=name, workspace_id="wsp", status="recording") for name in ids])
        db.commit()
    engine.dispose()
    return [Target(name, given[n % keys]) for n, name in enumerate(ids)]


def create_peer() -> FastAPI:
    """Yield the app, on the data folder that the environment names."""
    engine = _engine(Settings.from_env().data_dir)
    lock = threading.Lock()
    app = FastAPI()

    def get_db() -> Iterator[Session]:
        with lock, Session(engine) as db:
            yield db

    Db = Annotated[Session, Depends(get_db, scope="function", max_concurrency=20)]

    def get_workspace(db: Db, authorization: Annotated[str, Header()]) -> str:
        key = db.get(PeerKey, _hash(authorization.removeprefix("Bearer ")))
        if key is None:
            raise HTTPException(401)
        return key.workspace_id

    @app.post("/v1/sessions/{session_id}/events", status_code=202)
    def append_events(
        session_id: str, body: EventsIn, db: Db, workspace_id: Annotated[str, Depends(get_workspace)]
    ) -> Accepted:
        result = db.exec(
            select(PeerSession).where(PeerSession.id == session_id, PeerSession.workspace_id == workspace_id)
        ).first()
        if result is None or result.status != "recording":
            raise HTTPException(404 if result is None else 409)
        rows = [
            PeerEvent(id=new_id("evt"), session_id=session_id, **item.model_dump()) for item in body.events
        ]
        db.add_all(rows)
        result.event_count += len(rows)
        db.add(result)
        answer = Accepted(
            accepted=len(rows), first_id=rows[0].id, last_id=rows[-1].id, event_count=result.event_count
        )
        db.commit()
        return answer

    @app.get("/healthz")
    def healthz() -> dict[str, str]:
        return {"status": "ok"}

    return app


def count_events(settings: Settings) -> int:
    """Return the number of stored event rows."""
    engine = _engine(settings.data_dir)
    with engine.connect() as connection:
        count: int = connection.exec_driver_sql("SELECT count(*) FROM peerevent").scalar_one()
    engine.dispose()
    return count


def _engine(folder: Path) -> Engine:
    engine = create_engine(
        f"sqlite:///{folder / 'peer.db'}", connect_args={"check_same_thread": False, "timeout": 30}
    )

    @event.listens_for(engine, "connect")
    def _prepare(connection: Any, _: object) -> None:
        connection.isolation_level = None
        for pragma in _PRAGMAS:
            connection.execute(f"PRAGMA {pragma}")

    @event.listens_for(engine, "begin")
    def _begin(connection: Any) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    return engine


def _hash(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()
