"""Drawing screens from boxes. Design §2 (importers)."""

import io
import time
from dataclasses import replace

import pytest
from PIL import Image

from recorder.importers.screen_drawing import CLEAR, ScreenBox, draw_screen, parse_screen_colour

RED = (200, 0, 0, 255)


def drawn(*boxes: ScreenBox) -> Image.Image:
    """Return the picture of these boxes, read back."""
    return Image.open(io.BytesIO(draw_screen(boxes, (160, 210)))).convert("RGB")


@pytest.mark.parametrize(
    ("css", "colour"),
    [
        ("rgb(1, 66, 106)", (1, 66, 106, 255)),
        ("rgba(0, 0, 0, 0)", (0, 0, 0, 0)),
        ("rgba(0, 0, 0, 0.7)", (0, 0, 0, 178)),
        ("rgb(300, 0, 0)", (255, 0, 0, 255)),
        ("transparent", CLEAR),
        (None, CLEAR),
    ],
)
def test_computed_colours_are_read(css: str | None, colour: tuple[int, int, int, int]) -> None:
    assert parse_screen_colour(css) == colour


def test_a_box_fills_its_place_and_nothing_else() -> None:
    image = drawn(ScreenBox(10, 20, 30, 40, fill=RED))
    assert image.getpixel((10, 20)) == image.getpixel((39, 59)) == (200, 0, 0)
    assert image.getpixel((9, 20)) == image.getpixel((40, 59)) == (255, 255, 255)


def test_later_boxes_lie_over_earlier_ones_and_shades_mix() -> None:
    image = drawn(ScreenBox(0, 0, 50, 50, fill=RED), ScreenBox(0, 0, 50, 50, fill=(0, 0, 0, 128)))
    red, green, blue = image.getpixel((25, 25))
    assert 90 <= red <= 110
    assert green == blue == 0


def test_text_is_drawn_and_is_what_changes_the_picture() -> None:
    box = ScreenBox(10, 20, 100, 14, text="Submit")
    assert drawn(box).convert("L").getextrema()[0] < 60
    assert draw_screen((box,), (160, 210)) != draw_screen((replace(box, text="Cancel"),), (160, 210))


def test_long_text_is_broken_into_the_lines_that_fit() -> None:
    words = ScreenBox(0, 0, 60, 60, text="several words that do not fit into one line")
    rows = drawn(words).convert("L")
    inked = [y for y in range(210) if rows.crop((0, y, 160, y + 1)).getextrema()[0] < 128]
    assert max(inked) > 30


@pytest.mark.parametrize(
    "bounds", [(-500, -500, 100, 100), (1e6, 1e6, 10, 10), (-1e6, 0, 2e6, 2e6), (5, 5, 0, 0)]
)
def test_boxes_outside_the_picture_do_no_harm(bounds: tuple[float, float, float, float]) -> None:
    assert drawn(ScreenBox(*bounds, fill=RED, border=RED, text="x")).size == (160, 210)


def test_equal_boxes_give_equal_bytes() -> None:
    boxes = (ScreenBox(1, 2, 30, 40, fill=RED, text="a"), ScreenBox(5, 5, 9, 9, border=RED, shape="ellipse"))
    assert draw_screen(boxes, (160, 210)) == draw_screen(boxes, (160, 210))


def test_drawing_is_fast_enough_for_imports() -> None:
    boxes = tuple(ScreenBox(5, 12 * n, 120, 12, fill=RED, text=f"line {n}") for n in range(16))
    began = time.process_time()
    for n in range(60):
        draw_screen((*boxes, ScreenBox(n, n, 9, 9, fill=RED)), (160, 210))
    assert 60 / (time.process_time() - began) > 150
