"""Pictures and items are found good or refused, never a fault of ours. Contract §3 (frame item)."""

import random
import warnings

import pytest

from recorder.errors import RecorderError
from recorder.ids import new_id
from recorder.recording.frame_validation import validate_frame_picture, validate_frames, validate_frames_json
from recorder.sealing.frame_digests import dhash, dhash_distance, read_cells_of_frame_picture
from tests.support.factories import frame, json_bytes, picture

FORMATS = ["PNG", "JPEG", "WEBP"]


def mutated(data: bytes, choose: random.Random) -> bytes:
    """Return the bytes with a few changed, cut out or put in, mostly near the head."""
    changed = bytearray(data)
    for _ in range(choose.choice([1, 2, 5, 20])):
        position = choose.randrange(min(len(changed), choose.choice([30, 100, len(changed)])))
        how = choose.random()
        if how < 0.7:
            changed[position] = choose.randrange(256)
        elif how < 0.85:
            del changed[position : position + choose.randrange(1, 4)]
        else:
            changed[position:position] = choose.randbytes(4)
    return bytes(changed)


@pytest.mark.parametrize("form", FORMATS)
def test_a_damaged_picture_is_refused_or_read(form: str) -> None:
    choose = random.Random(form)
    data = picture(90, format=form, size=(40, 30))
    refused = 0
    for _ in range(1_500):
        damaged = mutated(data, choose)
        try:
            width, height = validate_frame_picture(damaged, f"image/{form.lower()}", index=0)
        except RecorderError:
            refused += 1
            continue
        assert 1 <= width * height <= 50_000_000
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            cells = read_cells_of_frame_picture(damaged)
        assert cells is None or (len(cells) == 72 and -(2**63) <= dhash(cells) < 2**63)
    assert 100 < refused < 1_500


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("size", [(1, 1), (7, 5), (640, 480)])
def test_a_whole_picture_is_measured(form: str, size: tuple[int, int]) -> None:
    assert (
        validate_frame_picture(picture(7, format=form, size=size), f"image/{form.lower()}", index=0) == size
    )


@pytest.mark.parametrize("form", FORMATS)
def test_every_cut_of_a_picture_is_refused(form: str) -> None:
    data = picture(7, format=form)
    for end in (0, 1, len(data) // 2, len(data) - 4):
        with pytest.raises(RecorderError):
            validate_frame_picture(data[:end], f"image/{form.lower()}", index=0)


def test_frames_without_ids_get_ids_that_nobody_else_gets() -> None:
    items, parts = validate_frames_json(json_bytes({"frames": [frame(n) for n in range(50)]}))
    for _ in range(100):
        given = [checked.id for checked in validate_frames(items, parts)]
        assert given == sorted(set(given)) and new_id("frm") > given[-1]


def test_pictures_that_look_alike_have_close_digests() -> None:
    big, small = (
        read_cells_of_frame_picture(picture(200, format=form, size=(320, 240))) for form in ("PNG", "JPEG")
    )
    assert big is not None and small is not None and dhash_distance(dhash(big), dhash(small)) <= 4
    assert read_cells_of_frame_picture(b"nothing") is None and dhash_distance(None, dhash(big)) == 0
