"""Contract §1, §3, §5, §9, row by row: malformed requests, dataset columns, Dagster launches, starts."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory

import dagster as dg
import polars as pl
import pytest

from api.app import create_app
from pipelines.dataset_checks import dataset_checks
from pipelines.dataset_partitions import PARTITIONS
from pipelines.exports import datasets, export_datasets
from pipelines.resources import RecorderResource
from recorder.exports.runner.run import run_export
from recorder.row_digests import (
    EventKey,
    RowKind,
    SessionRows,
    compute_events_digest,
    compute_frames_digest,
    row_set_sha256,
)
from tests.support.completed_work import sealed_session
from tests.support.dataset_readers import ROW_FORMATS, Row, rows_in, samples_in
from tests.support.deployment_processes import start_up
from tests.support.export_runs import manifest_of
from tests.support.factories import Caller, event, frame
from tests.support.http_exports import BODY
from tests.support.http_service import RunningService, serving
from tests.support.malformed_requests import CASES, assert_complete, send
from tests.support.sealed_sessions import accept_stores, make_settings
from tests.support.sealing import seal_all
from tests.support.specification_checks import Rows

ROWS = Rows()


@pytest.mark.parametrize("name", ROWS)
def test_choice(caller: Caller, name: str) -> None:
    ROWS[name](caller)


@ROWS.row("bytes that are no request, or hardly one, are answered with the headers and a problem")
def check_bytes_that_are_no_request_are_answered_with_the_headers(caller: Caller) -> None:
    settings = caller.service.runtime.settings
    with TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "secret").write_bytes(settings.secret)
        second = make_settings(folder, database_url=settings.database_url, allowed_hosts=())
        app = create_app(accept_stores(second))
        with serving(app) as port:
            running = RunningService(f"http://127.0.0.1:{port}", caller.key.key)
            for case, (raw, statuses, code) in CASES.items():
                answers = send(running, raw)
                assert [status for status, _, _ in answers] == statuses, case
                for answer in answers:
                    assert_complete(answer)
                assert not code or json.loads(answers[-1][2])["code"] == code, case


def seal_bound_events(caller: Caller) -> dict[str, tuple[str | None, int | None, bool]]:
    """Seal a session of two frames; return frame id, number of the frame and kind of each event's row."""
    session_id = caller.make_session()
    caller.add_frames(session_id, frame(100, id="frm_first"), frame(200, 1, id="frm_second"))
    items = (
        event(50, "click", id="evt_before"),
        event(150, "click", id="evt_unnamed"),
        event(250, "pointer_move", id="evt_moved"),
        event(260, "fill", id="evt_named", frame_id="frm_first"),
    )
    assert caller.add_events(session_id, *items).status_code == 202
    assert caller.post(f"/v1/sessions/{session_id}/stop").status_code == 200
    seal_all(caller.service.runtime)
    return {
        "evt_before": (None, None, True),
        "evt_unnamed": ("frm_first", 0, True),
        "evt_moved": ("frm_second", 1, False),
        "evt_named": ("frm_first", 0, True),
    }


def export_bound_events(caller: Caller, format: str) -> Path:
    """Return the folder of an export of these events."""
    runtime, body = caller.service.runtime, {**BODY, "format": format, "frame_sampling": {"mode": "all"}}
    export_id: str = caller.post("/v1/exports", body).json()["id"]
    run_export(runtime, export_id, owner="tests")
    assert caller.get(f"/v1/exports/{export_id}").json()["status"] == "completed"
    return Path(runtime.settings.export_url) / caller.key.workspace_id / export_id


def read_binding(row: Row) -> tuple[str | None, int | None, bool]:
    """Return the members of a row that say to which frame its event is bound, and whether it is an action."""
    return row["bound_frame_id"], row["frame_seq"], row["is_action"]


@ROWS.row("rows of events have bound_frame_id, frame_seq and is_action; frame_id stays as it was sent")
def check_rows_of_events_have_bound_frame_id_frame_seq_and(caller: Caller) -> None:
    expected = seal_bound_events(caller)
    for format in ROW_FORMATS:
        rows = rows_in(export_bound_events(caller, format), "events")
        assert {row["event_id"]: read_binding(row) for row in rows} == expected, format
        sent = {row["event_id"]: row["frame_id"] for row in rows}
        assert sent == dict.fromkeys(expected) | {"evt_named": "frm_first"}


