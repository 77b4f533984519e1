"""Database of the control plane: one engine and explicit transactions, on SQLite and PostgreSQL."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, event, inspect, text
from sqlalchemy.engine.interfaces import Dialect
from sqlalchemy.exc import ArgumentError, OperationalError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.orm import sessionmaker
from sqlalchemy.pool import ConnectionPoolEntry
from sqlmodel import Session as DbSession
from sqlmodel import SQLModel

from recorder.data_folder import NoDeployment
from recorder.errors import Conflict, Unavailable
from recorder.settings import Settings
from recorder.storage.engines import create_postgres_engine, create_sqlite_engine
from recorder.storage.fair_lock import FairLock

_ENGINES = ("postgresql://", "postgresql+psycopg://", "sqlite:///")
# Writers wait as long as the truncation of the log waits for readers.
_TRUNCATE_WAIT_MS = 200
#: A rewrite of the file waits for writers of other processes for so long.
_REWRITE_WAIT_MS = 10_000
_MIGRATION_LOCK = 0x5245434F52444552
_MIGRATIONS = Path(__file__).parent / "migrations" / "versions"
#: Keys of `Session.info`: functions to call before the commit; ids of the rows that were changed, by table.
_LAST_STEPS = "last_steps"
_CHANGED_IDS = "changed_ids"

#: Receives the ids of the rows that a committed transaction changed.
ChangeListener = Callable[[set[str]], object]


class UnknownSchema(Conflict):
    """The database has the schema of another release."""

    code = "unknown_schema"

    def __init__(self) -> None:
        super().__init__(
            "The database was created by another release, whose data this one cannot read. Install that "
            "release, or start this one with an empty data folder (--data) or another database "
            "(RECORDER_DATABASE_URL)."
        )


#: Opens a write transaction, under the lease of a run where there is one.
OpenTransaction = Callable[[], AbstractContextManager[DbSession]]


class DatabaseUnusable(Unavailable):
    """The database cannot be opened at the start."""

    def __init__(self, settings: Settings, why: str) -> None:
        which = f"in {settings.data_dir}" if settings.is_embedded else "that RECORDER_DATABASE_URL names"
        super(Unavailable, self).__init__(f"The database {which} cannot be opened: {why}.")


class Database:
    """Source of all transactions; no other code commits.

    On SQLite one process writes one transaction at a time: `write_lock` queues its threads before the file's
    own lock, whose busy handler sleeps instead of queueing. The ingest writer takes it by `ingest_lock`: it
    answers many requests with one transaction, and waits for at most one other.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.is_sqlite = url.startswith("sqlite")
        lock = FairLock()
        self.write_lock: AbstractContextManager[Any] = lock if self.is_sqlite else nullcontext()
        self.ingest_lock: AbstractContextManager[Any] = lock.preferred if self.is_sqlite else nullcontext()
        self._engine = create_sqlite_engine(url) if self.is_sqlite else create_postgres_engine(url)
        self._writer = self._engine.execution_options(recorder_write=True)
        # A read sees one state of all tables: hot rows may move to the lake between two statements.
        snapshot = {} if self.is_sqlite else {"isolation_level": "REPEATABLE READ"}
        self._reader = self._engine.execution_options(**snapshot)
        self._sessions = sessionmaker(class_=DbSession, expire_on_commit=False)
        self._listeners: list[tuple[type[SQLModel], ChangeListener]] = []

    @property
    def dialect(self) -> Dialect:
        """SQL dialect of the engine, for the ingest writer alone."""
        return self._engine.dialect

    @contextmanager
    def transaction(self, *, write: bool) -> Iterator[DbSession]:
        """Open a transaction, commit it when the block ends, and roll it back when the block raises.

        Functions of `add_last_transaction_step` run before the commit, listeners of changed rows after it.

        Args:
            write: on SQLite, take the write lock at once; a read that turns into a write cannot wait.

        Raises:
            Unavailable: if the database does not answer.
        """
        with self.write_lock if write else nullcontext():
            try:
                with self._sessions(bind=self._writer if write else self._reader) as db:
                    yield db
                    for step in db.info.get(_LAST_STEPS, ()):
                        step(db)
                    db.commit()
            except (OperationalError, PoolTimeout) as error:
                raise Unavailable("The database") from error
        changed_ids: dict[type[SQLModel], set[str]] = db.info.get(_CHANGED_IDS, {})
        for table, listener in self._listeners:
            if table in changed_ids:
                listener(changed_ids[table])

    def add_listener(self, table: type[SQLModel], listener: ChangeListener) -> None:
        """Call a function after each commit with the ids of a table's rows that the transaction changed.

        The ids are those that were passed to `note_change`. Changes of other processes are not among them.
        """
        self._listeners.append((table, listener))

    def raw_connection(self) -> Any:
        """Return a driver connection in autocommit mode that the caller closes."""
        pooled = self._engine.raw_connection()
        connection = pooled.driver_connection
        assert connection is not None
        # Without this the pool reuses the connection once `pooled` is garbage-collected.
        pooled.detach()
        return connection

    def truncate_log(self) -> bool:
        """Empty SQLite's write-ahead log, which holds copies of erased rows; other databases have none.

        Returns:
            False if readers or writers still need the log.
        """
        if not self.is_sqlite:
            return True
        # Most pages are copied while writers go on: the truncation, for which they wait, finds few.
        self.checkpoint_log()
        with self.write_lock:
            connection = self.raw_connection()
            try:
                cursor = connection.cursor()
                cursor.execute(f"PRAGMA busy_timeout={_TRUNCATE_WAIT_MS}")
                is_busy, _, _ = cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            finally:
                connection.close()
        return not is_busy

    def measure_content(self) -> int:
        """Return the bytes of the pages that SQLite's file uses."""
        with self.transaction(write=False) as db:
            pages, free, size = (
                int(db.connection().exec_driver_sql(f"PRAGMA {name}").scalar_one())
                for name in ("page_count", "freelist_count", "page_size")
            )
        return (pages - free) * size

    def rewrite_file(self, *, wait_ms: int = _REWRITE_WAIT_MS) -> bool:
        """Rewrite SQLite's file, whose pages may hold copies of rows that were moved and erased.

        Writers wait for it. It needs as much space again in the folder of temporary files and in the log.

        Returns:
            False if the log, which holds the copies too, is still being read.

        Raises:
            Unavailable: if the lock is not free in time, or there is no room.
        """
        with self.write_lock, closing(self.raw_connection()) as connection:
            try:
                connection.execute(f"PRAGMA busy_timeout={wait_ms}")
                # In memory it would take as much as the file.
                connection.execute("PRAGMA temp_store=FILE")
                connection.execute("VACUUM")
            except sqlite3.OperationalError as error:
                raise Unavailable("The database") from error
        return self.truncate_log()

    def checkpoint_log(self) -> None:
        """Copy SQLite's write-ahead log into the database file, as far as readers allow; no writer waits."""
        if not self.is_sqlite:
            return
        connection = self.raw_connection()
        try:
            connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
        finally:
            connection.close()

    def migrate(self, revision: str = "head") -> None:
        """Create the schema in an empty database; of several processes that start, one creates it.

        Args:
            revision: schema to create; rows of a backup are restored into the one that they had.

        Raises:
            UnknownSchema: if the database was created by another release.
            Unavailable: if the database does not answer.
        """
        if revision == "head":
            with self._reader.connect() as connection:
                if _read_schema_revision(connection) == read_newest_database_revision():
                    return
        # Imported here: Alembic takes as long as the rest of a command that finds its schema.
        from recorder.storage import schema

        with self.write_lock, self._writer.connect() as connection:
            if not self.is_sqlite:
                connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _MIGRATION_LOCK})
            if not schema.upgrade_schema(connection, _read_schema_revision(connection), revision):
                raise UnknownSchema
            connection.commit()

    def has_schema(self) -> bool:
        """Return whether a release created its schema here; a missing file is not created.

        Raises:
            Unavailable: if the database does not answer.
        """
        file = self._engine.url.database
        if self.is_sqlite and not (file and Path(file).is_file()):
            return False
        return self.read_schema_revision() is not None

    def read_schema_revision(self) -> str | None:
        """Return the revision of the schema; None if there is none.

        Raises:
            Unavailable: if the database does not answer.
        """
        with self.transaction(write=False) as db:
            return _read_schema_revision(db.connection())

    def ping(self) -> None:
        """Check that the database answers a query."""
        with self.transaction(write=False) as db:
            db.connection().execute(text("SELECT 1"))

    def close(self) -> None:
        """Close all connections, and those that threads still use once they return them."""
        pool = self._engine.pool
        self._engine.dispose()
        event.listen(pool, "checkin", _close_returned_connection)


