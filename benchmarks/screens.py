"""Screens of a made-up web application, 1280 × 720, drawn as lossless WebP: what frames hold."""

import random

from recorder.importers.screen_drawing import ScreenBox, draw_screen

SIZE = (1280, 720)
_INK = (32, 36, 44, 255)
_PALE = (246, 247, 249, 255)
_LINE = (208, 212, 220, 255)
_BLUE = (37, 99, 235, 255)
_WHITE = (255, 255, 255, 255)
_WORDS = (
    "Invoice Supplier Amount Approved Pending Review Contract Renewal Customer Payment Region Budget Order "
    "Delivery Warehouse Account Priority Request Manager Department Balance Currency Refund Shipment"
)


def session_screens(count: int, *, seed: int) -> list[bytes]:
    """Return the screens of one session: a form filled in step by step, every third on a new page."""
    rng = random.Random(seed)
    screens = []
    page = _page(rng)
    for step in range(count):
        if step and step % 3 == 0:
            page = _page(rng)
        page = (*page, *_filled(rng, step % 3))
        screens.append(draw_screen(page, SIZE, _PALE))
    return screens


def _page(rng: random.Random) -> tuple[ScreenBox, ...]:
    boxes = [
        ScreenBox(0, 0, 1280, 56, fill=_BLUE, text="Accounts payable", ink=_WHITE, type_px=20),
        ScreenBox(0, 56, 220, 664, fill=_WHITE, border=_LINE),
    ]
    boxes += [
        ScreenBox(16, 76 + 40 * n, 188, 30, text=_phrase(rng, 2), type_px=14, ink=_INK) for n in range(12)
    ]
    boxes.append(ScreenBox(244, 72, 1012, 36, text=_phrase(rng, 4), type_px=22, ink=_INK))
    for row in range(13):
        for column in range(5):
            fill = _WHITE if row % 2 else _PALE
            text = _phrase(rng, 2) if column % 2 == 0 else f"{rng.randrange(10**6):,}"
            left, top = 244 + 136 * column, 124 + 44 * row
            boxes.append(
                ScreenBox(left, top, 136, 44, fill=fill, border=_LINE, text=text, type_px=13, ink=_INK)
            )
    boxes += [
        ScreenBox(944, 124 + 72 * n, 312, 20, text=_phrase(rng, 1), type_px=13, ink=_INK) for n in range(6)
    ]
    boxes += [ScreenBox(944, 148 + 72 * n, 312, 34, fill=_WHITE, border=_LINE) for n in range(6)]
    boxes.append(
        ScreenBox(944, 600, 150, 40, fill=_BLUE, text="Save", ink=_WHITE, is_centred=True, type_px=15)
    )
    return tuple(boxes)


def _filled(rng: random.Random, step: int) -> list[ScreenBox]:
    return [
        ScreenBox(952, 150 + 72 * n, 296, 30, fill=_WHITE, text=_phrase(rng, 3), type_px=14, ink=_INK)
        for n in (2 * step, 2 * step + 1)
    ]


def _phrase(rng: random.Random, words: int) -> str:
    return " ".join(rng.choices(_WORDS.split(), k=words))
