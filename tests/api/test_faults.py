"""Failing parts of the service: 503 or 500, a problem like every other; nothing stored. Contract §1."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from api.routes import health
from tests.support.factories import Caller, Service, assert_problem, event, frame, running_app, stored_rows
from tests.support.recorded_sessions import execute


@pytest.fixture
def broken(tmp_path: Path) -> Iterator[Service]:
    """A service whose folder for blobs is a file."""
    (tmp_path / "blobs").write_bytes(b"")
    with running_app(tmp_path, f"sqlite:///{tmp_path / 'recorder.db'}") as running:
        yield running


def test_frames_are_not_acknowledged_without_a_store(broken: Service) -> None:
    caller = broken.make_caller()
    session_id = caller.make_session()
    rows = stored_rows(broken.runtime)
    answer = caller.add_frames(session_id, frame(1))
    assert_problem(answer, 503, "unavailable")
    assert int(answer.headers["retry-after"]) >= 1
    assert stored_rows(broken.runtime) == rows
    assert caller.add_events(session_id, event(1)).status_code == 202


def test_readiness_names_the_part_that_fails(broken: Service) -> None:
    answer = broken.client.get("/readyz")
    problem = assert_problem(answer, 503, "unavailable")
    assert "blobs" in problem["detail"] and [each["code"] for each in problem["warnings"]] == [
        "dagster_silent"
    ]
    assert problem["parts"] == {"database": "ok", "blobs": "unavailable", "lake": "ok"}
    assert broken.client.get("/healthz").status_code == 200


def test_the_parts_are_not_checked_for_every_client_that_asks(
    broken: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "PARTS_CACHED_S", 3600.0)
    assert broken.client.get("/readyz").status_code == 503
    (tmp_path / "blobs").unlink()
    assert broken.client.get("/readyz").status_code == 503
    monkeypatch.setattr(health, "PARTS_CACHED_S", 0.0)
    assert broken.client.get("/readyz").status_code == 200


def test_a_fault_nobody_foresaw_tells_nothing_but_its_request_id(
    caller: Caller, caplog: pytest.LogCaptureFixture
) -> None:
    session_id = caller.make_session()
    caller.add_events(session_id, event(1))
    damage = "UPDATE event_batches SET payload = first_id_bytes WHERE session_id = :id"
    engine_bytes = "x'00'" if caller.service.runtime.database.is_sqlite else r"'\x00'::bytea"
    execute(caller.service.runtime, damage.replace("first_id_bytes", engine_bytes), id=session_id)
    answer = caller.get(f"/v1/sessions/{session_id}/events")
    problem = assert_problem(answer, 500, "internal_error")
    assert "Error" not in problem["detail"] and "zstd" not in answer.text
    assert problem["request_id"] in {getattr(record, "request_id", None) for record in caplog.records}
    assert caller.get(f"/v1/sessions/{session_id}").status_code == 200
