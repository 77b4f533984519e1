"""A workflow that receives one session an hour, by letters, and its drift alarms."""

from datetime import timedelta
from typing import Any

from sqlmodel import col, select, update

from recorder.memory.drift.monitor import DriftCheck, check_drift
from recorder.memory.drift.store import read_alarms
from recorder.memory.drift.thresholds import DriftRules, misses_needed
from recorder.memory.storage.indexing import GraphIndexer
from recorder.models.operations import OutboxRow, SealCounterRow
from recorder.models.session import SessionRow
from recorder.storage.database import Database
from recorder.storage.deployment import compute_sealing_slot, read_sealing_slot_count
from recorder.tenant import GraphScope
from tests.support.graph_sessions import START, add_workflow, make_row, make_scope, make_steps

#: The steps of a session by its letter; `n` is `a` with a node of its own at the end.
WORDS = {"a": "1a 2b 3c 4d", "b": "5e 6f 7g", "c": "1h 2i 3j 4k", "n": "1a 2b 3c 4d 5n"}
#: Two paths in turn: enough for a first baseline.
BASELINE = "ab" * 50
#: After so many misses behind it a path is gone: 50 of 100 took it, and two are watched.
NEEDED = max(10, misses_needed(50, 100, watched=2, run_length=DriftRules().run_length))


class Story:
    """A workflow and its sessions, which name no actor."""

    def __init__(self, database: Database, scope: GraphScope | None = None) -> None:
        self.database = database
        self.rows: list[SessionRow] = []
        with database.transaction(write=True) as db:
            if scope is not None:
                add_workflow(db, scope)
            self.scope = scope or make_scope(db)
            slot = compute_sealing_slot(self.scope.workflow, read_sealing_slot_count(db))
            keys = {"workspace_id": self.scope.workspace_id, "mode": self.scope.mode, "slot": slot}
            if db.get(SealCounterRow, tuple(keys.values())) is None:
                db.add(SealCounterRow(**keys, seal_seq=0))

    def add(self, letters: str, **members: Any) -> list[SessionRow]:
        """Take sessions with these steps into the graph, as sealing does."""
        first = len(self.rows)
        rows = [
            make_row(
                self.scope,
                seal_seq=index + 1,
                **{"started_at": START + timedelta(hours=index), **members},
            )
            for index in range(first, first + len(letters))
        ]
        steps = {row.id: make_steps(WORDS[letter]) for row, letter in zip(rows, letters, strict=True)}
        indexer = GraphIndexer()
        with self.database.transaction(write=True) as db:
            indexer.commit(db, indexer.prepare(db, rows, steps), rows)
            counter = update(SealCounterRow).where(
                col(SealCounterRow.workspace_id) == self.scope.workspace_id
            )
            db.connection().execute(counter.values(seal_seq=first + len(rows)))
        self.rows += rows
        return rows

    def look(self) -> DriftCheck | None:
        """Check for drift."""
        return check_drift(self.database, self.scope)

    def events(self) -> list[OutboxRow]:
        """Return the events of this workspace, the oldest first."""
        statement = select(OutboxRow).filter_by(workspace_id=self.scope.workspace_id)
        with self.database.transaction(write=False) as db:
            return list(db.exec(statement.order_by(col(OutboxRow.id))))

    def told(self) -> list[tuple[str, int]]:
        """Return the type and the sealing number of each alarm that is remembered."""
        with self.database.transaction(write=False) as db:
            return [(alarm.type, alarm.seal_seq) for alarm in read_alarms(db, self.scope)]
