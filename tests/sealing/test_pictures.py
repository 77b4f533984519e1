"""Digests of pictures: equal to the plain computation, and None for whatever does not decode. Design §3."""

import io
import itertools
import random
import warnings
from collections import Counter

import numpy as np
import pytest
from PIL import Image

from recorder.sealing import frame_digests
from recorder.sealing.frame_digests import dhash, read_cells_of_frame_picture
from tests.support.fuzzed_pictures import png_with_late_profile, storable_pictures


def plain_dhash(data: bytes) -> int:
    """Return the digest by Pillow and numpy, of the whole picture at once."""
    with Image.open(io.BytesIO(data)) as image:
        image.draft("L", (72, 64))
        small = image.convert("L").resize((9, 8), Image.Resampling.BOX)
    cells = np.asarray(small, dtype=np.int16)
    bits = np.packbits(cells[:, :-1] < cells[:, 1:])
    return int.from_bytes(bits.tobytes(), "big", signed=True)


def encoded(image: Image.Image, form: str, **options: object) -> bytes:
    """Return the bytes of a picture."""
    file = io.BytesIO()
    image.save(file, form, **options)
    return file.getvalue()


def noise(seed: int, size: tuple[int, int]) -> Image.Image:
    """Return coarse noise in colours, with transparent parts."""
    small = Image.frombytes("RGBA", (24, 20), random.Random(seed).randbytes(24 * 20 * 4))
    return small.resize(size, Image.Resampling.BICUBIC)


@pytest.mark.parametrize("size", [(1, 1), (7, 5), (9, 8), (640, 480), (3, 2_000), (9_000, 460)])
@pytest.mark.parametrize("form", ["PNG", "JPEG", "WEBP", "lossless", "RGBA", "P", "I;16", "animated"])
def test_the_digest_is_that_of_the_whole_picture(form: str, size: tuple[int, int]) -> None:
    image = noise(len(form), size)
    if form == "lossless":
        data = encoded(image, "WEBP", lossless=True, method=0)
    elif form == "animated":
        data = encoded(image, "WEBP", save_all=True, append_images=[image.rotate(180)])
    elif form == "RGBA":
        data = encoded(image, "PNG")
    elif form == "P":
        data = encoded(image.convert("RGB").convert("P"), "PNG", transparency=7)
    elif form == "I;16":
        data = encoded(image.convert("L").convert("I;16"), "PNG")
    else:
        data = encoded(image.convert("RGB"), form)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cells = read_cells_of_frame_picture(data)
        assert cells is not None and dhash(cells) == plain_dhash(data)


def test_every_error_of_a_decoder_costs_the_digest_alone() -> None:
    kinds = Counter[str]()
    for picture in itertools.islice(storable_pictures(seed=5), 600):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                frame_digests.decode_cells(picture.data, 10**9)
        except Exception as error:
            kinds[type(error).__name__] += 1
            assert read_cells_of_frame_picture(picture.data) is None, picture.recipe
        else:
            assert read_cells_of_frame_picture(picture.data) is not None, picture.recipe
    # Kinds that no list of a decoder's documented errors holds.
    assert kinds["IndexError"] >= 3 and kinds["AssertionError"] >= 1, kinds


def test_a_picture_of_83_bytes_that_raises_an_index_error_has_no_digest() -> None:
    data = png_with_late_profile()
    with pytest.raises(IndexError):
        frame_digests.decode_cells(data, 10**9)
    assert len(data) <= 83 and read_cells_of_frame_picture(data) is None


def test_a_warning_that_is_an_error_costs_no_digest() -> None:
    data = encoded(noise(1, (30, 20)).convert("RGB").convert("P"), "PNG", transparency=b"\0\x80\xff")
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        plain_dhash(data)
    assert seen, "this picture warns of nothing"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert read_cells_of_frame_picture(data) is not None


def test_a_picture_of_too_many_pixels_has_no_digest() -> None:
    data = encoded(noise(1, (30, 20)), "PNG")
    assert (
        read_cells_of_frame_picture(data, max_pixels=599) is None
        and read_cells_of_frame_picture(data, max_pixels=600) is not None
    )


@pytest.mark.parametrize("size", [(1, 65_536), (65_536, 1)])
def test_a_picture_with_a_side_that_no_screen_has_is_not_decoded(size: tuple[int, int]) -> None:
    assert read_cells_of_frame_picture(encoded(Image.new("L", size), "PNG")) is None
    assert read_cells_of_frame_picture(
        encoded(Image.new("L", size).crop((0, 0, *(min(n, 65_535) for n in size))), "PNG")
    )
