"""Exports over HTTP: ask, read, list, cancel, compare. Spec §4.3, contract §5."""

from typing import Any

import polars as pl
import pytest
from sqlmodel import select

from recorder import limits
from recorder.exports.runner.run import run_export
from recorder.ids import new_id
from recorder.models.operations import OutboxRow
from tests.support.factories import Caller, assert_problem
from tests.support.http_exports import BODY, MEMBERS, export, first_shard, keyless


def test_asking_answers_202_with_exactly_four_members(owner: Caller) -> None:
    answer = owner.post("/v1/exports", BODY)
    assert answer.status_code == 202
    assert set(answer.json()) == {"id", "status", "manifest_url", "created_at"}
    assert (answer.json()["status"], answer.json()["manifest_url"]) == ("queued", None)


def test_reading_gives_the_whole_object(owner: Caller) -> None:
    created = owner.post("/v1/exports", BODY | {"tag": "v3"}).json()
    shown = owner.get(f"/v1/exports/{created['id']}").json()
    assert set(shown) == MEMBERS
    assert (shown["workflow"], shown["tag"], shown["rows"]) == (["checkout"], "v3", None)


@pytest.mark.parametrize(
    ("change", "pointer", "code"),
    [
        ({"format": "csv"}, "/format", "invalid_value"),
        ({"workflow": []}, "/workflow", "invalid_value"),
        ({"workflow": ["checkout"] * (limits.EXPORT_WORKFLOWS + 1)}, "/workflow", "invalid_value"),
        ({"workflow": "Not A Slug"}, "/workflow", "invalid_value"),
        ({"workflow": ["Not A Slug"]}, "/workflow/0", "invalid_value"),
        ({"destination": {"kind": "ftp"}}, "/destination/kind", "invalid_value"),
        ({"destination": {"kind": "s3"}}, "/destination/bucket", "missing"),
        (
            {"destination": {"kind": "signed_url", "expires_in": 59}},
            "/destination/expires_in",
            "invalid_value",
        ),
        ({"destination": {"kind": "local"}}, "/destination/path", "missing"),
        ({"destination": {"kind": "local", "path": "../x"}}, "/destination/path", "destination_not_allowed"),
        ({"filter": {"actor_kind": "human"}}, "/filter/actor_kind", "unknown_field"),
        ({"filter": {"actor.kind": "robot"}}, "/filter/actor.kind", "invalid_value"),
        ({"filter": {"outcome": ["success"]}}, "/filter/outcome", "invalid_value"),
        ({"filter": {"min_duration_ms": 1.0}}, "/filter/min_duration_ms", "invalid_value"),
        ({"filter": {"min_duration_ms": 10**12 + 1}}, "/filter/min_duration_ms", "invalid_value"),
        ({"filter": {"max_duration_ms": 10**12 + 1}}, "/filter/max_duration_ms", "invalid_value"),
        ({"filter": {"min_replayability": 1.1}}, "/filter/min_replayability", "invalid_value"),
        ({"filter": {"min_replayability": -0.1}}, "/filter/min_replayability", "invalid_value"),
        ({"filter": {"min_replayability": "0.5"}}, "/filter/min_replayability", "invalid_value"),
        ({"filter": {"min_replayability": True}}, "/filter/min_replayability", "invalid_value"),
        ({"filter": {"tag": "a\0b"}}, "/filter/tag", "invalid_string"),
        ({"filter": {"tag": "a\u0007b"}}, "/filter/tag", "invalid_value"),
        ({"filter": {"tag": "a\u202eb"}}, "/filter/tag", "invalid_value"),
        ({"filter": {"since": "1h", "until": "2h"}}, "/filter/since", "invalid_range"),
        ({"split": {"by": "person"}}, "/split/by", "invalid_value"),
        ({"split": {"validation": 0.6, "test": 0.5}}, "/split", "invalid_value"),
        ({"frame_sampling": {"mode": "every_n_ms"}}, "/frame_sampling/interval_ms", "missing"),
        (
            {"frame_sampling": {"mode": "all", "interval_ms": 0}},
            "/frame_sampling/interval_ms",
            "invalid_value",
        ),
        (
            {"frame_sampling": {"mode": "every_n_ms", "interval_ms": 10**12 + 1}},
            "/frame_sampling/interval_ms",
            "invalid_value",
        ),
        ({"tag": ""}, "/tag", "invalid_value"),
        ({"tag": "a\nb"}, "/tag", "invalid_value"),
        ({"shards": 3}, "/shards", "unknown_field"),
    ],
)
def test_a_wrong_member_is_named(owner: Caller, change: dict[str, Any], pointer: str, code: str) -> None:
    answer = owner.post("/v1/exports", BODY | change)
    assert answer.status_code == 422
    assert [(item["pointer"], item["code"]) for item in answer.json()["errors"]] == [(pointer, code)]


