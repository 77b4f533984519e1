"""Erasure of many persons: a search finds each of them in every store before, and in none after.

`RECORDER_FAULT_SUBJECTS` is the number of persons of each kind on each engine, and of others whose data stay.
Files are read raw and unpacked, columns and archives decoded. On PostgreSQL the rewrite of
tables is part of it.
"""

import hashlib
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import polars as pl
import psycopg
import pytest

from recorder.exports.runner.run import run_export
from recorder.exports.verify import verify_manifest
from recorder.governance.retention import run_retention
from recorder.masking.detectors import compute_token_digest, derive_masking_key
from recorder.models.export import ExportRow
from recorder.models.tables import METADATA
from recorder.runtime import Runtime
from recorder.storage.lake_schemas import LAYOUTS
from recorder.tenant import Tenant
from tests.governance.test_erasure import ADDRESS, finish_erasures
from tests.support.completed_work import patch
from tests.support.export_runs import folder_of, hashes_of
from tests.support.factories import Caller
from tests.support.masking import set_masking
from tests.support.purges import Canary, new_word, recorded_canary
from tests.support.recorded_sessions import session_row
from tests.support.sealing import seal_all
from tests.support.service_fixtures import caller, service
from tests.support.stored_content import places_of_words, stored_places, texts_of_file

__all__ = ["caller", "service"]

SUBJECTS = int(os.environ.get("RECORDER_FAULT_SUBJECTS", "2"))  # noqa: TID251
FORMATS = ("parquet", "arrow", "jsonl", "webdataset")
_DAYS = 10
_PATTERN = {"name": "who", "pattern": "canary[a-z]{12}", "replacement": "[who]"}


@dataclass(frozen=True)
class Recorded:
    """Sessions of a group of persons, by what became of them."""

    archived: list[Canary]
    sealed: list[Canary]
    masked: list[Canary]
    recording: list[Canary]
    created: list[Canary]

    @property
    def canaries(self) -> list[Canary]:
        """All sessions."""
        return [*self.archived, *self.sealed, *self.masked, *self.recording, *self.created]


