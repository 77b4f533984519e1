"""Group commit: one transaction for all that waits, one answer each. Design §3, docs/decisions/0002."""

import asyncio
import threading
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import Any, Self

import pytest
from sqlalchemy import text

from recorder.access.rate_tiers import TIERS
from recorder.errors import NotFound, SessionBusy, SessionNotRecording, Unavailable
from recorder.ids import new_id
from recorder.models.session import SessionRow
from recorder.recording.driver_cursor import DriverCursor, IngestCursor
from recorder.recording.ingest import IngestBatch, IngestWriter
from recorder.recording.ingest_statements import lock_session_for_ingest, reserve_item_positions
from recorder.recording.session_locks import lock_free_sessions
from recorder.storage.database import Database
from tests.support.databases import create_database
from tests.support.sealed_sessions import START

WORKSPACE = "wsp_a"


@pytest.fixture
def writer(database: Database) -> Iterator[IngestWriter]:
    """Yield a writer of its own."""
    running = IngestWriter(database)
    yield running
    running.close()


class Note:
    """A batch that takes positions in a session; `fault` is raised after it wrote."""

    kind = "events"

    def __init__(
        self,
        session_id: str,
        *,
        n: int = 1,
        fault: Exception | None = None,
        workspace_id: str = WORKSPACE,
    ) -> None:
        self.session_id = session_id
        self.workspace_id = workspace_id
        self.n = n
        self.fault = fault

    @property
    def session(self) -> tuple[str, str, str]:
        """The session's identity."""
        return self.workspace_id, "live", self.session_id

    def store(self, cursor: IngestCursor) -> bytes:
        """Take positions and answer the first."""
        lock_session_for_ingest(cursor, self.session)
        first, _, _ = reserve_item_positions(
            cursor, self.session, TIERS["unlimited"], events=self.n, frames=0, max_t_ms=self.n
        )
        if self.fault is not None:
            raise self.fault
        return str(first).encode()


class Blocker:
    """A batch that writes nothing and keeps the writer busy until a gate opens."""

    session_id = ""
    session = (WORKSPACE, "live", "")
    kind = "events"
    n = 0

    def __init__(self, gate: threading.Event) -> None:
        self.gate = gate

    def store(self, cursor: IngestCursor) -> bytes:
        """Wait."""
        assert self.gate.wait(10)
        return b""


def make_session(database: Database, *, status: str = "recording", workspace_id: str = WORKSPACE) -> str:
    """Store a bare session row."""
    session_id = new_id("ses")
    with database.transaction(write=True) as db:
        db.add(
            SessionRow(
                id=session_id,
                workspace_id=workspace_id,
                mode="live",
                workflow="pay",
                status=status,
                created_at=START,
            )
        )
    return session_id


def submit(writer: IngestWriter, batches: Sequence[Any], *, together: bool = False) -> list[Any]:
    """Submit batches; return their answers or errors, in their order.

    Args:
        writer: the writer.
        batches: the batches.
        together: let the writer begin only when all of them wait.
    """

    async def run() -> list[Any]:
        gate = threading.Event()
        # On SQLite a batch is stored in this thread, so it is the lock before it that holds the writer up.
        with writer._database.write_lock if together else nullcontext():
            held = asyncio.ensure_future(writer.submit(Blocker(gate))) if together else None
            await asyncio.sleep(0.05 if together else 0)
            waiting = [asyncio.ensure_future(writer.submit(batch)) for batch in batches]
            await asyncio.sleep(0)
            gate.set()
        if held is not None:
            await held
        return await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 30)

    return asyncio.run(run())


def event_count(database: Database, session_id: str) -> int:
    """Return the event count of the session's row."""
    with database.transaction(write=False) as db:
        statement = text("SELECT event_count FROM sessions WHERE id = :id")
        count: int = db.connection().execute(statement, {"id": session_id}).scalar_one()
        return count


def test_positions_follow_each_other_in_the_order_of_sending(
    database: Database, writer: IngestWriter
) -> None:
    session_id = make_session(database)
    answers = submit(writer, [Note(session_id, n=n) for n in (3, 1, 2, 4)])
    assert answers == [b"1", b"4", b"5", b"7"]
    assert event_count(database, session_id) == 10


