"""Thumbnails of recorded pictures: small copies, and pictures that do not decode, or not in time."""

import io
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from PIL import Image

from recorder.replay_service.recordings.thumbnails import ThumbnailProcess
from tests.support.fuzzed_pictures import png_with_late_profile, scan_bomb


@contextmanager
def thumbnails(*, seconds: float = 5.0) -> Iterator[ThumbnailProcess]:
    """Yield a process that ends with the block."""
    process = ThumbnailProcess(seconds=seconds)
    try:
        yield process
    finally:
        process.end()


def picture(size: tuple[int, int], format: str = "PNG") -> bytes:
    """Return a picture of one colour."""
    file = io.BytesIO()
    Image.new("RGB", size, (40, 90, 160)).save(file, format)
    return file.getvalue()


@pytest.mark.parametrize("format", ["PNG", "JPEG", "WEBP"])
def test_a_picture_becomes_a_small_jpeg(format: str) -> None:
    with thumbnails() as process:
        small = process.make(picture((1_280, 720), format))
    assert small is not None
    with Image.open(io.BytesIO(small)) as shown:
        assert (shown.format, shown.size) == ("JPEG", (640, 360))


def test_a_picture_that_does_not_decode_has_none_and_the_next_one_is_made() -> None:
    postscript = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n"
    bad = [b"", b"no picture", png_with_late_profile(), postscript, picture((5_000, 4_000))]
    with thumbnails() as process:
        assert [process.make(data) for data in bad] == [None] * len(bad)
        assert process.make(picture((20, 10))) is not None


def test_a_picture_that_decodes_for_long_ends_its_process_alone() -> None:
    with thumbnails(seconds=3.0) as process:
        assert process.make(picture((20, 10))) is not None
        assert process.make(scan_bomb(3_900, 8_000)) is None
        assert process.make(picture((20, 10))) is not None
