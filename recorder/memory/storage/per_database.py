"""What a process keeps of a database from request to request: for each connection pool, and as long as it."""

import threading
import weakref
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from sqlmodel import Session as DbSession

Kept = TypeVar("Kept")


class PerDatabase(Generic[Kept]):
    """One object for each database that is in use."""

    def __init__(self, make: Callable[[], Kept]) -> None:
        self._make = make
        self._kept: weakref.WeakKeyDictionary[Any, Kept] = weakref.WeakKeyDictionary()
        self._lock = threading.Lock()

    def of(self, db: DbSession) -> Kept:
        """The object of the database of this transaction."""
        pool = db.connection().engine.pool
        with self._lock:
            kept = self._kept.get(pool)
            if kept is None:
                kept = self._kept[pool] = self._make()
            return kept


def is_writing(db: DbSession) -> bool:
    """Whether this transaction may see what is then rolled back, which nobody must keep."""
    return bool(db.connection().get_execution_options().get("recorder_write", False))