def test_an_unknown_workflow_is_404(owner: Caller) -> None:
    answer = owner.post("/v1/exports", BODY | {"workflow": ["checkout", "nowhere"]})
    problem = answer.json()
    assert (answer.status_code, problem["code"], problem["resource"]) == (404, "not_found", "workflow")
    assert "GET /v1/workflows" in problem["detail"] and "nowhere" not in answer.text
    assert [(error["in"], error["pointer"]) for error in problem["errors"]] == [("body", "/workflow/1")]


@pytest.mark.parametrize(
    ("workflow", "pointers"),
    [
        ("nowhere", ["/workflow"]),
        (["nowhere"], ["/workflow"]),
        (["elsewhere", "checkout", "nowhere"], ["/workflow/0", "/workflow/2"]),
    ],
)
def test_each_unknown_workflow_has_its_pointer(owner: Caller, workflow: Any, pointers: list[str]) -> None:
    problem = owner.post("/v1/exports", BODY | {"workflow": workflow}).json()
    assert [error["pointer"] for error in problem["errors"]] == pointers
    # Of one name the pointer is enough.
    assert ("at " + ", ".join(pointers) in problem["detail"]) == (len(pointers) > 1)


def test_an_unknown_path_is_404(owner: Caller) -> None:
    answer = owner.post("/v1/exports", BODY | {"filter": {"path": "pth_unknown"}})
    assert (answer.status_code, answer.json()["resource"]) == (404, "path")


@pytest.mark.parametrize("odd", ["pth_\x1b[0m", "\ufffe", "'; --", "a" * 100_000, ""])
def test_a_filter_of_odd_characters_finds_nothing(owner: Caller, odd: str) -> None:
    answer = owner.post("/v1/exports", BODY | {"filter": {"path": odd}})
    assert (answer.status_code, answer.json()["resource"]) == (404, "path")
    tagged = owner.post("/v1/exports", BODY | {"filter": {"tag": odd}})
    assert tagged.status_code in (202, 422)
    if tagged.status_code == 202:
        row = run_export(owner.service.runtime, tagged.json()["id"], owner="test")
        assert (row.status, row.rows) == ("completed", 0)


def test_a_long_list_of_sessions_is_shown_by_the_export_alone(owner: Caller) -> None:
    ids = [new_id("ses") for _ in range(limits.EXCLUDED_SESSIONS_SHOWN + 1)]
    few, many = (
        owner.post("/v1/exports", BODY | {"filter": {"exclude_session_ids": some}}).json()["id"]
        for some in (ids[1:], ids)
    )
    assert owner.get(f"/v1/exports/{many}").json()["filter"]["exclude_session_ids"] == ids
    in_list = {item["id"]: item["filter"] for item in owner.get("/v1/exports").json()["data"]}
    assert in_list[few]["exclude_session_ids"] == ids[1:]
    assert (in_list[many]["excluded_sessions"], "exclude_session_ids" in in_list[many]) == (len(ids), False)
    with owner.service.runtime.database.transaction(write=False) as db:
        notice = db.exec(select(OutboxRow).where(OutboxRow.subject_id == many)).one()
    assert ids[0] not in str(notice.model_dump())


def test_the_actors_id_splits_a_dataset_and_is_not_in_it(owner: Caller) -> None:
    shown = export(owner, split={"by": "actor", "validation": 0, "test": 1})
    assert shown["split"] == {"by": "actor", "validation": 0.0, "test": 1.0}
    shard = keyless(owner, first_shard(owner, shown)["url"]).content
    rows = pl.read_parquet(shard)
    assert set(rows["split"]) == {"test"}
    assert not [name for name in rows.columns if "actor" in name and name != "actor_kind"]


def test_cancelling_ends_an_export_once(owner: Caller) -> None:
    created = owner.post("/v1/exports", BODY).json()
    first, again = (owner.post(f"/v1/exports/{created['id']}/cancel") for _ in range(2))
    assert (first.status_code, first.content) == (200, again.content)
    assert (first.json()["status"], first.json()["error"]["code"]) == ("failed", "cancelled")
    assert set(first.json()) == MEMBERS


