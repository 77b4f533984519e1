"""Erasure of many persons: a search finds each of them in every store before, and in none after.

`RECORDER_FAULT_SUBJECTS` is the number of persons of each kind on each engine, and of others whose data stay.
Files are read raw and unpacked, columns and archives decoded. On PostgreSQL the rewrite of tables is part of
it, and the whole data directory is read without `pg_wal`. The search before an erasure must find them at each
place of the product's own list of holdings, but for those in `NOT_SEARCHED`.
"""

import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path

import psycopg
import pytest

from pipelines.dagster_record_job import remove_dagster_texts
from recorder.exports.verify import verify_manifest
from recorder.governance import content_inventory
from recorder.runtime import Runtime
from recorder.tenant import Tenant
from tests.governance.test_erasure import ADDRESS, finish_erasures
from tests.support.content_snapshots import ContentSnapshot, take_snapshot
from tests.support.erasure_canaries import (
    People,
    Person,
    dagster_deployment,
    list_words,
    notified,
    record_people,
    show_in_dagster,
    write_exports,
)
from tests.support.export_runs import folder_of
from tests.support.factories import Caller, Service, running_app
from tests.support.service_fixtures import caller
from tests.support.stored_content import locations_of_words, stored_texts_by_location, texts_of_file
from tests.support.webhook_receiver import Receiver

__all__ = ["caller"]

_SEALED = ("archived", "sealed", "masked", "replayed", "named")
_ALL = (*_SEALED, "recording", "created")
#: Holdings of the product's list that are searched: the groups of which each person is found there by the
#: person's word, or by its token where the session is masked.
FOUND_BY_WORD = {
    "sessions": ("archived", "sealed", "masked", "replayed", "recording", "created"),
    "session_metadata": ("archived", "sealed", "masked", "named", "recording", "created"),
    "event_batches": ("recording",),
    "event_keys": ("recording",),
    "batch_keys": ("recording",),
    "frames": ("recording",),
    "tags": ("archived", "sealed", "masked", "recording"),
    "seal_portions": ("recording",),
    "outbox": ("archived", "sealed", "masked", "replayed", "recording", "created"),
    "webhook_deliveries": ("archived", "sealed", "masked", "replayed", "named", "recording", "created"),
    "idempotency_keys": ("sealed", "masked", "recording"),
    "replays": ("replayed",),
    "replay_steps": ("replayed",),
    "graph_labels": ("archived", "sealed", "replayed", "named"),
    "drift_alarms": ("named",),
    "lake events": _SEALED,
    "lake frames": ("archived", "sealed", "replayed"),
    "lake steps": _SEALED,
    "frames/": ("archived", "sealed", "masked", "replayed", "recording"),
    "sealing/": ("recording",),
    "hosted exports": ("archived", "sealed", "masked"),
    "local exports": ("replayed",),
    "Dagster's records": ("replayed",),
    "SQLite's write-ahead log": _ALL,
    "SQLite's free pages": _ALL,
    "SQLite's page gaps": _ALL,
    "PostgreSQL's dead rows": _ALL,
}
#: The same by the id of a session, where nothing else is kept.
FOUND_BY_ID = {
    "session_statuses": _ALL,
    "sweeps": ("recording",),
    "recoveries": ("replayed",),
    "seal_batches": _SEALED,
    "graph_session_paths": _SEALED,
    "export_sessions": ("archived", "sealed", "masked", "replayed"),
    "lake sessions": _SEALED,
    "exports/": ("archived", "sealed", "masked", "replayed"),
}
#: Holdings that are not searched, with the reason.
NOT_SEARCHED = {
    "holds": "an erasure leaves a held session alone; tests/governance/test_erasure.py",
    "purges": "an erasure makes them itself",
    "erasures": "an erasure makes them itself, with the subject encrypted",
    "erasure_nodes": "an erasure makes them itself",
    "graph_nodes": "kind of the action, and hashes",
    "graph_micro_states": "hashes",
    "graph_traces": "hashes",
    "exports": "ids of sessions that a client excluded stay; no export here excludes one",
    "export_recipes": "ids of sessions that a client excluded stay; no recipe here excludes one",
    "audit_entries": "ids and settings",
    "health/": "probes without content",
    "exports elsewhere": "the client's; counted, tests/governance/test_erasure.py",
    "webhook receivers": "the client's; the receiver of this test keeps what it got, and it is counted",
    "PostgreSQL's WAL and replicas": "the operator's",
    "service logs": "written by processes of a service; tests/test_logs.py",
    "temporary files": "left by killed processes, removed at the next start; tests/faults",
    "caches of graphs in processes": "memory; tests/memory",
    "backups": "the operator's; tests/governance/backup",
}
#: Prefixes of locations by the holding, if it is no table; those of PostgreSQL's files are `pages`.
LOCATIONS = {
    "frames/": ("blobs/frames/", "cold/frames/"),
    "sealing/": ("blobs/sealing/",),
    "exports/": ("blobs/exports/",),
    "hosted exports": ("exports/",),
    "local exports": ("local/",),
    "Dagster's records": ("dagster/history/",),
    "SQLite's write-ahead log": ("recorder.db", "pages"),
    "SQLite's free pages": ("recorder.db", "pages"),
    "SQLite's page gaps": ("recorder.db", "pages"),
    "PostgreSQL's dead rows": ("recorder.db", "pages"),
}
#: Columns of rows that name no erased session and yet change, with the reason.
CHANGING_COLUMNS = {
    ("audit_heads", ("number", "hash")): "the newest entry",
    ("workflows", ("session_count",)): "a session is one less",
    ("leases", ("owner", "fence", "expires_ms")): "work on the erasure",
    (
        "exports",
        (
            "actions",
            "frames",
            "lineage",
            "manifest_sha256",
            "plan_key",
            "plan_sha256",
            "revision",
            "row_set_sha256",
            "rows",
            "shard_size_bytes",
            "shards",
            "shards_done",
            "shards_total",
        ),
    ): "totals of a dataset without the erased sessions, and digests of its plan and manifest",
}
#: Tables that get rows by an erasure, with the reason.
GROWING_TABLES = {
    "audit_entries": "the request, the purges and the end of each erasure",
    "graph_session_paths": "anonymous rows, which keep the counts of the graph",
    "graph_versions": "so that other processes load the graph again",
    "leases": "work on the erasure",
}
#: Files that change although they name no erased session, with the reason.
CHANGING_FILES = {
    "manifest.json": "totals, digests of files, tombstones",
    "README.md": "the same as text",
}


