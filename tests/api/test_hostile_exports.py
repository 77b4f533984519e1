"""Hostile destinations, signed addresses and filters of exports: cases 76, 77, 79 to 81. Contract §5."""

import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from api.app import create_app
from recorder import clock, limits
from recorder.exports.runner.run import run_export
from recorder.exports.signed_urls import make_signed_url
from recorder.ids import new_id
from recorder.models.workspace import WorkspaceRow
from tests.support.factories import Caller, Service
from tests.support.hostile_cases import Refused, case, judge, nothing_stored
from tests.support.sealed_sessions import Recording, make_settings, seal

EXPORT: dict[str, Any] = {"workflow": "checkout", "format": "parquet"}
NO_PATH = Refused(422, "invalid_destination", pointer="/destination/path")
NOT_BELOW = Refused(422, "destination_not_allowed", pointer="/destination/path")


@pytest.mark.parametrize(
    ("path", "refused"),
    [
        case(76, "../outside", NOT_BELOW, name="up"),
        case(76, "a/../../outside", NOT_BELOW, name="up-from-within"),
        case(76, "/etc", NOT_BELOW, name="absolute"),
        case(76, "a\\..\\..\\outside", NO_PATH, name="backslash"),
        case(76, "a\u0001b", NO_PATH, name="control"),
        case(76, "", Refused(422, "validation_failed", "invalid_value", "/destination/path"), name="empty"),
        case(76, "/".join("a" * 65), NO_PATH, name="65-names"),
        case(76, "/".join("a" * 1501), NO_PATH, name="1501-names"),
        case(76, "a" * 256, NO_PATH, name="name-of-256-bytes"),
        case(76, "é" * 128, NO_PATH, name="name-of-256-bytes-in-128-characters"),
        case(76, "/".join(["a" * 255] * 16), NO_PATH, name="longer-than-the-file-system-takes"),
        case(77, "linked/out", NOT_BELOW, name="symlink"),
    ],
)
def test_a_local_export_stays_below_its_root(
    caller: Caller, tmp_path: Path, path: str, refused: Refused
) -> None:
    caller.make_session()
    root = caller.service.runtime.settings.local_export_root
    assert root is not None
    (root / "linked").unlink(missing_ok=True)
    (root / "linked").symlink_to(tmp_path)
    with nothing_stored(caller.service.runtime):
        judge(caller.post("/v1/exports", EXPORT | {"destination": {"kind": "local", "path": path}}), refused)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("path", [case(77, "out", name="no-root")])
def test_without_a_root_nothing_is_exported_to_this_machine(tmp_path: Path, path: str) -> None:
    settings = make_settings(tmp_path, local_export_root=None)
    app = create_app(settings)
    with TestClient(app, raise_server_exceptions=False) as client:
        caller = Service(app, client, app.state.runtime).make_caller()
        caller.make_session()
        with nothing_stored(app.state.runtime):
            judge(
                caller.post("/v1/exports", EXPORT | {"destination": {"kind": "local", "path": path}}),
                NOT_BELOW,
            )


S3 = {"kind": "s3", "bucket": "acme-data"}
ROLE = "arn:aws:iam::123456789012:role/datasets"


@pytest.mark.parametrize(
    ("members", "pointer"),
    [
        case(76, {"prefix": "a/../../b"}, "prefix", name="key-up"),
        case(76, {"prefix": "/etc"}, "prefix", name="key-absolute"),
        case(76, {"prefix": "a\\b"}, "prefix", name="key-backslash"),
        case(76, {"prefix": "a\0b"}, "prefix", name="key-NUL"),
        case(79, {"role_arn": "datasets"}, "role_arn", name="no-ARN"),
        case(79, {"role_arn": ROLE.replace("role/", "user/")}, "role_arn", name="user"),
        case(79, {"role_arn": ROLE + "\n"}, "role_arn", name="line"),
        case(79, {"role_arn": ROLE.replace("123456789012", "*")}, "role_arn", name="any-account"),
        case(79, {"role_arn": ROLE, "external_id": "wsp_1"}, "external_id", name="external-id"),
        case(79, {"role_arn": ROLE, "externalId": "wsp_1"}, "externalId", name="externalId"),
    ],
)
def test_a_bucket_is_named_without_tricks(caller: Caller, members: dict[str, str], pointer: str) -> None:
    caller.make_session()
    with nothing_stored(caller.service.runtime):
        answer = caller.post("/v1/exports", EXPORT | {"destination": S3 | members})
        judge(answer, Refused(422, "validation_failed", pointer=f"/destination/{pointer}"))


