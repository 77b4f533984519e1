"""Hostile pictures: cases 71 to 75. Contract §3."""

import base64
import io
import struct
import zipfile
import zlib

import pytest

from recorder import limits
from tests.support.factories import Caller, frame, multipart, picture
from tests.support.hostile_cases import CANARY, Refused, case, judge, nothing_stored

PNG = picture()


def png_of(width: int, height: int) -> bytes:
    """Return a PNG that claims a size and holds next to nothing."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(b"\0" * 10_000)) + chunk(b"IEND", b"")


def archive() -> bytes:
    """Return a zip archive with a path that leaves its folder."""
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