@pytest.fixture(scope="module")
def service(database_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Yield the application on either engine; PostgreSQL packs long values so that words stay readable."""
    if not database_url.startswith("sqlite"):
        with closing(psycopg.connect(database_url, autocommit=True)) as connection:
            name = database_url.rpartition("/")[2]
            connection.execute(f"ALTER DATABASE {name} SET default_toast_compression = 'lz4'")
    with running_app(tmp_path_factory.mktemp("service"), database_url) as running:
        yield running


def test_every_holding_is_searched_or_left_out_with_a_reason() -> None:
    inventory = content_inventory
    listed = {holding.name for holding in (*inventory.TABLES, *inventory.OBJECTS, *inventory.OTHER_HOLDINGS)}
    listed |= {f"lake {holding.name}" for holding in inventory.LAKE}
    searched = FOUND_BY_WORD.keys() | FOUND_BY_ID.keys()
    assert searched & NOT_SEARCHED.keys() == set()
    assert searched | NOT_SEARCHED.keys() == listed


def test_an_erasure_of_many_persons_leaves_no_byte_of_them(
    caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A few sessions make many files, so that some stay as they are.
    monkeypatch.setattr("recorder.exports.planning.plan.SHARD_BYTES", 2_000)
    runtime = caller.service.runtime
    tenant = Tenant(caller.key.workspace_id, "live")
    with notified(caller) as receiver:
        gone, kept = record_people(caller)
    exports = write_exports(caller)
    with dagster_deployment(caller) as deployment:
        for people in (gone, kept):
            exports += show_in_dagster(deployment, people)
        locations_before = find_words(caller, gone, kept)
        for people in (gone, kept):
            require_found(caller, people, locations_before)
        sent = [count_received(receiver, person) for person in gone.everyone]
        erased = join_words(caller, gone)
        before = take_snapshot(runtime, tenant, erased)

        age_lake_logs(runtime)
        erasures = [
            caller.post(ADDRESS, {"subject": person.word, "scope": "all"}).json() for person in gone.everyone
        ]
        finish_erasures(
            caller, remove_texts=partial(remove_dagster_texts, runtime, deployment.instance, "tests")
        )

        left = find_words(caller, gone, kept)
    assert {word: locations for word, locations in left.items() if re.fullmatch(erased, word)} == {}
    # Dagster keeps no texts of runs from before an erasure, whomever they quote.
    stores = {
        pair
        for pair in list_stores(locations_before)
        if not re.fullmatch(erased, pair[0]) and pair[1] != "dagster"
    }
    assert stores <= list_stores(left)
    for erasure, person, deliveries in zip(erasures, gone.everyone, sent, strict=True):
        ended = caller.get(f"{ADDRESS}/{erasure['id']}").json()
        counts = ended["counts"]
        assert (ended["status"], counts["sessions"]) == ("completed", len(person.session_ids))
        assert counts["deliveries"] == deliveries > 0
    after = take_snapshot(runtime, tenant, erased)
    require_others_unchanged(before, after)
    for row in exports:
        report = verify_manifest(folder_of(runtime, row))
        assert report.is_valid, report.problems
    rewritten = sum(file.is_named for file in before.files.values())
    print(
        f"{len(erasures)} persons erased; {rewritten} files with content of them rewritten or deleted, "
        f"{len(before.files) - rewritten} files, {len(before.rows)} rows and "
        f"{sum(map(len, before.records.values()))} records of others unchanged"
    )


def age_lake_logs(runtime: Runtime) -> None:
    """Set the times of the lake's log entries an hour back: younger ones stay for readers under way."""
    an_hour_ago = time.time() - 3_600
    for path in Path(runtime.settings.lake_url).rglob("_delta_log/*"):
        os.utime(path, (an_hour_ago, an_hour_ago))


def find_words(caller: Caller, *groups: People) -> dict[str, set[str]]:
    """Return the locations of each word, token and session id of persons in all stores."""
    runtime = caller.service.runtime
    texts = (*stored_texts_by_location(runtime), *pages_of_tables(runtime))
    return locations_of_words(texts, join_words(caller, *groups))


def list_stores(locations_by_word: dict[str, set[str]]) -> set[tuple[str, str]]:
    """Return the pairs of word and store; a page of SQLite may move from its log to its file."""
    return {
        (word, path.partition("/")[0].removesuffix("-wal"))
        for word, locations in locations_by_word.items()
        for path in locations
    }


def pages_of_tables(runtime: Runtime) -> Iterator[tuple[str, str]]:
    """Yield the files of PostgreSQL's data directory, without its write-ahead log."""
    if runtime.database.is_sqlite:
        return
    with closing(psycopg.connect(runtime.database.url, autocommit=True)) as connection:
        connection.execute("CHECKPOINT")
        ((folder,),) = connection.execute("SHOW data_directory").fetchall()
    for path in sorted(Path(folder).rglob("*")):
        if path.is_file() and "pg_wal" not in path.parts:
            yield from ((f"pages/{path.relative_to(folder)}", text) for text in texts_of_file(path))


def require_found(caller: Caller, people: People, locations_by_word: Mapping[str, set[str]]) -> None:
    """Require that the search finds each person in every holding of the inventory that can hold them."""
    for found_by, is_word in ((FOUND_BY_WORD, True), (FOUND_BY_ID, False)):
        for holding, groups in found_by.items():
            starts = LOCATIONS.get(holding) or (name_location(caller, holding),)
            for person in (person for group in groups for person in getattr(people, group)):
                words = list_words(caller, person) if is_word else person.session_ids
                locations = set().union(*(locations_by_word.get(word, set()) for word in words))
                assert any(path.startswith(starts) for path in locations), (
                    holding,
                    person,
                    sorted(locations),
                )


def name_location(caller: Caller, holding: str) -> str:
    """Return the location of a table's rows, or of a lake table's files."""
    kind = holding.removeprefix("lake ")
    tenant = Tenant(caller.key.workspace_id, "live")
    return f"table {holding}" if kind == holding else f"lake/{tenant.workspace_id}/{tenant.mode}/{kind}/"


def join_words(caller: Caller, *groups: People) -> str:
    """Return the regular expression of all words of persons."""
    everyone = [person for people in groups for person in people.everyone]
    return "|".join(word for person in everyone for word in list_words(caller, person))


def count_received(receiver: Receiver, person: Person) -> int:
    """Return how many requests a receiver got about the sessions of a person."""
    ids = [f'"{session_id}"'.encode() for session_id in person.session_ids]
    return sum(any(session_id in request.body for session_id in ids) for request in receiver.received)


def require_others_unchanged(before: ContentSnapshot, after: ContentSnapshot) -> None:
    """Require that an erasure changed nothing but what the lists of this module name."""
    changing = {(table, name) for table, names in CHANGING_COLUMNS for name in names}
    named_files = [path for path, file in before.files.items() if file.is_named]
    changed = []
    for (table, key), columns in before.rows.items():
        if table == "export_shards" and is_of_file(columns, named_files):
            continue
        now = after.rows.get((table, key), {})
        differing = {name for name, value in columns.items() if now.get(name) != value}
        changed += [(table, name, key) for name in differing if (table, name) not in changing]
    assert changed == []
    new = {table for table, _ in after.rows.keys() - before.rows.keys() - before.named_rows}
    assert new - GROWING_TABLES.keys() == set()
    for path, file in before.files.items():
        now_file = after.files.get(path)
        if file.is_named:
            assert now_file is None or (now_file.digest != file.digest and not now_file.is_named), path
        elif Path(path).name not in CHANGING_FILES:
            assert now_file == file, path
    assert before.records == after.records


def is_of_file(shard: Mapping[str, str], paths: Sequence[str]) -> bool:
    """Return whether the row of a shard is that of one of some files."""
    ending = "/".join(shard[name].strip("'") for name in ("export_id", "path"))
    return any(path.endswith(ending) for path in paths)
