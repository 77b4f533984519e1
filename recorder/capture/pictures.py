"""Pictures of captured pages: masked areas are painted over before a picture is buffered."""

import io
from collections.abc import Sequence

from PIL import Image, ImageDraw

_COLOUR = (60, 60, 60)


def paint_over(image: bytes, rects: Sequence[Sequence[int]], *, quality: int) -> bytes:
    """Return a WebP picture with rectangles `[x, y, width, height]` painted over."""
    with Image.open(io.BytesIO(image)) as opened:
        picture = opened.convert("RGB")
    draw = ImageDraw.Draw(picture)
    for left, top, width, height in rects:
        draw.rectangle((left, top, left + width, top + height), fill=_COLOUR)
    painted = io.BytesIO()
    picture.save(painted, "WEBP", quality=quality, method=0)
    return painted.getvalue()
