"""Spec §3.2 and §4.3: exports as they move, and what they are asked for with."""

from typing import Any

from recorder.exports.runner.finalize import fail_export_of_cancelled_run
from recorder.exports.runner.run import run_export
from tests.support.completed_work import completed_export, queued_export, shown_dataset
from tests.support.factories import Caller, assert_problem
from tests.support.specification_checks import Rows

ROWS = Rows()
EXPORT = {"workflow": "checkout", "format": "parquet", "destination": {"kind": "signed_url"}}


def status_of(caller: Caller, export_id: str) -> str:
    """Return the status of an export."""
    status: str = caller.get(f"/v1/exports/{export_id}").json()["status"]
    return status


@ROWS.row("3.2 POST")
def check_post(caller: Caller) -> None:
    assert status_of(caller, queued_export(caller)) == "queued"


@ROWS.row("3.2 processing starts")
def check_processing_starts(caller: Caller) -> None:
    export_id, seen = queued_export(caller), []

    class Watching:
        def run(self, tasks: Any) -> Any:
            seen.append(status_of(caller, export_id))
            raise KeyboardInterrupt

    try:
        run_export(caller.service.runtime, export_id, owner="proofs", executor=Watching())
    except KeyboardInterrupt:
        assert seen == ["running"]


@ROWS.row("3.2 finishes")
def check_finishes(caller: Caller) -> None:
    assert shown_dataset(caller).export["status"] == "completed"


@ROWS.row("3.2 fails")
def check_fails(caller: Caller) -> None:
    export_id = queued_export(caller)
    fail_export_of_cancelled_run(caller.service.runtime, export_id, owner="proofs")
    assert status_of(caller, export_id) == "failed"


@ROWS.row("3.2 events")
def check_events(caller: Caller) -> None:
    assert [type for type, _ in shown_dataset(caller).events] == ["export.queued", "export.completed"]


def refusal(caller: Caller, **body: Any) -> str:
    """Return the code with which an export is refused."""
    answer = caller.post("/v1/exports", {**EXPORT, **body})
    assert answer.status_code in (404, 422), answer.text
    code: str = answer.json()["code"]
    return code


@ROWS.row("4.3 workflow")
def check_workflow(caller: Caller) -> None:
    caller.make_session()
    caller.make_session(workflow="payment")
    many = caller.post("/v1/exports", {**EXPORT, "workflow": ["checkout", "payment"]})
    assert caller.get(f"/v1/exports/{many.json()['id']}").json()["workflow"] == ["checkout", "payment"]
    assert refusal(caller, workflow=[]) == "validation_failed"


@ROWS.row("4.3 filter")
def check_filter(caller: Caller) -> None:
    export = completed_export(caller, filter={"outcome": "error"})
    assert (export["rows"], export["filter"]["outcome"]) == (0, "error")


@ROWS.row("4.3 format")
def check_format(caller: Caller) -> None:
    assert shown_dataset(caller).export["format"] == "parquet"
    assert refusal(caller, format="csv") == "validation_failed"


@ROWS.row("4.3 frame_sampling")
def check_frame_sampling(caller: Caller) -> None:
    assert shown_dataset(caller).export["frame_sampling"]["mode"] == "all"


@ROWS.row("4.3 destination")
def check_destination(caller: Caller) -> None:
    body = {name: value for name, value in EXPORT.items() if name != "destination"}
    assert_problem(caller.post("/v1/exports", body), 422, "validation_failed")
    assert refusal(caller, destination={"kind": "ftp"}) == "validation_failed"


@ROWS.row("4.3 tag")
def check_tag(caller: Caller) -> None:
    assert completed_export(caller, tag="gold v3")["tag"] == "gold v3"


@ROWS.row("4.3 Idempotency-Key")
def check_idempotency_key(caller: Caller) -> None:
    caller.make_session()
    first, second = (caller.post("/v1/exports", EXPORT, key="e-1") for _ in range(2))
    assert (first.status_code, second.content) == (202, first.content)
    assert len(caller.get("/v1/exports").json()["data"]) == 1