def test_a_refused_batch_does_not_hold_up_the_others(database: Database, writer: IngestWriter) -> None:
    good, stopped, missing = make_session(database), make_session(database, status="stopped"), new_id("ses")
    answers = submit(writer, [Note(good), Note(stopped), Note(missing), Note(good)])
    assert (answers[0], answers[3]) == (b"1", b"2")
    assert [error.code for error in answers[1:3]] == ["invalid_state", "not_found"]
    assert isinstance(answers[2], NotFound)


def test_an_unforeseen_fault_stores_nothing_of_its_group(
    database: Database, writer: IngestWriter, caplog: pytest.LogCaptureFixture
) -> None:
    first_id, second_id = make_session(database), make_session(database)
    answers = submit(writer, [Note(first_id), Note(second_id, fault=ZeroDivisionError())], together=True)
    assert all(isinstance(answer, Unavailable) for answer in answers)
    assert (event_count(database, first_id), event_count(database, second_id)) == (0, 0)
    assert "ZeroDivisionError" in caplog.text
    assert submit(writer, [Note(first_id)]) == [b"1"]


def test_a_client_that_went_away_is_stored_all_the_same(database: Database, writer: IngestWriter) -> None:
    session_id = make_session(database)

    async def run() -> bytes:
        gone = asyncio.ensure_future(writer.submit(Note(session_id)))
        await asyncio.sleep(0)
        gone.cancel()
        return await asyncio.wait_for(writer.submit(Note(session_id)), 30)

    assert asyncio.run(run()) == b"2"


def test_closing_stores_what_waits(database: Database) -> None:
    session_id = make_session(database)
    writer = IngestWriter(database)

    async def run() -> list[bytes]:
        waiting = [asyncio.ensure_future(writer.submit(Note(session_id))) for _ in range(50)]
        await asyncio.sleep(0)
        await asyncio.to_thread(writer.close)
        return await asyncio.wait_for(asyncio.gather(*waiting), 30)

    assert asyncio.run(run()) == [str(n).encode() for n in range(1, 51)]
    assert event_count(database, session_id) == 50


def test_too_much_waiting_is_turned_away(
    database: Database, writer: IngestWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "max_waiting", 20)
    session_id = make_session(database)
    answers = submit(writer, [Note(session_id) for _ in range(30)], together=True)
    assert answers[:20] == [str(n).encode() for n in range(1, 21)]
    assert [error.code for error in answers[20:]] == ["unavailable"] * 10
    assert event_count(database, session_id) == 20


def test_workspaces_take_turns_in_the_groups(database: Database) -> None:
    commits: list[list[str]] = []

    def note(stored: list[IngestBatch]) -> None:
        if stored and stored[0].session_id:
            commits.append([batch.session[0] for batch in stored])

    writer = IngestWriter(database, note)
    writer.max_group = 2
    busy_id, other_id = make_session(database), make_session(database, workspace_id="wsp_b")
    batches = [Note(busy_id) for _ in range(5)] + [Note(other_id, workspace_id="wsp_b")]
    assert submit(writer, batches, together=True) == [b"1", b"2", b"3", b"4", b"5", b"1"]
    writer.close()
    assert sorted(commits[0]) == [WORKSPACE, "wsp_b"]
    assert [len(commit) for commit in commits] == [2, 2, 2]


def test_a_slow_group_is_followed_by_smaller_ones(postgres: str) -> None:
    database = Database(create_database(postgres))
    writer, session_id = IngestWriter(database), make_session(database)
    gate = threading.Event()
    threading.Timer(0.2, gate.set).start()
    submit(writer, [Blocker(gate)])
    small = writer._group_size
    assert submit(writer, [Note(session_id)]) == [b"1"]
    writer.close()
    database.close()
    assert small == 16


def test_the_writer_owns_its_connection(database: Database, writer: IngestWriter) -> None:
    session_id = make_session(database)
    stop = threading.Event()
    faults: list[Exception] = []

    def read() -> None:
        while not stop.is_set():
            try:
                event_count(database, session_id)
            except Exception as error:
                faults.append(error)

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(20):
        answers = submit(writer, [Note(session_id) for _ in range(5)])
        assert not [answer for answer in answers if isinstance(answer, Exception)]
    stop.set()
    for thread in threads:
        thread.join()
    assert faults == [] and event_count(database, session_id) == 100


def test_the_writer_goes_on_after_the_server_hung_up(postgres: str) -> None:
    database = Database(create_database(postgres))
    writer, session_id = IngestWriter(database), make_session(database)
    assert submit(writer, [Note(session_id)]) == [b"1"]
    with database.transaction(write=True) as db:
        others = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
        db.connection().execute(text(f"{others} AND pid <> pg_backend_pid()"))
    (lost,) = submit(writer, [Note(session_id)])
    assert isinstance(lost, Unavailable)
    assert submit(writer, [Note(session_id)]) == [b"2"]
    writer.close()
    database.close()


