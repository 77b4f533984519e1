"""Sessions for graph tests: a letter is an act, a digit before it the screen it happens on (`1a 1b 2a`)."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from sqlmodel import Session as DbSession

from recorder.ids import new_id
from recorder.memory.steps.action_tokens import hash_texts
from recorder.memory.steps.session_steps import Step
from recorder.memory.storage.indexing import GraphIndexer
from recorder.models.session import SessionRow
from recorder.models.workflow import WorkflowRow
from recorder.storage.database import Database
from recorder.tenant import GraphScope, Tenant
from tests.support.databases import create_file

START = datetime(2026, 5, 1, 8, tzinfo=UTC)


def make_step(word: str, t_ms: int = 0, *, features: Sequence[int] | None = None) -> Step:
    """Return a step such as `1a`: the act `a` on screen `1`; other screens share no feature with it."""
    screen, act = word[:-1], word[-1]
    screen_features = tuple(sorted(hash_texts(screen, str(index)) for index in range(10)))
    tokens = screen_features if features is None else tuple(sorted(features))
    key = hash_texts(screen, "click", act, *map(str, tokens))
    return Step(0, key, screen, "click", act, f"Click {act}", tokens, t_ms, t_ms, None, "evt_1", 1)


def make_steps(words: str) -> list[Step]:
    """Return the steps of a session, one every second from the first second on."""
    return [make_step(word, (index + 1) * 1_000) for index, word in enumerate(words.split())]


def make_scope(db: DbSession, *, mode: str = "live") -> GraphScope:
    """Create a workflow in a workspace of its own."""
    scope = GraphScope(Tenant(new_id("wsp"), mode), "checkout")
    add_workflow(db, scope)
    return scope


def database_with(scope: GraphScope, folder: Path) -> Iterator[Database]:
    """Yield a database with one workflow, in which nothing was recorded; closed when the iterator is."""
    database = Database(create_file(folder))
    with database.transaction(write=True) as db:
        add_workflow(db, scope)
    yield database
    database.close()


def add_workflow(db: DbSession, scope: GraphScope) -> None:
    """Add the row of a workflow."""
    row = WorkflowRow(
        workspace_id=scope.workspace_id,
        mode=scope.mode,
        workflow=scope.workflow,
        created_at=START,
        updated_at=START,
    )
    db.add(row)
    db.flush()


def make_row(
    scope: GraphScope,
    *,
    outcome: str = "success",
    duration_ms: int = 10_000,
    started_at: datetime = START,
    seal_seq: int = 1,
    actor_kind: str | None = "human",
    origin: str | None = None,
) -> SessionRow:
    """Return a session as sealing hands it over; it is not stored."""
    return SessionRow(
        id=new_id("ses"),
        workspace_id=scope.workspace_id,
        mode=scope.mode,
        workflow=scope.workflow,
        status="sealed",
        created_at=started_at,
        started_at=started_at,
        stopped_at=started_at + timedelta(milliseconds=duration_ms),
        sealed_at=started_at + timedelta(minutes=10),
        duration_ms=duration_ms,
        outcome=outcome,
        seal_seq=seal_seq,
        actor_kind=actor_kind,
        origin=origin,
    )


def index_words(database: Database, scope: GraphScope, *words: str) -> list[SessionRow]:
    """Take in sessions with these steps, in one transaction."""
    rows = [make_row(scope) for _ in words]
    indexer = GraphIndexer()
    with database.transaction(write=True) as db:
        steps = {row.id: make_steps(text) for row, text in zip(rows, words, strict=True)}
        indexer.commit(db, indexer.prepare(db, rows, steps), rows)
    return rows
