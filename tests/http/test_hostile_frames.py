"""Hostile pictures, destinations and signed addresses: cases 71 to 77, 80, 81. Contract §3, §5."""

import base64
import io
import re
import struct
import zipfile
import zlib
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from api.app import create_app
from recorder import clock, limits
from recorder.exports.running.run import run_export
from recorder.exports.signing import signed_url
from recorder.ids import new_id
from recorder.models.workspace import WorkspaceRow
from tests.factories import Caller, Service, frame, multipart, picture
from tests.hostile import CANARY, Refused, case, judge, nothing_stored
from tests.sealed import Recording, make_settings, seal

PNG = picture()


def png_of(width: int, height: int) -> bytes:
    """A PNG that claims a size and holds next to nothing."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(b"\0" * 10_000)) + chunk(b"IEND", b"")


def archive() -> bytes:
    """A zip with a way out in it."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as made:
        made.writestr("../../etc/passwd", CANARY)
    return file.getvalue()


NO_IMAGE = Refused(422, "invalid_image", pointer="/frames/1")
TOO_LARGE = Refused(422, "image_too_large", pointer="/frames/1")
OTHER_KIND = Refused(415, "unsupported_media_type")


@pytest.mark.parametrize(
    ("data", "content_type", "refused"),
    [
        case(71, png_of(30_000, 30_000), "image/png", TOO_LARGE, name="900-million-pixels"),
        case(71, png_of(2**31 - 1, 2**31 - 1), "image/png", TOO_LARGE, name="2^62-pixels"),
        case(71, png_of(10_000, 5_001), "image/png", TOO_LARGE, name="a-row-too-many"),
        case(72, PNG, "image/jpeg", NO_IMAGE, name="PNG-as-JPEG"),
        case(72, picture(format="JPEG"), "image/png", NO_IMAGE, name="JPEG-as-PNG"),
        case(72, picture(format="GIF"), "image/webp", NO_IMAGE, name="GIF-as-WebP"),
        case(72, archive(), "image/png", NO_IMAGE, name="zip-as-PNG"),
        case(72, PNG[:-12] + archive(), "image/png", NO_IMAGE, name="zip-behind-a-PNG"),
        case(72, b"<svg/>", "image/png", NO_IMAGE, name="SVG-as-PNG"),
        case(73, b"<svg xmlns='http://www.w3.org/2000/svg'/>", "image/svg+xml", OTHER_KIND, name="SVG"),
        case(73, b"<script>1</script>", "text/html", OTHER_KIND, name="HTML"),
        case(75, archive(), "application/zip", OTHER_KIND, name="zip"),
        case(75, b"\0" * 1_024, "application/x-tar", OTHER_KIND, name="tar"),
        case(75, PNG, "image/png; charset=utf-8", OTHER_KIND, name="parameter"),
        case(75, PNG, "IMAGE/PNG", OTHER_KIND, name="capitals"),
    ],
)
@pytest.mark.parametrize("form", ["JSON", "multipart"])
def test_what_is_no_picture_of_ours_refuses_its_batch(
    caller: Caller, form: str, data: bytes, content_type: str, refused: Refused
) -> None:
    address = f"/v1/sessions/{caller.make_session()}/frames"
    with nothing_stored(caller.service.runtime):
        if form == "JSON":
            bad = {"t_ms": 2, "content_type": content_type, "data": base64.b64encode(data).decode()}
            answer = caller.post(address, {"frames": [frame(1), bad]})
        else:
            good = {"t_ms": 1, "content_type": "image/png", "part": "good"}
            bad = {"t_ms": 2, "content_type": content_type, "part": "bad"}
            answer = caller.request("POST", address, files=multipart([good, bad], good=PNG, bad=data))
        judge(answer, refused)


@pytest.mark.parametrize("over", [case(74, 1, name="by-a-byte")])
def test_frames_over_the_cap_of_a_request_are_refused(caller: Caller, over: int) -> None:
    each = limits.FRAMES_REQUEST_BYTES // limits.FRAMES_PER_BATCH + over
    assert each < limits.FRAME_BYTES
    names = [f"p{n}" for n in range(limits.FRAMES_PER_BATCH)]
    items = [{"t_ms": 1, "content_type": "image/png", "part": name} for name in names]
    parts = dict.fromkeys(names, PNG + b"\0" * (each - len(PNG)))
    address = f"/v1/sessions/{caller.make_session()}/frames"
    with nothing_stored(caller.service.runtime):
        answer = caller.request("POST", address, files=multipart(items, **parts))
        judge(answer, Refused(413, "payload_too_large"))


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


@pytest.fixture
def owner(caller: Caller) -> Caller:
    """A caller with a sealed session."""
    seal(caller.service.runtime, [Recording()], workspace_id=caller.key.workspace_id)
    return caller


def hosted(owner: Caller) -> tuple[str, str]:
    """A hosted export that is complete: its id, and the path of one of its files."""
    export_id = owner.post("/v1/exports", EXPORT | {"destination": {"kind": "signed_url"}}).json()["id"]
    run_export(owner.service.runtime, export_id, owner="tests")
    manifest = owner.get(f"/v1/exports/{export_id}/manifest").json()
    return export_id, manifest["shards"][0]["path"]


def address_of(owner: Caller, path: str, **signed: Any) -> str:
    """An address that the service signs, under whatever it is told."""
    signing = {
        "workspace_id": owner.key.workspace_id,
        "expires_at": clock.now() + timedelta(hours=1),
        "secret": owner.service.runtime.settings.secret,
    }
    return signed_url("", path, **signing | signed)


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