def add_last_transaction_step(db: DbSession, step: Callable[[DbSession], object]) -> None:
    """Have `Database.transaction` call a function directly before it commits, once per transaction."""
    steps = db.info.setdefault(_LAST_STEPS, [])
    if step not in steps:
        steps.append(step)


def note_change(db: DbSession, table: type[SQLModel], row_id: str) -> None:
    """Have `Database.transaction` pass a row's id to the listeners of its table after the commit."""
    db.info.setdefault(_CHANGED_IDS, {}).setdefault(table, set()).add(row_id)


def open_database(settings: Settings, *, create: bool = True) -> Database:
    """Connect to the database and create or check its schema.

    Raises:
        NoDeployment: if the database is empty and `create` is false.
        UnknownSchema: if the database was created by another release.
        DatabaseUnusable: if the database does not answer, or the address is none of a database.
    """
    database = _make_database(settings)
    try:
        with _explaining_failures(settings):
            if not create and not database.has_schema():
                raise NoDeployment(settings.data_dir)
            database.migrate()
    except BaseException:
        database.close()
        raise
    return database


def require_database_server(settings: Settings) -> None:
    """Check that a server answers at the address of the database; a database in a file is not opened.

    Raises:
        DatabaseUnusable: if none does, or the address is none of a database.
    """
    database = _make_database(settings)
    try:
        with _explaining_failures(settings):
            if not database.is_sqlite:
                database.has_schema()
    finally:
        database.close()


