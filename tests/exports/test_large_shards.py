"""Shards whose events are too many to hold are written in portions, with the same rows. Spec §4.3."""

import shutil
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from recorder.exports.runner.run import run_export
from recorder.exports.verify import verify_manifest
from recorder.runtime import Runtime
from recorder.storage.lake_schemas import LAYOUTS
from recorder.tenant import Tenant
from tests.support.dataset_readers import ROW_FORMATS
from tests.support.export_runs import ask, export, folder_of, hashes_of, manifest_of
from tests.support.sealed_sessions import WORKSPACE, Recording, make_runtime, seal

_EVERY_FRAME = {"mode": "all"}
#: Events of the large session, of 1 kB each.
_EVENTS = 700


@pytest.fixture
def runtime(tmp_path: Path) -> Runtime:
    """Create a deployment with small sessions around a large one, in several appends."""
    opened = make_runtime(tmp_path)
    large = Recording(
        events=[(t_ms, "click") for t_ms in range(_EVENTS)],
        frames=list(range(20, _EVENTS, 50)),
        padding=1_000,
    )
    seal(opened, [Recording(frames=[0, 400], outcome=None) for _ in range(4)])
    seal(opened, [Recording(), large, Recording(frames=[5], actor_kind=None)])
    seal(opened, [Recording(padding=5_000) for _ in range(3)])
    return opened


@pytest.fixture
def make_large(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Return a function after which a portion has a few kilobytes."""

    def lower_bounds() -> None:
        monkeypatch.setattr("recorder.exports.planning.sharding.BYTES_AT_ONCE", 10_000)
        monkeypatch.setattr("recorder.exports.planning.sharding.SHARD_BYTES", 10_000)
        monkeypatch.setattr("recorder.exports.large_sessions.SAMPLES_BYTES", 60_000)
        monkeypatch.setattr("recorder.datasets.row_values.PAYLOAD_BYTES_AT_ONCE", 100_000)

    return lower_bounds


@pytest.mark.parametrize("format", ["jsonl", "webdataset"])
def test_portions_leave_the_bytes_of_lines_and_archives(
    runtime: Runtime, make_large: Callable[[], None], format: str
) -> None:
    whole = hashes_of(export(runtime, format=format, frame_sampling=_EVERY_FRAME))
    make_large()
    elsewhere = {"kind": "local", "path": "elsewhere"}
    folder = export(runtime, format=format, frame_sampling=_EVERY_FRAME, destination=elsewhere)
    assert hashes_of(folder) == whole


@pytest.mark.parametrize("format", ["parquet", "arrow"])
def test_row_groups_of_portions_end_by_bytes_and_have_the_same_rows(
    runtime: Runtime, make_large: Callable[[], None], format: str
) -> None:
    name, read = (
        f"data/workflow=checkout/events-00000-of-00001.{format}",
        getattr(pl, f"read_{_reader(format)}"),
    )
    whole = export(runtime, format=format)
    make_large()
    portions = export(runtime, format=format, destination={"kind": "local", "path": "elsewhere"})
    assert read(portions / name).equals(read(whole / name))
    assert _schema(portions / name, format) == _schema(whole / name, format), "loaders read both together"
    groups = _count_groups(portions / name, format)
    assert _count_groups(whole / name, format) == 1 and 5 < groups < 20
    assert verify_manifest(str(portions)).problems == []


def test_where_a_row_group_ends_does_not_depend_on_the_files_of_the_lake(
    runtime: Runtime, make_large: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    make_large()
    before = {format: hashes_of(export(runtime, format=format)) for format in ROW_FORMATS}
    DeltaTable(f"{runtime.lake.url}/{WORKSPACE}/live/events").optimize.compact()
    monkeypatch.setattr("recorder.exports.planning.sharding.SHARD_BYTES", 40_000)
    elsewhere = {"kind": "local", "path": "elsewhere"}
    after = {
        format: hashes_of(export(runtime, format=format, destination=elsewhere)) for format in ROW_FORMATS
    }
    assert after == before


def test_a_sample_has_its_events_wherever_they_are_in_the_session(
    runtime: Runtime, make_large: Callable[[], None]
) -> None:
    frame_seq = pl.when(pl.col("frame_seq") > 1).then(pl.col("frame_seq") * 5 % 14).otherwise("frame_seq")
    _replace_events(runtime, lambda events: events.with_columns(frame_seq=frame_seq))
    whole = hashes_of(export(runtime, format="webdataset", frame_sampling=_EVERY_FRAME))
    make_large()
    elsewhere = {"kind": "local", "path": "elsewhere"}
    folder = export(runtime, format="webdataset", frame_sampling=_EVERY_FRAME, destination=elsewhere)
    assert hashes_of(folder) == whole


@pytest.mark.parametrize("format", ROW_FORMATS)
def test_rows_that_a_large_session_lacks_fail_the_export(
    runtime: Runtime, make_large: Callable[[], None], format: str
) -> None:
    make_large()
    _replace_events(runtime, lambda events: events.filter(pl.col("t_ms") != 650))
    row = run_export(runtime, ask(runtime, format=format).id, owner="test")
    assert row.error is not None and row.error["code"] == "rows_missing"
    assert not list(folder_of(runtime, row).glob("data/*/events-*"))


def test_a_sample_that_is_too_large_fails_its_export_alone(
    runtime: Runtime, make_large: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    make_large()
    monkeypatch.setattr("recorder.exports.large_sessions.SAMPLE_BYTES", 50_000)
    row = run_export(runtime, ask(runtime, format="webdataset").id, owner="test")
    assert row.error is not None and row.error["code"] == "sample_too_large"
    assert "exclude_session_ids" in row.error["message"]
    assert manifest_of(export(runtime))["totals"]["sessions"] == 10


def test_events_that_name_frames_all_over_the_session_are_not_read_again_and_again(
    runtime: Runtime, make_large: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    frame_seq = pl.when(pl.col("frame_seq") > 1).then(pl.int_range(pl.len()) % 14).otherwise("frame_seq")
    _replace_events(runtime, lambda events: events.with_columns(frame_seq=frame_seq.cast(pl.Int32)))
    make_large()
    monkeypatch.setattr("recorder.exports.large_sessions.MOST_READS", 2)
    row = run_export(runtime, ask(runtime, format="webdataset", frame_sampling=_EVERY_FRAME).id, owner="test")
    assert row.error is not None and row.error["code"] == "samples_scattered"
    assert manifest_of(export(runtime))["totals"]["sessions"] == 10


def _replace_events(runtime: Runtime, change: Callable[[pl.DataFrame], pl.DataFrame]) -> None:
    """Write the table of events again, as the service writes it, with other rows."""
    table = runtime.lake.stored_table("events", Tenant(WORKSPACE, "live"))
    events = change(runtime.lake.scan("events", Tenant(WORKSPACE, "live")).collect())
    shutil.rmtree(table.path)
    schema = LAYOUTS["events"].schema
    rows = events.select(schema.names).to_arrow().cast(schema)
    runtime.lake.append("events", Tenant(WORKSPACE, "live"), rows, lane="again", number=1)


def _reader(format: str) -> str:
    return "ipc" if format == "arrow" else format


def _schema(path: Path, format: str) -> pa.Schema:
    if format == "parquet":
        return pq.read_schema(path).remove_metadata()
    with pa.ipc.open_file(path) as reader:
        return reader.schema.remove_metadata()


def _count_groups(path: Path, format: str) -> int:
    if format == "parquet":
        return int(pq.read_metadata(path).num_row_groups)
    with pa.ipc.open_file(path) as reader:
        return int(reader.num_record_batches)
