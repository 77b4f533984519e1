"""A dataset is compared with the lake, over rows that are read again from both. docs/operations.md."""

import hashlib
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import orjson
import polars as pl
import pytest

from recorder import clock
from recorder.exports.runner.run import run_export
from recorder.exports.verify.lake_check import LakeReport, compare_export_with_lake
from recorder.exports.verify.lake_selection import select_lake_check_sessions
from recorder.exports.verify.manifest_check import ANOTHER_MANIFEST
from recorder.models.export import ExportRow
from recorder.models.session import SessionRow
from recorder.runtime import Runtime
from recorder.storage.lake import Lake
from recorder.storage.lake_maintenance import LakeTimes
from recorder.storage.lake_schemas import LAYOUTS
from tests.support.export_runs import ask, folder_of, manifest_of
from tests.support.sealed_sessions import START, Recording, delete, make_runtime, seal

PLAIN = Recording(outcome=None, actor_kind=None)


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runtime]:
    """Yield sessions that differ in everything that a filter may ask for."""
    opened = make_runtime(tmp_path_factory.mktemp("deployment"))
    recordings = [
        Recording(
            frames=[0, 450, 600],
            tags=["gold"],
            duration_ms=100 * number,
            started_at=START + timedelta(hours=number),
        )
        for number in range(6)
    ]
    recordings += [
        PLAIN,
        Recording(workflow="login", frames=[0], is_import=True),
    ]
    seal(opened, recordings)
    yield opened
    opened.close()


def completed(runtime: Runtime, **body: Any) -> ExportRow:
    """Return a dataset that the test may damage."""
    return run_export(runtime, ask(runtime, **body).id, owner="test")


def check(runtime: Runtime, row: ExportRow, **options: Any) -> LakeReport:
    return compare_export_with_lake(runtime, row, seed=1, **options)


def events_file(runtime: Runtime, row: ExportRow) -> Path:
    """Return the only file of events."""
    (path,) = folder_of(runtime, row).rglob("events-*.parquet")
    return path


def rewrite(runtime: Runtime, row: ExportRow, change: Callable[[pl.DataFrame], pl.DataFrame]) -> None:
    """Change the events of a dataset, and let manifest and row say that this is right."""
    path = events_file(runtime, row)
    rows = change(pl.read_parquet(path, hive_partitioning=False))
    rows.write_parquet(path)
    manifest = manifest_of(folder_of(runtime, row))
    for entry in manifest["shards"]:
        if entry["kind"] == "events":
            entry["rows"], entry["sessions"] = rows.height, rows["session_id"].n_unique()
            entry["size_bytes"] = path.stat().st_size
            entry["sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
    text = orjson.dumps(manifest)
    (folder_of(runtime, row) / "manifest.json").write_bytes(text)
    row.manifest_sha256 = hashlib.sha256(text).hexdigest()


@pytest.mark.parametrize("format", ["parquet", "webdataset", "jsonl", "arrow"])
def test_a_sound_dataset_holds_what_the_lake_holds(runtime: Runtime, format: str) -> None:
    row = completed(runtime, format=format, workflow=["login", "checkout"], frame_sampling={"mode": "all"})
    report = check(runtime, row)
    assert (report.problems, report.sessions, report.files_hashed) == ([], 8, report.files)
    rows = {"login": 1, "checkout": 18} if format == "webdataset" else {"login": 3, "checkout": 21}
    assert report.rows == rows


@pytest.mark.parametrize(
    ("filters", "sessions"),
    [
        ({"outcome": "success"}, 6),
        ({"actor.kind": "human"}, 6),
        ({"tag": "gold"}, 6),
        ({"min_duration_ms": 200, "max_duration_ms": 400}, 3),
        ({"since": "2026-05-01T10:00:00Z"}, 4),
        ({"until": "2026-05-01T10:00:00Z", "outcome": "success"}, 2),
    ],
)
def test_every_filter_is_applied_anew(runtime: Runtime, filters: dict[str, Any], sessions: int) -> None:
    report = check(runtime, completed(runtime, filter=filters, frame_sampling={"mode": "keyframes_only"}))
    assert (report.problems, report.sessions) == ([], sessions)


def test_excluded_sessions_are_left_out_anew(runtime: Runtime) -> None:
    report = check(runtime, completed(runtime, filter={"exclude_session_ids": [PLAIN.session_id]}))
    assert (report.problems, report.sessions) == ([], 6)


def test_less_replayable_sessions_are_left_out_anew(tmp_path: Path) -> None:
    runtime = make_runtime(tmp_path)
    ids = seal(runtime, [Recording() for _ in range(3)])
    row = completed(runtime)
    with runtime.database.transaction(write=True) as db:
        for session_id, replayability in zip(ids, (0.9, 0.2, None), strict=True):
            db.get_one(SessionRow, session_id).replayability = replayability
    spec = row.spec | {"filter": row.spec["filter"] | {"min_replayability": 0.5}}
    assert select_lake_check_sessions(runtime, row, spec) == ({ids[0]}, set())
    runtime.close()


def test_a_dataset_without_rows_is_sound(runtime: Runtime) -> None:
    assert check(runtime, completed(runtime, filter={"outcome": "error"})).problems == []


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("payload", pl.lit("{}")),
        ("bound_frame_id", pl.lit("frm_other")),
        ("frame_seq", pl.lit(7, pl.Int64)),
        ("is_action", ~pl.col("is_action")),
    ],
)
def test_a_changed_row_is_found(runtime: Runtime, column: str, value: pl.Expr) -> None:
    row = completed(runtime)
    first = pl.int_range(pl.len()) == 0
    changed = pl.when(first).then(value).otherwise(column)
    rewrite(runtime, row, lambda rows: rows.with_columns(changed.cast(rows[column].dtype).alias(column)))
    (problem,) = check(runtime, row).problems
    assert "holds 1 sessions whose rows are not those of the lake: ses_" in problem