def test_what_is_completed_cannot_be_cancelled(owner: Caller) -> None:
    answer = owner.post(f"/v1/exports/{export(owner)['id']}/cancel")
    assert (answer.status_code, answer.json()["code"], answer.json()["current_status"]) == (
        409,
        "invalid_state",
        "completed",
    )


def test_a_diff_says_what_differs_page_by_page(owner: Caller) -> None:
    first = export(owner, workflow="login")
    newer = export(owner, workflow=["login", "checkout"])
    address = f"/v1/exports/{newer['id']}/diff?against={first['id']}&limit=1"
    page = owner.get(address).json()
    rest = owner.get(f"{address}&cursor={page['next_cursor']}").json()
    assert page["sessions"] == {"same": 1, "added": 2, "removed": 0, "changed": 0}
    assert page["shards"]["same"] == 1
    assert (page["same_rows"], page["same_request"], page["causes"]) == (False, False, {"request": 2})
    differences = [*page["data"], *rest["data"]]
    assert [(item["change"], item["cause"]) for item in differences] == [("added", "request")] * 2
    assert (page["has_more"], rest["has_more"], rest["next_cursor"]) == (True, False, None)


def test_a_diff_needs_two_completed_exports_of_ones_own(owner: Caller) -> None:
    done, waiting = export(owner)["id"], owner.post("/v1/exports", BODY).json()["id"]
    answer = owner.get(f"/v1/exports/{done}/diff?against={waiting}")
    assert (answer.status_code, answer.json()["code"]) == (409, "invalid_state")
    assert owner.get(f"/v1/exports/{done}/diff?against=exp_unknown").status_code == 404
    assert owner.get(f"/v1/exports/{done}/diff").status_code == 422
    other = owner.service.make_caller()
    assert other.get(f"/v1/exports/{done}/diff?against={done}").status_code == 404


def test_an_export_is_queued_once_for_each_key(owner: Caller) -> None:
    first, second = [owner.post("/v1/exports", BODY, key="k") for _ in range(2)]
    assert (first.status_code, second.status_code, second.headers["idempotent-replayed"]) == (
        202,
        202,
        "true",
    )
    assert first.content == second.content
    assert_problem(owner.post("/v1/exports", {**BODY, "tag": "v2"}, key="k"), 422, "idempotency_key_reused")


def test_lists_are_paged_and_filtered(owner: Caller) -> None:
    ids = [
        owner.post("/v1/exports", BODY | {"workflow": workflow}).json()["id"]
        for workflow in ("checkout", "login", ["login", "checkout"])
    ]
    first = owner.get("/v1/exports?workflow=checkout&status=queued&limit=1").json()
    cursor = first["next_cursor"]
    second = owner.get(f"/v1/exports?workflow=checkout&status=queued&limit=1&cursor={cursor}").json()
    assert [item["id"] for item in (*first["data"], *second["data"])] == [ids[2], ids[0]]
    assert (first["has_more"], second["has_more"], second["next_cursor"]) == (True, False, None)


@pytest.mark.parametrize("stranger", ["the other mode", "another workspace"])
def test_an_export_of_somebody_else_is_404(owner: Caller, stranger: str) -> None:
    same = owner.key.workspace_id if stranger == "the other mode" else None
    other = owner.service.make_caller(mode="test" if same else "live", workspace_id=same)
    shown = export(owner)
    assert other.post(f"/v1/exports/{shown['id']}/cancel").status_code == 404
    for path in ("", "/manifest", "/files/manifest.json"):
        answer = other.get(f"/v1/exports/{shown['id']}{path}")
        assert (answer.status_code, answer.json()["resource"]) == (404, "export")


def test_exports_beyond_the_limit_of_a_workspace_are_refused_until_one_ends(
    owner: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = owner.post("/v1/exports", BODY).json()
    open_exports = sum(
        export["status"] in ("queued", "running") for export in owner.get("/v1/exports").json()["data"]
    )
    monkeypatch.setattr(limits, "OPEN_EXPORTS", open_exports)
    refused = assert_problem(owner.post("/v1/exports", BODY), 422, "limit_reached")
    assert f"{open_exports} exports that are queued or running" in refused["detail"]
    assert owner.post(f"/v1/exports/{first['id']}/cancel").status_code == 200
    assert owner.post("/v1/exports", BODY).status_code == 202
