"""Frame uploads that are refused: neither index nor object is left of them. Contract §3 (frame item)."""

import base64
import struct
import time
import zlib
from typing import Any

import pytest

from recorder import limits
from tests.support.dom_snapshots import snapshot
from tests.support.factories import Caller, assert_problem, footprint, frame, multipart, picture

PNG = picture()


def encoded(data: bytes) -> str:
    """Return the bytes as base64."""
    return base64.b64encode(data).decode()


def png_of(width: int, height: int) -> bytes:
    """Return a PNG that claims a size in its header and holds next to nothing."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    pixels = zlib.compress(b"\0")
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


BAD_PICTURES: dict[str, tuple[bytes, str, int, str]] = {
    "nothing": (b"", "image/png", 422, "invalid_image"),
    "text": (b"not a picture", "image/png", 422, "invalid_image"),
    "a header alone": (PNG[:33], "image/png", 422, "invalid_image"),
    "cut PNG": (PNG[:-1], "image/png", 422, "invalid_image"),
    "cut JPEG": (picture(format="JPEG")[:-70], "image/jpeg", 422, "invalid_image"),
    "cut WebP": (picture(format="WEBP")[:-2], "image/webp", 422, "invalid_image"),
    "PNG with a tail": (PNG + b"tail", "image/png", 422, "invalid_image"),
    "PNG called JPEG": (PNG, "image/jpeg", 422, "invalid_image"),
    "GIF called PNG": (picture(format="GIF"), "image/png", 422, "invalid_image"),
    "zip called PNG": (b"PK\x03\x04" + b"\0" * 60, "image/png", 422, "invalid_image"),
    "GIF": (picture(format="GIF"), "image/gif", 415, "unsupported_media_type"),
    "SVG": (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "image/svg+xml", 415, "unsupported_media_type"),
    "HTML": (b"<html>", "text/html", 415, "unsupported_media_type"),
    "900 million pixels": (png_of(30_000, 30_000), "image/png", 422, "image_too_large"),
    "50 million and one row": (png_of(10_000, 5_001), "image/png", 422, "image_too_large"),
    "no pixels": (png_of(0, 10), "image/png", 422, "invalid_image"),
    "10 MB and a byte": (
        PNG + b"\0" * (limits.FRAME_BYTES + 1 - len(PNG)),
        "image/png",
        422,
        "image_too_large",
    ),
}
BAD_MEMBERS: dict[str, tuple[Any, str, str]] = {
    "not an object": (1, "/frames/1", "invalid_value"),
    "without t_ms": ({"content_type": "image/png", "data": ""}, "/frames/1/t_ms", "missing"),
    "without content_type": ({"t_ms": 1, "data": ""}, "/frames/1/content_type", "missing"),
    "without bytes": ({"t_ms": 1, "content_type": "image/png"}, "/frames/1/data", "missing"),
    "part in JSON": (frame(1, part="p0"), "/frames/1/part", "invalid_value"),
    "data null": (frame(1, data=None), "/frames/1/data", "missing"),
    "data not base64": (frame(1, data="a*b"), "/frames/1/data", "invalid_base64"),
    "data cut": (frame(1, data="QUJ"), "/frames/1/data", "invalid_base64"),
    "t_ms negative": (frame(-1), "/frames/1/t_ms", "invalid_value"),
    "t_ms past every clock": (frame(limits.T_MS_MAX + 1), "/frames/1/t_ms", "invalid_value"),
    "t_ms a fraction": (frame(1.0), "/frames/1/t_ms", "invalid_value"),  # type: ignore[arg-type]
    "unknown member": (frame(1, nobody_knows=1), "/frames/1/nobody_knows", "unknown_field"),
    "other width": (frame(1, width=17), "/frames/1/width", "mismatch"),
    "other height": (frame(1, height=11), "/frames/1/height", "mismatch"),
    "width nought": (frame(1, width=0), "/frames/1/width", "invalid_value"),
    "keyframe as text": (frame(1, keyframe="yes"), "/frames/1/keyframe", "invalid_value"),
    "rect of three": (frame(1, active_rect=[0, 0, 1]), "/frames/1/active_rect", "invalid_value"),
    "masked rects flat": (frame(1, masked_rects=[0, 0, 1, 1]), "/frames/1/masked_rects/0", "invalid_value"),
    "dom an array": (frame(1, dom=[1]), "/frames/1/dom", "invalid_value"),
    "dom over 4 MB": (
        frame(1, dom=snapshot(["p", "a" * limits.DOM_BYTES])),
        "/frames/1/dom",
        "too_large",
    ),
    "dom of another format": (
        frame(1, dom=snapshot(["html"]) | {"format": "rrweb"}),
        "/frames/1/dom/format",
        "invalid_value",
    ),
    "dom without format": (frame(1, dom={"v": 1, "html": ["html"]}), "/frames/1/dom/format", "missing"),
    "dom of another version": (
        frame(1, dom=snapshot(["html"]) | {"v": 2}),
        "/frames/1/dom/v",
        "invalid_value",
    ),
    "dom of version true": (
        frame(1, dom=snapshot(["html"]) | {"v": True}),
        "/frames/1/dom/v",
        "invalid_value",
    ),
    "dom of text": (frame(1, dom=snapshot("<html></html>")), "/frames/1/dom/html", "invalid_value"),
    "dom without nodes": (frame(1, dom=snapshot([])), "/frames/1/dom/html", "invalid_value"),
    "dom without html": (frame(1, dom={"v": 1, "format": "nodes"}), "/frames/1/dom/html", "missing"),
    "id of an event": (frame(1, id="evt_A1"), "/frames/1/id", "invalid_id"),
    "id with a slash": (frame(1, id="frm_a/b"), "/frames/1/id", "invalid_id"),
    "id of 41 letters": (frame(1, id="frm_" + "a" * 41), "/frames/1/id", "invalid_id"),
}


@pytest.mark.parametrize("case", BAD_PICTURES)
def test_a_bad_picture_refuses_its_batch(caller: Caller, case: str) -> None:
    data, content_type, status, code = BAD_PICTURES[case]
    session_id = caller.make_session()
    before = footprint(caller.service.runtime)
    bad = {"t_ms": 2, "content_type": content_type, "data": encoded(data)}
    problem = assert_problem(caller.add_frames(session_id, frame(1), bad), status, code)
    pointer = "/frames/1/content_type" if status == 415 else "/frames/1"
    assert [(error["pointer"], error["code"]) for error in problem["errors"]] == [(pointer, code)]
    assert footprint(caller.service.runtime) == before


def test_another_kind_of_picture_is_named_in_multipart_too(caller: Caller) -> None:
    session_id = caller.make_session()
    items = [
        {"t_ms": n, "content_type": kind, "part": f"p{n}"}
        for n, kind in enumerate(("image/png", "image/gif"))
    ]
    files = multipart(items, p0=PNG, p1=picture(format="GIF"))
    answer = caller.request("POST", f"/v1/sessions/{session_id}/frames", files=files)
    problem = assert_problem(answer, 415, "unsupported_media_type")
    assert [error["pointer"] for error in problem["errors"]] == ["/frames/1/content_type"]


def test_the_media_type_of_a_picture_may_be_in_capitals(caller: Caller) -> None:
    session_id = caller.make_session()
    named = frame(1, id="frm_A1")
    assert caller.add_frames(session_id, {**named, "content_type": "Image/PNG"}).json()["accepted"] == 1
    assert caller.add_frames(session_id, named).json()["duplicates"] == 1
    (stored,) = caller.get(f"/v1/sessions/{session_id}/frames").json()["data"]
    assert stored["content_type"] == "image/png"


@pytest.mark.parametrize("case", BAD_MEMBERS)
def test_a_bad_member_refuses_its_batch(caller: Caller, case: str) -> None:
    item, pointer, code = BAD_MEMBERS[case]
    session_id = caller.make_session()
    before = footprint(caller.service.runtime)
    problem = assert_problem(caller.add_frames(session_id, frame(0), item), 422, "validation_failed")
    assert [(error["pointer"], error["code"]) for error in problem["errors"]] == [(pointer, code)]
    assert footprint(caller.service.runtime) == before


@pytest.mark.parametrize(
    ("frames", "code"),
    [
        pytest.param([], "empty_batch", id="no frame"),
        pytest.param([frame()] * 51, "batch_too_large", id="51 frames"),
        pytest.param({}, "validation_failed", id="an object"),
    ],
)
def test_a_batch_holds_1_to_50_frames(caller: Caller, frames: Any, code: str) -> None:
    address = f"/v1/sessions/{caller.make_session()}/frames"
    before = footprint(caller.service.runtime)
    assert_problem(caller.post(address, {"frames": frames}), 422, code)
    if isinstance(frames, list):
        parts = {f"p{index}": PNG for index in range(len(frames))}
        items = [{"t_ms": 1, "content_type": "image/png", "part": name} for name in parts]
        assert_problem(caller.request("POST", address, files=multipart(items, **parts)), 422, code)
    assert footprint(caller.service.runtime) == before


def test_a_full_batch_is_taken_either_way(caller: Caller) -> None:
    session_id = caller.make_session()
    assert caller.add_frames(session_id, *[frame(n) for n in range(50)]).json()["accepted"] == 50
    parts = {f"p{index}": picture(index) for index in range(50)}
    items = [{"t_ms": 1, "content_type": "image/png", "part": name} for name in parts]
    answer = caller.request("POST", f"/v1/sessions/{session_id}/frames", files=multipart(items, **parts))
    assert answer.json()["frame_count"] == 100


ITEM = {"t_ms": 1, "content_type": "image/png", "part": "p0"}


@pytest.mark.parametrize(
    ("files", "status", "code"),
    [
        pytest.param(multipart([ITEM]), 422, "validation_failed", id="part missing"),
        pytest.param({"p0": ("p0", PNG, "image/png")}, 422, "validation_failed", id="frames missing"),
        pytest.param(
            multipart([{**ITEM, "data": encoded(PNG)}], p0=PNG),
            422,
            "validation_failed",
            id="data beside part",
        ),
        pytest.param(multipart([{**ITEM, "part": None}], p0=PNG), 422, "validation_failed", id="part null"),
        pytest.param(multipart([ITEM], p0=PNG[:-4]), 422, "invalid_image", id="picture cut"),
        pytest.param(multipart(b"[{", p0=PNG), 400, "invalid_json", id="JSON cut"),
        pytest.param(multipart(b'[{"url":"\xe9"}]', p0=PNG), 400, "invalid_json", id="JSON in Latin-1"),
        pytest.param(multipart(b'[{"t_ms":1,"t_ms":2}]', p0=PNG), 400, "invalid_json", id="key twice"),
        pytest.param(
            [("frames", (None, b"[]", "application/json"))] * 2, 422, "validation_failed", id="frames twice"
        ),
        pytest.param(
            {f"p{n}": (f"p{n}", b"x", "image/png") for n in range(60)},
            422,
            "validation_failed",
            id="60 parts",
        ),
    ],
)
def test_a_bad_multipart_upload_is_refused(caller: Caller, files: Any, status: int, code: str) -> None:
    address = f"/v1/sessions/{caller.make_session()}/frames"
    before = footprint(caller.service.runtime)
    assert_problem(caller.request("POST", address, files=files), status, code)
    assert footprint(caller.service.runtime) == before


@pytest.mark.parametrize(
    ("content_type", "body", "status", "code"),
    [
        pytest.param("multipart/form-data", b"x", 422, "validation_failed", id="no boundary"),
        pytest.param("multipart/form-data; boundary=x", b"x", 422, "validation_failed", id="no parts"),
        pytest.param(
            "multipart/form-data; boundary=x",
            b'--x\r\nContent-Disposition: form-data; name="frames"\r\n\r\n[{"t_ms":1',
            422,
            "validation_failed",
            id="cut part",
        ),
        pytest.param(
            "multipart/form-data; boundary=x",
            b"--x\r\n\r\nx\r\n--x--",
            422,
            "validation_failed",
            id="no name",
        ),
        pytest.param(
            "multipart/form-data; boundary=x",
            b'--x\r\nContent-Disposition: form-data; name="frames"' + b";a=b" * 600 + b"\r\n\r\n[]\r\n--x--",
            422,
            "validation_failed",
            id="part with large headers",
        ),
        pytest.param(
            "multipart/form-data; boundary=x",
            b"--x\r\nContent-Type: image/png" + b";a=b" * 70 + b"\r\n\r\n[]\r\n--x--",
            415,
            "unsupported_media_type",
            id="part with a long type",
        ),
        pytest.param(
            f"multipart/form-data; boundary=x{';a=b' * 60}",
            b"--x--",
            415,
            "unsupported_media_type",
            id="long type",
        ),
        pytest.param("application/x-www-form-urlencoded", b"a=b", 415, "unsupported_media_type", id="form"),
        pytest.param("image/png", PNG, 415, "unsupported_media_type", id="picture"),
        pytest.param(None, b"{}", 415, "unsupported_media_type", id="no Content-Type"),
    ],
)
def test_a_body_that_is_no_upload_is_refused(
    caller: Caller, content_type: str | None, body: bytes, status: int, code: str
) -> None:
    address = f"/v1/sessions/{caller.make_session()}/frames"
    before = footprint(caller.service.runtime)
    assert_problem(caller.post_raw(address, body, content_type=content_type), status, code)
    assert footprint(caller.service.runtime) == before


@pytest.mark.parametrize(
    ("files", "sentence"),
    [
        pytest.param(
            {"frame": (None, b"[]", "application/json"), "screen": ("screen", PNG, "image/png")},
            "The part `frames` is missing; the body has `frame`, `screen`.",
            id="another name",
        ),
        pytest.param(
            {f"p{n}": (f"p{n}", b"x", "image/png") for n in range(7)},
            "The part `frames` is missing; the body has `p0`, `p1`, `p2`, `p3`, `p4`, 2 more.",
            id="many names",
        ),
        pytest.param(
            {"n" * 200: ("f", b"x", "image/png")},
            f"The part `frames` is missing; the body has `{'n' * 100}…`.",
            id="long name",
        ),
        pytest.param(
            [("frames", (None, b"[]", "application/json"))] * 2,
            "Send each name once; repeated: `frames`.",
            id="frames twice",
        ),
    ],
)
def test_a_multipart_error_names_the_parts(caller: Caller, files: Any, sentence: str) -> None:
    address = f"/v1/sessions/{caller.make_session()}/frames"
    problem = assert_problem(caller.request("POST", address, files=files), 422, "validation_failed")
    assert [(error["pointer"], error["code"], error["message"]) for error in problem["errors"]] == [
        ("", "invalid_multipart", sentence)
    ]


@pytest.mark.parametrize(
    ("content_type", "body", "start"),
    [
        ("multipart/form-data", b"x", "Content-Type lacks its boundary"),
        ("multipart/form-data; boundary=", b"x", "Content-Type lacks its boundary"),
        ("multipart/form-data; boundary=x", b"", "The part `frames` is missing; the body has no parts."),
        ("multipart/form-data; boundary=x", b"x", "The multipart body is malformed, or has more than 51"),
        (
            "multipart/form-data; boundary=x",
            b'--x\r\nContent-Disposition: form-data; name="a\x1b[2J\xe2\x80\xae"\r\n\r\nx\r\n--x--',
            "The part `frames` is missing; the body has `a\ufffd[2J\ufffd`.",
        ),
    ],
)
def test_a_body_without_readable_parts_gets_its_own_sentence(
    caller: Caller, content_type: str, body: bytes, start: str
) -> None:
    address = f"/v1/sessions/{caller.make_session()}/frames"
    answer = caller.post_raw(address, body, content_type=content_type)
    (error,) = assert_problem(answer, 422, "validation_failed")["errors"]
    assert error["message"].startswith(start), error


@pytest.mark.parametrize(
    ("part", "detail"),
    [
        (b"[{", "The JSON of the part `frames` is malformed at line 1, column 3."),
        (b" ", "The part `frames` is empty; send JSON."),
    ],
)
def test_malformed_json_of_a_part_is_located_in_it(caller: Caller, part: bytes, detail: str) -> None:
    address = f"/v1/sessions/{caller.make_session()}/frames"
    answer = caller.request("POST", address, files=multipart(part, p0=PNG))
    assert assert_problem(answer, 400, "invalid_json")["detail"] == detail


def test_a_request_over_64_mb_is_refused_before_it_is_read(caller: Caller) -> None:
    address = f"/v1/sessions/{caller.make_session()}/frames"
    before = footprint(caller.service.runtime)
    announced = str(limits.FRAMES_REQUEST_BYTES + 1)
    answer = caller.post_raw(address, b"{}", **{"Content-Length": announced})
    assert_problem(answer, 413, "payload_too_large")
    assert footprint(caller.service.runtime) == before


def test_conflicts_and_repeats_leave_no_object_behind(caller: Caller) -> None:
    session_id = caller.make_session()
    first = frame(1, 1, id="frm_A1")
    assert caller.add_frames(session_id, first, key="batch-1").status_code == 202
    before = footprint(caller.service.runtime)
    assert caller.add_frames(session_id, first).json()["duplicates"] == 1
    assert caller.add_frames(session_id, first, key="batch-1").json()["accepted"] == 1
    assert_problem(caller.add_frames(session_id, frame(1, 2, id="frm_A1")), 409, "event_conflict")
    assert_problem(caller.add_frames(session_id, frame(5), key="batch-1"), 422, "idempotency_key_reused")
    assert footprint(caller.service.runtime) == before


def test_a_small_upload_with_parameters_in_its_parts_takes_no_time(caller: Caller) -> None:
    # Regression: 51 parts with 4 KB of parameters each took 0.2 to 0.6 s.
    part = b'--x\r\nContent-Disposition: form-data; name="p%d"\r\nContent-Type: a'
    body = b"".join(part % n + b";a=b" * 1_000 + b"\r\n\r\nx\r\n" for n in range(51)) + b"--x--\r\n"
    address = f"/v1/sessions/{caller.make_session()}/frames"
    began = time.process_time()
    for _ in range(10):
        answer = caller.post_raw(address, body, content_type="multipart/form-data; boundary=x")
        assert_problem(answer, 422, "validation_failed")
    assert time.process_time() - began < 0.6