def test_a_dropped_session_is_found_also_where_no_file_is_hashed(runtime: Runtime) -> None:
    row = completed(runtime)
    rewrite(runtime, row, lambda rows: rows.filter(pl.col("session_id") != rows["session_id"][0]))
    report = check(runtime, row, rows_hashed=0)
    assert report.problems == [
        "events of checkout: the dataset has 18 rows, the lake has 21.",
        "events of checkout: the dataset has 6 sessions, the lake has 7.",
    ]


def test_a_dropped_file_is_found(runtime: Runtime) -> None:
    row = completed(runtime)
    events_file(runtime, row).unlink()
    (problem,) = check(runtime, row).problems
    assert problem.endswith("cannot be read.")


def test_a_spoiled_file_is_found(runtime: Runtime) -> None:
    row = completed(runtime)
    events_file(runtime, row).write_bytes(b"spoiled")
    (problem,) = check(runtime, row).problems
    assert problem.endswith("cannot be read.")


def test_a_session_that_was_not_asked_for_is_found(runtime: Runtime) -> None:
    row = completed(runtime, filter={"outcome": "success"})
    other = pl.read_parquet(events_file(runtime, completed(runtime)), hive_partitioning=False)
    rewrite(runtime, row, lambda rows: other)
    problems = check(runtime, row).problems
    assert any("holds 1 sessions that the request does not take" in problem for problem in problems)


def test_a_session_that_never_reached_the_dataset_is_found(runtime: Runtime) -> None:
    row = completed(runtime, filter={"outcome": "success"})
    for outcome, problems in (("success", 2), (None, 0)):
        with runtime.database.transaction(write=True) as db:
            db.get_one(SessionRow, PLAIN.session_id).outcome = outcome
        assert len(check(runtime, row).problems) == problems


def test_a_manifest_that_was_exchanged_is_not_followed(runtime: Runtime) -> None:
    row = completed(runtime)
    (folder_of(runtime, row) / "manifest.json").write_bytes(b'{"shards": [{"path": "/etc/passwd"}]}')
    assert check(runtime, row).problems == [ANOTHER_MANIFEST]


def test_one_seed_draws_the_same_files(tmp_path: Path) -> None:
    runtime = make_runtime(tmp_path)
    seal(runtime, [Recording(workflow=f"flow_{number}") for number in range(8)])
    row = completed(runtime, workflow=[f"flow_{number}" for number in range(8)])
    spoiled = sorted(folder_of(runtime, row).rglob("events-*.parquet"))[3]
    spoiled.write_bytes(b"spoiled")
    drawn = [
        bool(compare_export_with_lake(runtime, row, seed=seed, rows_hashed=6).problems) for seed in range(8)
    ]
    again = [
        bool(compare_export_with_lake(runtime, row, seed=seed, rows_hashed=6).problems) for seed in range(8)
    ]
    assert drawn == again and True in drawn and False in drawn
    assert compare_export_with_lake(runtime, row, rows_hashed=6).files_hashed <= 3
    runtime.close()


def test_a_session_that_was_deleted_meanwhile_may_be_there_or_not(tmp_path: Path) -> None:
    runtime = make_runtime(tmp_path)
    session_id, _ = seal(runtime, [Recording(), Recording()])
    row = completed(runtime)
    delete(runtime, session_id)
    assert check(runtime, row).problems == []
    after = completed(runtime)
    assert (check(runtime, after).problems, check(runtime, after).sessions) == ([], 1)
    runtime.close()


def test_what_was_imported_after_the_export_is_not_expected_once_the_pinned_files_are_gone(
    tmp_path: Path,
) -> None:
    runtime = make_runtime(tmp_path)
    for _ in range(2):
        seal(runtime, [Recording(frames=[0])])
    row = completed(runtime)
    seal(runtime, [Recording(frames=[0], is_import=True, sealed_at=clock.now())])
    zero = timedelta(0)
    times = LakeTimes(removed_files=zero, versions=zero, log_entries=zero, open_partitions=zero)
    lake = Lake(runtime.lake.url, compact_at_files=2, checkpoint_every=2, times=times)
    for kind in (*LAYOUTS, *LAYOUTS):
        lake.maintain(kind, row.tenant)
    assert (check(runtime, row).problems, check(runtime, row).sessions) == ([], 2)
    runtime.close()


def test_what_was_imported_while_the_export_ran_may_be_there_or_not(tmp_path: Path) -> None:
    runtime = make_runtime(tmp_path)
    plain, imported = seal(runtime, [Recording(), Recording(is_import=True)])
    row = completed(runtime)
    assert row.started_at is not None
    with runtime.database.transaction(write=True) as db:
        db.get_one(SessionRow, imported).sealed_at = row.started_at + timedelta(milliseconds=1)
    assert select_lake_check_sessions(runtime, row, manifest_of(folder_of(runtime, row))["spec"]) == (
        {plain},
        {imported},
    )
    assert check(runtime, row).problems == []
    runtime.close()