@pytest.mark.parametrize("status", ["stopped", "sealed"])
def test_the_row_of_a_session_that_does_not_record_is_not_waited_for(postgres: str, status: str) -> None:
    # Sealing locks such rows for seconds, and all batches of the process would wait for one.
    database = Database(create_database(postgres))
    writer, session_id = IngestWriter(database), make_session(database, status=status)
    with database.transaction(write=True) as db:
        db.connection().execute(text("SELECT id FROM sessions FOR UPDATE"))
        (refused,) = submit(writer, [Note(session_id)])
    assert isinstance(refused, SessionNotRecording)
    writer.close()
    database.close()


class HeldSession:
    """A writer on PostgreSQL, and a session that another transaction holds while the block runs."""

    def __init__(self, postgres: str) -> None:
        self.database = Database(create_database(postgres))
        self.writer = IngestWriter(self.database)
        self.held, self.other = make_session(self.database), make_session(self.database)
        self._transaction = self.database.transaction(write=True)

    def __enter__(self) -> Self:
        db = self._transaction.__enter__()
        statement = text("UPDATE sessions SET tag_count = tag_count WHERE id = :id")
        db.connection().execute(statement, {"id": self.held})
        return self

    def __exit__(self, *_: object) -> None:
        self.writer.close()
        self.database.close()

    def release(self) -> None:
        """Commit the transaction."""
        self._transaction.__exit__(None, None, None)


def test_a_session_that_is_held_holds_up_no_other_one(postgres: str) -> None:
    async def run(held: HeldSession) -> list[bytes]:
        postponed = [asyncio.ensure_future(held.writer.submit(Note(held.held, n=n))) for n in (1, 2)]
        others = [held.writer.submit(Note(held.other)) for _ in range(3)]
        assert await asyncio.wait_for(asyncio.gather(*others), 30) == [b"1", b"2", b"3"]
        later = asyncio.ensure_future(held.writer.submit(Note(held.held)))
        assert await asyncio.wait_for(held.writer.submit(Note(held.other)), 30) == b"4"
        assert not any(waiting.done() for waiting in (*postponed, later))
        await asyncio.to_thread(held.release)
        return await asyncio.wait_for(asyncio.gather(*postponed, later), 30)

    with HeldSession(postgres) as held:
        held.writer.busy_s = 60
        assert asyncio.run(run(held)) == [b"1", b"2", b"4"]


def test_a_batch_is_refused_once_its_session_was_held_too_long(postgres: str) -> None:
    with HeldSession(postgres) as held:
        held.writer.busy_s = 0.1
        (refused,) = submit(held.writer, [Note(held.held)])
        assert isinstance(refused, SessionBusy)
        held.release()
        assert submit(held.writer, [Note(held.held)]) == [b"1"]


def test_closing_waits_for_what_was_postponed(postgres: str) -> None:
    async def run(held: HeldSession) -> bytes:
        postponed = asyncio.ensure_future(held.writer.submit(Note(held.held)))
        assert await asyncio.wait_for(held.writer.submit(Note(held.other)), 30) == b"1"
        closing = asyncio.ensure_future(asyncio.to_thread(held.writer.close))
        await asyncio.to_thread(held.release)
        await asyncio.wait_for(closing, 30)
        return await asyncio.wait_for(postponed, 30)

    with HeldSession(postgres) as held:
        held.writer.busy_s = 20
        assert asyncio.run(run(held)) == b"1"


def test_another_workspace_cannot_hold_a_session_by_its_id(postgres: str) -> None:
    # A batch of another tenant finds no such session, and must not lock it either.
    database = Database(create_database(postgres))
    session = (WORKSPACE, "live", make_session(database))
    connection = database.raw_connection()
    cursor = DriverCursor(connection, database.dialect)
    cursor.begin()
    assert (
        lock_free_sessions(cursor, {("wsp_b", "live", session[2]), (WORKSPACE, "test", session[2])}) == set()
    )
    with database.transaction(write=True) as db:
        db.connection().execute(text("SELECT id FROM sessions FOR UPDATE NOWAIT"))
        assert lock_free_sessions(cursor, {session}) == {session}
    assert lock_free_sessions(cursor, {session}) == set()
    connection.close()
    database.close()
