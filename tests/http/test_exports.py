"""Exports over HTTP: ask, list, read, manifest, hosted files. Spec §4.3, contract §5."""

import hashlib
import socket
import tracemalloc
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from fastapi.routing import APIRoute
from sqlmodel import select

from api.deps import get_db
from api.routes.exports import router
from recorder import clock, limits
from recorder.errors import Unavailable
from recorder.exports.reading import serving
from recorder.exports.running.run import run_export
from recorder.exports.signing import signed_url
from recorder.ids import new_id
from recorder.models.export_rows import ExportRow
from recorder.models.outbox import OutboxRow
from tests.factories import Caller, assert_problem
from tests.sealed import Recording, seal

_BODY = {"workflow": "checkout", "format": "parquet", "destination": {"kind": "signed_url"}}
# fmt: off
_MEMBERS = {
    "id", "status", "workflow", "format", "filter", "frame_sampling",
    "split", "destination", "tag", "rows", "shards",
    "shard_size_bytes", "frames", "actions", "manifest_url", "progress", "error", "created_at",
    "completed_at",
}
# fmt: on


@pytest.fixture
def owner(caller: Caller) -> Caller:
    """A caller whose workspace has sealed sessions of two workflows."""
    runtime, workspace_id = caller.service.runtime, caller.key.workspace_id
    seal(runtime, [Recording(frames=[0, 600]), Recording(outcome="error")], workspace_id=workspace_id)
    seal(runtime, [Recording(workflow="login")], workspace_id=workspace_id)
    return caller


def export(owner: Caller, **body: Any) -> dict[str, Any]:
    """An export that was asked for and run."""
    created = owner.post("/v1/exports", _BODY | body).json()
    run_export(owner.service.runtime, created["id"], owner="test")
    shown: dict[str, Any] = owner.get(f"/v1/exports/{created['id']}").json()
    return shown


def keyless(owner: Caller, url: str, **headers: str) -> Any:
    """What somebody without a key gets."""
    return owner.service.client.get(url, headers=headers)


def first_shard(owner: Caller, shown: dict[str, Any]) -> dict[str, Any]:
    """The first entry of a hosted export's manifest."""
    shard: dict[str, Any] = keyless(owner, shown["manifest_url"]).json()["shards"][0]
    return shard


def test_asking_answers_202_with_exactly_four_members(owner: Caller) -> None:
    answer = owner.post("/v1/exports", _BODY)
    assert answer.status_code == 202
    assert set(answer.json()) == {"id", "status", "manifest_url", "created_at"}
    assert (answer.json()["status"], answer.json()["manifest_url"]) == ("queued", None)


def test_reading_gives_the_whole_object(owner: Caller) -> None:
    created = owner.post("/v1/exports", _BODY | {"tag": "v3"}).json()
    shown = owner.get(f"/v1/exports/{created['id']}").json()
    assert set(shown) == _MEMBERS
    assert (shown["workflow"], shown["tag"], shown["rows"]) == (["checkout"], "v3", None)