def _make_database(settings: Settings) -> Database:
    """Return the database that the settings name; raise if its address is no usable one."""
    address_takes = "its address must begin with postgresql:// or sqlite:///"
    if not settings.database_url.startswith(_ENGINES):
        raise DatabaseUnusable(settings, address_takes)
    try:
        return Database(settings.database_url)
    except ArgumentError as error:
        raise DatabaseUnusable(settings, address_takes) from error


@contextmanager
def _explaining_failures(settings: Settings) -> Iterator[None]:
    """Turn errors of opening the database into `DatabaseUnusable`, which says why."""
    try:
        yield
    except (SQLAlchemyError, Unavailable) as error:
        why = "it does not answer, refuses this user, or holds something else"
        raise DatabaseUnusable(settings, why) from error


def read_newest_database_revision() -> str:
    """Return the revision of the last migration, as its file names it."""
    newest = max(_MIGRATIONS.glob("[0-9]*.py"), key=lambda file: file.name)
    for line in newest.read_text().splitlines():
        name, is_assigned, value = line.partition(" = ")
        if name == "revision" and is_assigned:
            return value.strip('"')
    raise AssertionError(f"{newest.name} names no revision")


def _read_schema_revision(connection: Connection) -> str | None:
    if not inspect(connection).has_table("alembic_version"):
        return None
    return connection.execute(text("SELECT version_num FROM alembic_version")).scalar()


def _close_returned_connection(_: object, entry: ConnectionPoolEntry) -> None:
    entry.close()
