"""Requests of exports: their members, and the stored export. Spec §4.3, contract §5."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlmodel import select

from recorder import clock
from recorder.audit.log import Origin
from recorder.errors import (
    DestinationNotAllowed,
    InvalidDestination,
    InvalidRange,
    InvalidTime,
    NotFound,
    RecorderError,
    TooManyIds,
    ValidationFailed,
)
from recorder.exports.requests.export_operations import create_export, find_export, list_exports
from recorder.exports.requests.export_wire_objects import export_to_wire
from recorder.exports.requests.validation import make_dataset_name
from recorder.ids import new_id
from recorder.models.export import ExportRow
from recorder.models.export_request import ExportCreate
from recorder.models.operations import OutboxRow
from recorder.runtime import Runtime
from recorder.tenant import Tenant
from tests.support.sealed_sessions import WORKSPACE, Recording, make_runtime, make_settings, seal


@pytest.fixture
def runtime(tmp_path: Path) -> Runtime:
    runtime = make_runtime(tmp_path)
    seal(runtime, [Recording(), Recording(workflow="login")])
    return runtime


def ask(runtime: Runtime, **body: Any) -> ExportRow:
    request = {"workflow": "checkout", "format": "parquet", "destination": {"kind": "signed_url"}} | body
    wanted, origin = ExportCreate.model_validate(request), Origin.operator(WORKSPACE)
    return create_export(runtime, Tenant(WORKSPACE, "live"), wanted, origin=origin)


def test_a_queued_export_shows_everything_that_was_asked_for(runtime: Runtime) -> None:
    row = ask(runtime, workflow=["login", "checkout", "login"], tag="v3", filter={"actor.kind": "human"})
    shown = export_to_wire(row, runtime.settings).model_dump(mode="json")
    assert shown["workflow"] == ["login", "checkout"]
    assert shown["filter"] == {"actor.kind": "human", "until": clock.to_iso(row.created_at)}
    assert (shown["status"], shown["manifest_url"], shown["rows"], shown["progress"]) == (
        "queued",
        None,
        None,
        {"shards_done": 0, "shards_total": None, "message": None},
    )


def test_relative_times_are_resolved_once_and_stored(runtime: Runtime) -> None:
    row = ask(runtime, filter={"since": "30d", "until": "1h"})
    resolved = row.spec["filter"]
    assert resolved["since"] == clock.to_iso(row.created_at - timedelta(days=30))
    assert resolved["until"] == clock.to_iso(row.created_at - timedelta(hours=1))


def test_queueing_tells_the_outbox_with_the_whole_object(runtime: Runtime) -> None:
    row = ask(runtime)
    with runtime.database.transaction(write=False) as db:
        event = db.exec(select(OutboxRow).where(OutboxRow.subject_id == row.id)).one()
    assert event.type == "export.queued"
    assert event.data == {"export": export_to_wire(row, runtime.settings).model_dump(mode="json")}


def test_absent_sampling_is_event_only(runtime: Runtime) -> None:
    assert ask(runtime).spec["frame_sampling"] == {
        "mode": "event_only",
        "interval_ms": None,
        "keep_action_frames": False,
    }


def test_an_interval_is_kept_only_where_it_counts(runtime: Runtime) -> None:
    every = ask(runtime, frame_sampling={"mode": "every_n_ms", "interval_ms": 250})
    keyframes = ask(runtime, frame_sampling={"mode": "keyframes_only", "interval_ms": 250})
    assert every.spec["frame_sampling"]["interval_ms"] == 250
    assert keyframes.spec["frame_sampling"]["interval_ms"] is None


@pytest.mark.parametrize(
    ("body", "error", "pointer"),
    [
        ({"split": {"validation": 0.6, "test": 0.5}}, ValidationFailed, "/split"),
        ({"frame_sampling": {"mode": "every_n_ms"}}, ValidationFailed, "/frame_sampling/interval_ms"),
        ({"filter": {"since": "1h", "until": "2h"}}, InvalidRange, "/filter/since"),
        ({"filter": {"until": "2999-01-01T00:00:00Z"}}, InvalidRange, "/filter/until"),
        ({"filter": {"since": "2999-01-01T00:00:00Z"}}, InvalidRange, "/filter/since"),
        ({"filter": {"min_duration_ms": 2, "max_duration_ms": 1}}, InvalidRange, "/filter/min_duration_ms"),
        ({"filter": {"since": "yesterday"}}, InvalidTime, "/filter/since"),
        ({"filter": {"exclude_session_ids": ["nobody"]}}, ValidationFailed, "/filter/exclude_session_ids/0"),
        (
            {"filter": {"exclude_session_ids": [new_id("ses")] * 10_001}},
            TooManyIds,
            "/filter/exclude_session_ids",
        ),
        ({"destination": {"kind": "local", "path": "../out"}}, DestinationNotAllowed, "/destination/path"),
        ({"destination": {"kind": "local", "path": "/etc"}}, DestinationNotAllowed, "/destination/path"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(
    runtime: Runtime, body: dict[str, Any], error: type[RecorderError], pointer: str
) -> None:
    with pytest.raises(error) as raised:
        ask(runtime, **body)
    assert raised.value.extra["errors"][0]["pointer"] == pointer


def test_a_since_in_the_future_is_refused_for_that(runtime: Runtime) -> None:
    with pytest.raises(InvalidRange, match=r"since must not be in the future\.") as raised:
        ask(runtime, filter={"since": "2999-01-01T00:00:00Z"})
    assert "until" not in str(raised.value)


def test_an_unknown_workflow_is_not_found(runtime: Runtime) -> None:
    with pytest.raises(NotFound) as raised:
        ask(runtime, workflow=["checkout", "nowhere"])
    assert raised.value.resource == "workflow"


def test_a_refused_request_leaves_no_row(runtime: Runtime) -> None:
    with pytest.raises(NotFound):
        ask(runtime, workflow="nowhere")
    with runtime.database.transaction(write=False) as db:
        assert list_exports(
            db, Tenant(WORKSPACE, "live"), workflows=(), status=None, before_id=None, limit=9
        ) == (
            [],
            None,
        )


def test_a_local_path_may_not_leave_the_root_over_a_link(runtime: Runtime, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (tmp_path / "local" / "way_out").symlink_to(outside)
    with pytest.raises(DestinationNotAllowed):
        ask(runtime, destination={"kind": "local", "path": "way_out/deeper"})


def test_without_a_root_nothing_is_local(tmp_path: Path) -> None:
    runtime = make_runtime(tmp_path)
    seal(runtime, [Recording()])
    closed = Runtime(
        make_settings(tmp_path, local_export_root=None), runtime.database, runtime.blobs, runtime.lake
    )
    with pytest.raises(DestinationNotAllowed, match="RECORDER_LOCAL_EXPORT_ROOT is not set"):
        ask(closed, destination={"kind": "local", "path": "out"})


def test_a_place_that_cannot_be_written_to_is_found_before_the_answer(
    runtime: Runtime, tmp_path: Path
) -> None:
    (tmp_path / "local" / "taken").write_bytes(b"a file, not a folder")
    with pytest.raises(InvalidDestination):
        ask(runtime, destination={"kind": "local", "path": "taken"})


def test_another_workspace_and_the_other_mode_do_not_see_an_export(runtime: Runtime) -> None:
    row = ask(runtime)
    with runtime.database.transaction(write=False) as db:
        for workspace_id, mode in ((WORKSPACE, "test"), ("wsp_other", "live")):
            with pytest.raises(NotFound):
                find_export(db, Tenant(workspace_id, mode), row.id)


def test_lists_are_newest_first_by_workflow_and_status(runtime: Runtime) -> None:
    first, second, third = (
        ask(runtime),
        ask(runtime, workflow="login"),
        ask(runtime, workflow=["login", "checkout"]),
    )
    with runtime.database.transaction(write=False) as db:
        of_login, last_id = list_exports(
            db, Tenant(WORKSPACE, "live"), workflows=("login",), status="queued", before_id=None, limit=1
        )
        rest, no_id = list_exports(
            db, Tenant(WORKSPACE, "live"), workflows=(), status=None, before_id=third.id, limit=5
        )
    assert ([row.id for row in of_login], last_id) == ([third.id], third.id)
    assert ([row.id for row in rest], no_id) == ([second.id, first.id], None)


@pytest.mark.parametrize(
    ("tag", "workflows", "name"),
    [("v3", ["checkout"], "v3"), (None, ["b_1", "a_1"], "a_1+b_1"), ("a...b", ["checkout"], "a…b")],
)
def test_a_dataset_is_named_by_its_tag_or_its_workflows(tag: str, workflows: list[str], name: str) -> None:
    assert make_dataset_name(tag, workflows) == name