@pytest.mark.parametrize(
    ("change", "pointer", "code"),
    [
        ({"format": "csv"}, "/format", "invalid_value"),
        ({"workflow": []}, "/workflow", "invalid_value"),
        ({"workflow": "Not A Slug"}, "/workflow/0", "invalid_value"),
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
        ({"filter": {"tag": "a\0b"}}, "/filter/tag", "invalid_string"),
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
    answer = owner.post("/v1/exports", _BODY | change)
    assert answer.status_code == 422
    assert [(item["pointer"], item["code"]) for item in answer.json()["errors"]] == [(pointer, code)]


def test_an_unknown_workflow_is_404(owner: Caller) -> None:
    answer = owner.post("/v1/exports", _BODY | {"workflow": ["checkout", "nowhere"]})
    assert (answer.status_code, answer.json()["resource"]) == (404, "workflow")


def test_an_unknown_path_is_404(owner: Caller) -> None:
    answer = owner.post("/v1/exports", _BODY | {"filter": {"path": "pth_unknown"}})
    assert (answer.status_code, answer.json()["resource"]) == (404, "path")


@pytest.mark.parametrize("odd", ["pth_\x1b[0m", "\ufffe", "'; --", "a" * 100_000, ""])
def test_a_filter_of_odd_characters_finds_nothing(owner: Caller, odd: str) -> None:
    answer = owner.post("/v1/exports", _BODY | {"filter": {"path": odd}})
    assert (answer.status_code, answer.json()["resource"]) == (404, "path")
    tagged = owner.post("/v1/exports", _BODY | {"filter": {"tag": odd}})
    assert tagged.status_code in (202, 422)
    if tagged.status_code == 202:
        row = run_export(owner.service.runtime, tagged.json()["id"], owner="test")
        assert (row.status, row.rows) == ("completed", 0)


@pytest.mark.parametrize("address", ["/files/%00", "/diff?against=%00", "/files/data%00.parquet"])
def test_a_nul_in_an_address_is_404(owner: Caller, address: str) -> None:
    assert owner.get(f"/v1/exports/{export(owner)['id']}{address}").status_code == 404


def test_a_long_list_of_sessions_is_shown_by_the_export_alone(owner: Caller) -> None:
    ids = [new_id("ses") for _ in range(limits.EXCLUDED_SESSIONS_SHOWN + 1)]
    few, many = (
        owner.post("/v1/exports", _BODY | {"filter": {"exclude_session_ids": some}}).json()["id"]
        for some in (ids[1:], ids)
    )
    assert owner.get(f"/v1/exports/{many}").json()["filter"]["exclude_session_ids"] == ids
    in_list = {one["id"]: one["filter"] for one in owner.get("/v1/exports").json()["data"]}
    assert in_list[few]["exclude_session_ids"] == ids[1:]
    assert (in_list[many]["excluded_sessions"], "exclude_session_ids" in in_list[many]) == (len(ids), False)
    with owner.service.runtime.database.transaction(write=False) as db:
        told = db.exec(select(OutboxRow).where(OutboxRow.subject_id == many)).one()
    assert ids[0] not in str(told.model_dump())


@pytest.mark.parametrize("hosted", [True, False])
def test_a_manifest_that_was_exchanged_is_not_served(owner: Caller, hosted: bool) -> None:
    place = {"kind": "signed_url"} if hosted else {"kind": "local", "path": "exchanged"}
    shown = export(owner, destination=place)
    settings = owner.service.runtime.settings
    root = Path(settings.export_url) if hosted else settings.local_export_root
    assert root is not None
    (path,) = root.rglob(f"{shown['id']}/manifest.json")
    whole = path.read_bytes()
    path.write_bytes(whole.replace(shown["id"].encode(), new_id("exp").encode()))
    foreign = owner.get(f"/v1/exports/{shown['id']}/manifest")
    assert (foreign.status_code, foreign.json()["resource"]) == (404, "manifest")
    with path.open("r+b") as file:
        file.truncate(300_000_000)
    tracemalloc.start()
    assert owner.get(f"/v1/exports/{shown['id']}/manifest").status_code == 404
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 50_000_000
    path.write_bytes(whole)
    assert owner.get(f"/v1/exports/{shown['id']}/manifest").status_code == 200


@pytest.mark.parametrize("address", ["/manifest", "/files/{path:path}", "/diff"])
def test_no_transaction_waits_for_a_store(address: str) -> None:
    (route,) = (one for one in router.routes if isinstance(one, APIRoute) and one.path.endswith(address))
    asked, seen = [route.dependant], []
    while asked:
        seen.append(one := asked.pop())
        asked += one.dependencies
    assert get_db not in [one.call for one in seen]


def test_a_store_that_does_not_answer_is_given_up(owner: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        monkeypatch.setattr(serving, "READ_SECONDS", 0.3)
        settings = replace(owner.service.runtime.settings, gcs_endpoint=address)
        place = {"kind": "gcs", "bucket": "bucket-of-acme"}
        row = ExportRow.model_construct(
            id=new_id("exp"), workspace_id="wsp_1", status="completed", destination=place, shards=0
        )
        with pytest.raises(Unavailable):
            serving.read_manifest(row, settings)


def test_the_actors_id_splits_a_dataset_and_is_not_in_it(owner: Caller) -> None:
    shown = export(owner, split={"by": "actor", "validation": 0, "test": 1})
    assert shown["split"] == {"by": "actor", "validation": 0.0, "test": 1.0}
    shard = keyless(owner, first_shard(owner, shown)["url"]).content
    rows = pl.read_parquet(shard)
    assert set(rows["split"]) == {"test"}
    assert not [name for name in rows.columns if "actor" in name and name != "actor_kind"]


def test_cancelling_ends_an_export_once(owner: Caller) -> None:
    created = owner.post("/v1/exports", _BODY).json()
    first, again = (owner.post(f"/v1/exports/{created['id']}/cancel") for _ in range(2))
    assert (first.status_code, first.content) == (200, again.content)
    assert (first.json()["status"], first.json()["error"]["code"]) == ("failed", "cancelled")
    assert set(first.json()) == _MEMBERS


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
    found = [*page["data"], *rest["data"]]
    assert [(one["change"], one["cause"]) for one in found] == [("added", "request")] * 2
    assert (page["has_more"], rest["has_more"], rest["next_cursor"]) == (True, False, None)


def test_a_diff_needs_two_completed_exports_of_ones_own(owner: Caller) -> None:
    done, waiting = export(owner)["id"], owner.post("/v1/exports", _BODY).json()["id"]
    answer = owner.get(f"/v1/exports/{done}/diff?against={waiting}")
    assert (answer.status_code, answer.json()["code"]) == (409, "invalid_state")
    assert owner.get(f"/v1/exports/{done}/diff?against=exp_unknown").status_code == 404
    assert owner.get(f"/v1/exports/{done}/diff").status_code == 422
    other = owner.service.make_caller()
    assert other.get(f"/v1/exports/{done}/diff?against={done}").status_code == 404


def test_an_export_is_queued_once_for_each_key(owner: Caller) -> None:
    first, second = [owner.post("/v1/exports", _BODY, key="k") for _ in range(2)]
    assert (first.status_code, second.status_code, second.headers["idempotent-replayed"]) == (
        202,
        202,
        "true",
    )
    assert first.content == second.content
    assert_problem(owner.post("/v1/exports", {**_BODY, "tag": "v2"}, key="k"), 422, "idempotency_key_reused")


def test_lists_are_paged_and_filtered(owner: Caller) -> None:
    ids = [
        owner.post("/v1/exports", _BODY | {"workflow": workflow}).json()["id"]
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


def test_a_manifest_before_completion_is_409(owner: Caller) -> None:
    created = owner.post("/v1/exports", _BODY).json()
    answer = owner.get(f"/v1/exports/{created['id']}/manifest")
    assert (answer.status_code, answer.json()["current_status"]) == (409, "queued")


def test_a_hosted_dataset_is_read_by_its_manifest_url_without_a_key(owner: Caller) -> None:
    shown = export(owner)
    manifest = keyless(owner, shown["manifest_url"]).json()
    assert len(manifest["shards"]) == shown["shards"] == 2
    for shard in manifest["shards"]:
        data = keyless(owner, shard["url"]).content
        assert (len(data), hashlib.sha256(data).hexdigest()) == (shard["size_bytes"], shard["sha256"])


def test_addresses_of_a_signed_manifest_do_not_outlive_it(owner: Caller) -> None:
    shown = export(owner, destination={"kind": "signed_url", "expires_in": 60})
    ends = first_shard(owner, shown)["url_expires_at"]
    assert clock.parse_time(ends, name="end") <= clock.now() + timedelta(seconds=60)


def test_the_manifest_of_a_local_export_needs_the_key(owner: Caller) -> None:
    shown = export(owner, destination={"kind": "local", "path": "out"})
    assert keyless(owner, shown["manifest_url"]).status_code == 401
    manifest = owner.get(shown["manifest_url"]).json()
    assert "url" not in manifest["shards"][0]


def test_a_range_gives_a_part(owner: Caller) -> None:
    shard = first_shard(owner, export(owner))
    whole = keyless(owner, shard["url"]).content
    part = keyless(owner, shard["url"], Range="bytes=4-9")
    tail = keyless(owner, shard["url"], Range="bytes=-4")
    assert (part.status_code, part.content, part.headers["content-range"]) == (
        206,
        whole[4:10],
        f"bytes 4-9/{len(whole)}",
    )
    assert tail.content == b"PAR1"


def test_a_range_behind_the_end_is_416(owner: Caller) -> None:
    shard = first_shard(owner, export(owner))
    answer = keyless(owner, shard["url"], Range="bytes=99999999-")
    assert (answer.status_code, answer.headers["content-range"]) == (416, f"bytes */{shard['size_bytes']}")


def test_a_changed_or_old_address_is_403(owner: Caller) -> None:
    shown = export(owner)
    shard = first_shard(owner, shown)
    old = signed_url(
        "",
        f"/v1/exports/{shown['id']}/files/{shard['path']}",
        workspace_id=owner.key.workspace_id,
        expires_at=clock.now() - timedelta(seconds=1),
        secret=owner.service.runtime.settings.secret,
    )
    other = shard["url"].replace("/events-", "/frames-")
    assert keyless(owner, other).json()["code"] == "invalid_signature"
    assert keyless(owner, old).json()["code"] == "url_expired"
    assert keyless(owner, shard["url"] + "0").status_code == 403


@pytest.mark.parametrize(
    "path",
    ["nothing.parquet", "../../../recorder.db", "..%2F..%2F..%2Fsecret", "data/workflow=checkout", "%2e%2e"],
)
def test_only_the_files_of_the_export_are_served(owner: Caller, path: str) -> None:
    shown = export(owner)
    assert owner.get(f"/v1/exports/{shown['id']}/files/{path}").status_code == 404


def test_the_card_lies_beside_the_shards(owner: Caller) -> None:
    shown = export(owner)
    card = owner.get(f"/v1/exports/{shown['id']}/files/README.md")
    assert card.headers["content-type"].startswith("text/markdown")
    assert card.text.startswith("---\nconfigs:")


def test_files_that_are_gone_are_404(owner: Caller) -> None:
    shown = export(owner)
    folder = Path(owner.service.runtime.settings.export_url) / owner.key.workspace_id / shown["id"]
    for path in [path for path in folder.rglob("*") if path.is_file()]:
        path.unlink()
    assert keyless(owner, shown["manifest_url"]).status_code == 404