@ROWS.row("events inside WebDataset samples have bound_frame_id, frame_seq and is_action too")
def check_events_inside_webdataset_samples_have_them_too(caller: Caller) -> None:
    expected = seal_bound_events(caller)
    del expected["evt_before"]  # no frame, no sample
    samples = samples_in(export_bound_events(caller, "webdataset"))
    events = [item for sample in samples for item in json.loads(sample["events.json"])]
    assert {item["event_id"]: read_binding(item) for item in events} == expected
    for sample in samples:
        shown = json.loads(sample["json"])
        bound = {item["bound_frame_id"] for item in json.loads(sample["events.json"])}
        assert bound == {shown["frame_id"]}


@ROWS.row("bound_frame_id, frame_seq and is_action are outside the digest of rows")
def check_bound_frame_id_frame_seq_and_is_action_are_outside_the(caller: Caller) -> None:
    seal_bound_events(caller)
    folder = export_bound_events(caller, "parquet")
    events, frames = (rows_in(folder, kind) for kind in ("events", "frames"))
    session_id = str(events[0]["session_id"])
    keys = [
        EventKey(
            *(row["event_id"], row["t_ms"], round(row["ts"].timestamp() * 1_000_000), row["type"]),
            *(row["frame_id"], row["payload"]),
        )
        for row in events
    ]
    digests = (
        compute_events_digest(keys),
        compute_frames_digest([(row["frame_id"], row["sha256"]) for row in frames]),
    )
    kinds: tuple[RowKind, RowKind] = ("events", "frames")
    rows = [
        SessionRows(kind, session_id, len(rows_of_kind), digest)
        for kind, rows_of_kind, digest in zip(kinds, (events, frames), digests, strict=True)
    ]
    assert manifest_of(folder)["row_set_sha256"] == row_set_sha256(pl.DataFrame(rows, orient="row"))


@ROWS.row("an export launched in Dagster for an unregistered partition registers the partition")
def check_an_export_launched_in_dagster_for_an_unregistered(caller: Caller) -> None:
    sealed_session(caller)
    settings = caller.service.runtime.settings
    job = dg.Definitions(
        assets=[datasets],
        asset_checks=[dataset_checks],
        jobs=[export_datasets],
        resources={"recorder": RecorderResource(data_dir=str(settings.data_dir))},
    ).resolve_job_def(export_datasets.name)
    config = {"workspace": caller.key.workspace_id, "workflow": ["checkout"]}
    with pytest.MonkeyPatch.context() as variables, dg.DagsterInstance.ephemeral() as instance:
        variables.setenv("RECORDER_DATABASE_URL", settings.database_url)
        # As the launchpad does it: the tag alone names the partition.
        result = job.execute_in_process(
            instance=instance,
            run_config={"ops": {"datasets": {"config": config}}},
            tags={"dagster/partition": "first one"},
        )
        assert result.success
        assert instance.get_dynamic_partitions(PARTITIONS.name) == ["first one"]
        assert instance.get_materialized_partitions(dg.AssetKey("datasets")) == {"first one"}
    (export,) = caller.get("/v1/exports").json()["data"]
    assert (export["status"], export["tag"]) == ("completed", "first one")


@ROWS.row("a start in a foreign region, or with a wrong setting, is one sentence and exit code 1")
def check_a_start_in_a_foreign_region_or_with_a_wrong_setting_is(caller: Caller) -> None:
    settings = caller.service.runtime.settings
    for variable, value, sentence in (
        ("RECORDER_REGION", "eu", "belongs to the region us, and RECORDER_REGION is eu"),
        ("RECORDER_LOG_LEVEL", "loud", "RECORDER_LOG_LEVEL takes one of"),
    ):
        with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as variables:
            variables.setenv("RECORDER_DATABASE_URL", settings.database_url)
            variables.setenv(variable, value)
            options = ("--port", "0", "--no-dagster")
            with start_up(Path(folder) / "data", *options, folder=Path(folder)) as process:
                _, said = process.communicate(timeout=60)
        assert process.returncode == 1 and sentence in said, said
        assert len(said.splitlines()) == 1 and "Traceback" not in said, said
