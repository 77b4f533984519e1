"""Manifests and files over HTTP: signed addresses, ranges, what is not served. Spec §4.3, contract §5."""

import hashlib
import socket
import tracemalloc
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from fastapi.routing import APIRoute

from api.dependencies import get_db
from api.routes.exports import router
from recorder import clock
from recorder.errors import Unavailable
from recorder.exports.results import hosted_files
from recorder.exports.results.expiry import delete_expired_export_files
from recorder.exports.signed_urls import make_signed_url
from recorder.ids import new_id
from recorder.models.export import ExportRow
from recorder.models.workspace import WorkspaceRow
from recorder.storage.leases import lease_for_block
from tests.support.factories import Caller
from tests.support.http_exports import BODY, export, first_shard, keyless


@pytest.mark.parametrize("address", ["/files/%00", "/diff?against=%00", "/files/data%00.parquet"])
def test_a_nul_in_an_address_is_404(owner: Caller, address: str) -> None:
    assert owner.get(f"/v1/exports/{export(owner)['id']}{address}").status_code == 404


@pytest.mark.parametrize("hosted", [True, False])
def test_a_manifest_that_was_exchanged_is_not_served(owner: Caller, hosted: bool) -> None:
    destination = {"kind": "signed_url"} if hosted else {"kind": "local", "path": "exchanged"}
    shown = export(owner, destination=destination)
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
    (route,) = (item for item in router.routes if isinstance(item, APIRoute) and item.path.endswith(address))
    pending, seen = [route.dependant], []
    while pending:
        seen.append(dependant := pending.pop())
        pending += dependant.dependencies
    assert get_db not in [item.call for item in seen]


def test_a_store_that_does_not_answer_is_given_up(owner: Caller) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        settings = replace(owner.service.runtime.settings, gcs_endpoint=address)
        destination = {"kind": "gcs", "bucket": "bucket-of-acme"}
        row = ExportRow.model_construct(
            id=new_id("exp"), workspace_id="wsp_1", status="completed", destination=destination, shards=0
        )
        with pytest.raises(Unavailable):
            hosted_files.read_manifest(row, settings, answer_s=0.3)


def test_a_manifest_before_completion_is_409(owner: Caller) -> None:
    created = owner.post("/v1/exports", BODY).json()
    answer = owner.get(f"/v1/exports/{created['id']}/manifest")
    assert (answer.status_code, answer.json()["current_status"]) == (409, "queued")


def test_a_hosted_dataset_is_read_by_its_manifest_url_without_a_key(owner: Caller) -> None:
    shown = export(owner)
    answer = keyless(owner, shown["manifest_url"])
    assert answer.headers["cache-control"] == "no-store"  # its addresses open the files without a key
    manifest = answer.json()
    assert len(manifest["shards"]) == shown["shards"] == 2
    for shard in manifest["shards"]:
        data = keyless(owner, shard["url"]).content
        assert (len(data), hashlib.sha256(data).hexdigest()) == (shard["size_bytes"], shard["sha256"])


def test_addresses_of_a_signed_manifest_do_not_outlive_it(owner: Caller) -> None:
    shown = export(owner, destination={"kind": "signed_url", "expires_in": 60})
    ends = first_shard(owner, shown)["url_expires_at"]
    assert clock.parse_time(ends, name="end") <= clock.now() + timedelta(seconds=60)


def test_addresses_that_a_key_asks_for_last_as_long_as_the_destination_says(owner: Caller) -> None:
    shown = export(owner, destination={"kind": "signed_url", "expires_in": 3_600})
    for shard in owner.get(f"/v1/exports/{shown['id']}/manifest").json()["shards"]:
        end = clock.parse_time(shard["url_expires_at"], name="end")
        assert timedelta(seconds=3_000) <= end - clock.now() <= timedelta(seconds=3_600)


def test_a_manifest_by_a_short_address_gives_addresses_that_end_with_it(owner: Caller) -> None:
    shown = export(owner, destination={"kind": "signed_url", "expires_in": 86_400})
    runtime = owner.service.runtime
    with runtime.database.transaction(write=False) as db:
        workspace_id = db.get_one(ExportRow, shown["id"]).workspace_id
    end = clock.from_ms(clock.now_ms() // 1000 * 1000) + timedelta(seconds=300)
    path = f"/v1/exports/{shown['id']}/manifest"
    secret = runtime.settings.secret
    address = make_signed_url("", path, workspace_id=workspace_id, expires_at=end, secret=secret)
    shards = keyless(owner, address).json()["shards"]
    ends = {shard["url_expires_at"] for shard in shards}
    assert ends == {clock.to_iso(end)}
    assert {parse_qs(urlsplit(shard["url"]).query)["exp"][0] for shard in shards} == {
        str(clock.to_ms(end) // 1000)
    }


def test_the_manifest_of_a_local_export_needs_the_key(owner: Caller) -> None:
    shown = export(owner, destination={"kind": "local", "path": "out"})
    assert keyless(owner, shown["manifest_url"]).status_code == 401
    manifest = owner.get(shown["manifest_url"]).json()
    assert "url" not in manifest["shards"][0]


def test_a_local_manifest_whose_folder_is_no_export_root_any_more_is_404(owner: Caller) -> None:
    shown = export(owner, destination={"kind": "local", "path": "moved"})
    runtime, state = owner.service.runtime, owner.service.app.state
    state.runtime = replace(runtime, settings=replace(runtime.settings, local_export_root=None))
    try:
        answer = owner.get(f"/v1/exports/{shown['id']}/manifest")
    finally:
        state.runtime = runtime
    assert (answer.status_code, answer.json()["resource"]) == (404, "manifest")
    assert "RECORDER_LOCAL_EXPORT_ROOT" in answer.json()["detail"]


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
    resumed = keyless(owner, shard["url"], **{"Range": "bytes=4-9", "If-Range": '"old"'})
    assert (resumed.status_code, resumed.content) == (200, whole)


def test_a_range_behind_the_end_is_416(owner: Caller) -> None:
    shard = first_shard(owner, export(owner))
    answer = keyless(owner, shard["url"], Range="bytes=99999999-")
    assert (answer.status_code, answer.headers["content-range"]) == (416, f"bytes */{shard['size_bytes']}")


def test_a_changed_or_old_address_is_403(owner: Caller) -> None:
    shown = export(owner)
    shard = first_shard(owner, shown)
    old = make_signed_url(
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


def test_no_address_serves_a_suspended_workspace(owner: Caller) -> None:
    shown = export(owner)
    shard = first_shard(owner, shown)
    with owner.service.runtime.database.transaction(write=True) as db:
        workspace = db.get_one(WorkspaceRow, owner.key.workspace_id)
        workspace.status = "suspended"
        db.add(workspace)
    for url in (shown["manifest_url"], shard["url"]):
        answer = keyless(owner, url)
        assert (answer.status_code, answer.json()["code"]) == (403, "workspace_disabled")


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


def test_a_deleted_dataset_has_no_address(owner: Caller) -> None:
    shown = export(owner)
    runtime = owner.service.runtime
    with lease_for_block(runtime.database, "tests", "tests", ttl_ms=60_000) as held:
        assert held is not None
        assert delete_expired_export_files(runtime, held, shown["id"], at=clock.now())
    again = owner.get(f"/v1/exports/{shown['id']}").json()
    assert again == shown | {"manifest_url": None}
    assert owner.get(f"/v1/exports/{shown['id']}/manifest").status_code == 404