def test_an_erasure_of_many_persons_leaves_no_byte_of_them(
    caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A few sessions make many files, so that some stay as they are.
    monkeypatch.setattr("recorder.exports.planning.plan.SHARD_BYTES", 2_000)
    runtime = caller.service.runtime
    gone, kept = record_groups(caller)
    exports = write_exports(caller)
    require_found(caller, gone, exports)
    require_found(caller, kept, exports)
    stores = list_stores(find_words(caller, kept))
    before = hash_sessions(runtime, caller, kept.canaries)
    files = {row.id: hashes_of(folder_of(runtime, row)) for row in exports}

    erasures = [
        caller.post(ADDRESS, {"subject": canary.word, "scope": "all"}).json() for canary in gone.canaries
    ]
    finish_erasures(caller)

    assert find_words(caller, gone) == {}
    assert stores <= list_stores(find_words(caller, kept))
    assert hash_sessions(runtime, caller, kept.canaries) == before
    for erasure in erasures:
        ended = caller.get(f"{ADDRESS}/{erasure['id']}").json()
        assert (ended["status"], ended["counts"]["sessions"]) == ("completed", 1)
    same = changed = 0
    for row in exports:
        folder = folder_of(runtime, row)
        assert verify_manifest(folder).is_valid, verify_manifest(folder).problems
        after = hashes_of(folder)
        same += sum(after.get(path) == digest for path, digest in files[row.id].items())
        changed += sum(after.get(path) != digest for path, digest in files[row.id].items())
    assert same and changed, "the files of the exports do not tell changed ones from others"
    print(
        f"{len(erasures)} persons erased, {len(before)} hashes alike; "
        f"{changed} files written again, {same} as they were"
    )


def record_groups(caller: Caller) -> tuple[Recorded, Recorded]:
    """Record the persons to erase and as many others; half of the sealed sessions are archived."""
    patch(caller, "/v1/workspaces/current", {"retention": {"frames_days": _DAYS}})
    set_masking(caller, {"patterns": [_PATTERN]}, workflow="masked")
    archived = [[recorded_canary(caller) for _ in range(SUBJECTS)] for _ in range(2)]
    sealed_at = session_row(caller.service.runtime, archived[1][-1].session_id).sealed_at
    assert sealed_at is not None
    at = sealed_at + timedelta(days=_DAYS, minutes=1)
    run_retention(caller.service.runtime, "tests", at=at, workspace_id=caller.key.workspace_id)
    gone, kept = (
        Recorded(
            archived=of_group,
            sealed=[recorded_canary(caller) for _ in range(SUBJECTS)],
            masked=[recorded_canary(caller, workflow="masked") for _ in range(SUBJECTS)],
            recording=[recorded_canary(caller, is_stopped=False, is_sealed=False)],
            created=[record_created(caller)],
        )
        for of_group in archived
    )
    seal_all(caller.service.runtime)
    return gone, kept


def record_created(caller: Caller) -> Canary:
    """Create a session that is never started."""
    word = new_word()
    actor = {"id": word, "kind": "human"}
    return Canary(
        caller.make_session(status="created", actor=actor, metadata={"deep": [{"who": word}]}), word
    )


def write_exports(caller: Caller) -> list[ExportRow]:
    """Write exports in four formats, one that takes files of another over, and one of masked sessions."""
    requests = [("checkout", name) for name in (*FORMATS, "parquet")] + [("masked", "parquet")]
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


def words_of(caller: Caller, canary: Canary) -> tuple[str, str]:
    """Return the word of a session, and the digits of the token that masks it."""
    key = derive_masking_key(caller.service.runtime.settings.secret, caller.key.workspace_id)
    return canary.word, compute_token_digest(key, canary.word)


def tenant_of(caller: Caller) -> Tenant:
    """Return the workspace and mode of a caller."""
    return Tenant(caller.key.workspace_id, "live")


def find_words(caller: Caller, group: Recorded) -> dict[str, set[str]]:
    """Return the places of each word and token of a group in all stores."""
    words = [word for canary in group.canaries for word in words_of(caller, canary)]
    runtime = caller.service.runtime
    return places_of_words((*stored_places(runtime), *pages_of_tables(runtime)), "|".join(words))


def list_stores(places_by_word: dict[str, set[str]]) -> set[tuple[str, str]]:
    """Return the pairs of word and store; a page of SQLite may move from its log to its file."""
    return {
        (word, path.partition("/")[0].removesuffix("-wal"))
        for word, places in places_by_word.items()
        for path in places
    }


def pages_of_tables(runtime: Runtime) -> Iterator[tuple[str, str]]:
    """Yield the pages of the tables of PostgreSQL, without its log."""
    if runtime.database.is_sqlite:
        return
    with closing(psycopg.connect(runtime.database.url, autocommit=True)) as connection:
        connection.execute("CHECKPOINT")
        row = connection.execute(
            "SELECT current_setting('data_directory'), oid FROM pg_database WHERE datname = %s",
            (runtime.database.url.rpartition("/")[2],),
        ).fetchone()
        assert row is not None
    for path in (Path(row[0]) / "base" / str(row[1])).iterdir():
        yield from (("pages", text) for text in texts_of_file(path))


def require_found(caller: Caller, group: Recorded, exports: list[ExportRow]) -> None:
    """Require that the search finds each person of a group wherever their data are."""
    runtime, places_by_word = caller.service.runtime, find_words(caller, group)
    folders = [str(folder_of(runtime, row).relative_to(runtime.settings.data_dir)) for row in exports]
    pages = ["recorder.db"] if runtime.database.is_sqlite else ["pages"]
    hot, rows = ["blobs/frames/", *pages], ["table sessions", "table session_metadata", "table outbox"]
    tenant = tenant_of(caller)
    lake = [f"lake/{tenant.workspace_id}/{tenant.mode}/{kind}/" for kind in ("events", "frames", "steps")]
    wanted = (
        (group.archived, ["cold/frames/", *lake, *folders[:5], *rows, *pages]),
        (group.sealed, [*hot, *lake, *folders[:5], *rows]),
        (group.masked, [*hot, *lake[:1], folders[5], *rows]),
        (group.recording, [*hot, *rows, "table event_batches", "table frames", "table tags"]),
        (group.created, [*pages, *rows]),
    )
    for canaries, expected in wanted:
        for canary in canaries:
            places = set().union(*(places_by_word.get(word, set()) for word in words_of(caller, canary)))
            for start in expected:
                assert any(path.startswith(start) for path in places), (start, sorted(places))
    for canary in group.masked:
        word, digits = words_of(caller, canary)
        assert not any(path.startswith("table session") for path in places_by_word[word])
        assert {"table sessions", "table session_metadata"} <= places_by_word[digits]


def hash_sessions(runtime: Runtime, caller: Caller, canaries: list[Canary]) -> dict[str, str]:
    """Return the digests of everything that belongs to sessions: rows, objects, rows of the lake."""
    ids = {canary.session_id for canary in canaries}
    contents: dict[str, list[Any]] = {}
    with runtime.database.transaction(write=False) as db:
        for table in METADATA.sorted_tables:
            names = {"sessions": "id", "outbox": "subject_id"}
            column = table.columns.get(names.get(str(table.name), "session_id"))
            if column is not None:
                rows = db.connection().execute(table.select().where(column.in_(ids)))
                contents[f"table {table.name}"] = sorted(map(repr, rows))
    for folder in (Path(runtime.blobs.url), Path(runtime.settings.cold_url)):
        for path in sorted(folder.rglob("*")):
            if path.is_file() and ids & set(path.parts):
                contents[str(path)] = [path.read_bytes()]
    tenant = tenant_of(caller)
    for kind in LAYOUTS:
        rows_of_lake = runtime.lake.scan(kind, tenant).filter(pl.col("session_id").is_in(list(ids))).collect()
        contents[f"lake {kind}"] = sorted(map(repr, rows_of_lake.rows()))
    sizes = Counter({name: len(content) for name, content in contents.items()})
    assert sizes["table sessions"] == sizes["lake sessions"] + 2 == len(ids)
    return {name: hashlib.sha256(repr(content).encode()).hexdigest() for name, content in contents.items()}
