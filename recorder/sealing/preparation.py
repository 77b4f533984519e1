"""TEMPORARY stand-in."""

from collections.abc import Callable

from recorder.sealing.facts import find_facts
from recorder.sealing.rows import build_tables
from recorder.sealing.screens import ScreenReader
from recorder.sealing.stopped import read_stopped


class _Digests:
    def __init__(self):
        self.reader = ScreenReader()

    def close(self): ...


def open_digests(runtime):
    return _Digests()


class BatchPreparation:
    def __init__(self, runtime, digests, batch):
        self._runtime, self._digests, self._batch = runtime, digests, batch
        self.hold: Callable = lambda db: None
        self.failures = []

    def advance(self):
        with self._runtime.database.transaction(write=False) as db:
            stopped = read_stopped(db, self._batch.session_ids)
        facts = [find_facts(s, self._digests.reader.read(s.frames, self._runtime.blobs)) for s in stopped]
        tables = build_tables(self._batch, facts)
        self.files = {kind: [table] for kind, table in tables.items() if facts}
        self.rows = [f.row for f in facts]
        self.steps = {f.row.id: f.steps for f in facts}
        self.event_count = sum(len(f.events) for f in facts)
        self.frame_count = sum(len(f.frames) for f in facts)
        return True
