"""Pictures of captured pages: masked areas are painted over before a picture is buffered."""

import io
from collections.abc import Sequence
from typing import Literal

from PIL import Image, ImageDraw

_COLOUR = (60, 60, 60)


def paint_over_areas(
    image: bytes, rects: Sequence[Sequence[int]], *, quality: int, format: Literal["WEBP", "JPEG"] = "WEBP"
) -> bytes:
    """Return a picture with rectangles `[x, y, width, height]` painted over."""
    with Image.open(io.BytesIO(image)) as opened:
        picture = opened.convert("RGB")
    draw = ImageDraw.Draw(picture)
    for left, top, width, height in rects:
        draw.rectangle((left, top, left + width, top + height), fill=_COLOUR)
    painted = io.BytesIO()
    picture.save(painted, format, quality=quality, **({"method": 0} if format == "WEBP" else {}))
    return painted.getvalue()