@pytest.fixture
def owner(caller: Caller) -> Caller:
    """Return a caller with a sealed session."""
    seal(caller.service.runtime, [Recording()], workspace_id=caller.key.workspace_id)
    return caller


def hosted(owner: Caller) -> tuple[str, str]:
    """Return a hosted export that is complete: its id, and the path of one of its files."""
    export_id = owner.post("/v1/exports", EXPORT | {"destination": {"kind": "signed_url"}}).json()["id"]
    run_export(owner.service.runtime, export_id, owner="tests")
    manifest = owner.get(f"/v1/exports/{export_id}/manifest").json()
    return export_id, manifest["shards"][0]["path"]


def address_of(owner: Caller, path: str, **signed: Any) -> str:
    """Return an address that the service signs, with any members."""
    signing = {
        "workspace_id": owner.key.workspace_id,
        "expires_at": clock.now() + timedelta(hours=1),
        "secret": owner.service.runtime.settings.secret,
    }
    return make_signed_url("", path, **signing | signed)


@pytest.mark.parametrize(
    ("alter", "code"),
    [
        case(80, lambda url: url + "0", "invalid_signature", name="longer"),
        case(80, lambda url: url[:-1], "invalid_signature", name="cut"),
        case(80, lambda url: url.replace("/events-", "/frames-"), "invalid_signature", name="other-file"),
        case(80, lambda url: re.sub(r"exp=(\d+)", r"exp=9\1", url), "invalid_signature", name="later-end"),
        case(80, lambda url: re.sub(r"kid=[^&]*", "kid=other", url), "invalid_signature", name="other-key"),
        case(80, lambda url: re.sub(r"sig=[^&]*", "sig=%00", url), "invalid_signature", name="NUL"),
        case(
            80,
            lambda url: re.sub(r"sig=[^&]*", "sig=%F0%9F%98%80", url),
            "invalid_signature",
            name="no-ASCII",
        ),
    ],
)
def test_an_altered_address_opens_nothing(owner: Caller, alter: Any, code: str) -> None:
    export_id, path = hosted(owner)
    good = address_of(owner, f"/v1/exports/{export_id}/files/{path}")
    client = owner.service.client
    assert client.get(good).status_code == 200
    judge(client.get(alter(good)), Refused(403, code))


@pytest.mark.parametrize(
    ("signed", "code"),
    [
        case(80, {"workspace_id": new_id("wsp")}, "invalid_signature", name="other-workspace"),
        case(80, {"secret": b"another"}, "invalid_signature", name="other-secret"),
        case(80, {"expires_at": clock.now() - timedelta(seconds=1)}, "url_expired", name="old"),
    ],
)
def test_an_address_signed_for_something_else_opens_nothing(
    owner: Caller, signed: dict[str, Any], code: str
) -> None:
    export_id, path = hosted(owner)
    for signed_path in (f"/v1/exports/{export_id}/files/{path}", f"/v1/exports/{export_id}/manifest"):
        answer = owner.service.client.get(address_of(owner, signed_path, **signed))
        judge(answer, Refused(403, code))


@pytest.mark.parametrize(
    "status", [case(80, "suspended", name="suspended"), case(80, "expired", name="expired")]
)
def test_an_address_opens_nothing_while_its_workspace_is_not_active(owner: Caller, status: str) -> None:
    export_id, path = hosted(owner)
    with owner.service.runtime.database.transaction(write=True) as db:
        row = db.get_one(WorkspaceRow, owner.key.workspace_id)
        row.status = status
        db.add(row)
    for signed_path in (f"/v1/exports/{export_id}/files/{path}", f"/v1/exports/{export_id}/manifest"):
        judge(owner.service.client.get(address_of(owner, signed_path)), Refused(403, "workspace_disabled"))


@pytest.mark.parametrize(
    "ids",
    [
        case(81, [new_id("ses")] * (limits.EXCLUDED_SESSIONS + 1), name="10001-ids"),
        case(81, ["ses_1"] * 100_000, name="100000-ids"),
    ],
)
def test_too_many_ids_to_leave_out_are_refused(owner: Caller, ids: list[str]) -> None:
    wanted = EXPORT | {"destination": {"kind": "signed_url"}, "filter": {"exclude_session_ids": ids}}
    with nothing_stored(owner.service.runtime):
        answer = owner.post("/v1/exports", wanted)
        judge(answer, Refused(422, "too_many_ids", pointer="/filter/exclude_session_ids"))
        # A second export would not leave out the first ids.
        assert "another request" not in answer.json()["detail"]
